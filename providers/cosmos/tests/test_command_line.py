"""Tests the command line with Cosmos DB, in real processes that are killed and started again."""

import pytest

from multiclouddb_conformance.command_line import Tail, Writer, follow


@pytest.fixture
def where(world):
    """Return the account and the container, as arguments of the commands."""
    return world.config().connection["url"], "shop/orders"


def test_killed_again_and_again_it_misses_nothing(world, where, tmp_path):
    """The commands miss no change while another process writes and a partition is split."""
    world.put("before")
    tail = Tail(*where, "--from", "now", "--checkpoint", tmp_path / "position")
    writer = Writer(lambda key: world.container.upsert_item({"id": key, "pk": key}), pause=0.01)
    follow(tail, writer, [(None, 1), (None, 60), (lambda: world.split("0"), 60), (None, 7)])
    found = tail.keys()
    assert sorted(key.components["id"] for key in found) == sorted(writer.written)
    assert len(writer.written) > 60
