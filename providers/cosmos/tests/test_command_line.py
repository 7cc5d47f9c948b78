"""Tests the command line with Cosmos DB, in real processes that are killed and started again."""

import pytest

from multiclouddb_api import event_from_json
from multiclouddb_conformance.command_line import Tail, Writer, assert_refused, follow, run, said


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
    assert len(writer.written) > 100


def test_its_lines_can_be_read_again(world, where, tmp_path):
    checkpoint = ("--checkpoint", tmp_path / "position")
    assert said("tail", *where, "--from", "now", "--until-idle", *checkpoint) == ""
    world.container.upsert_item({"id": "o-1", "pk": "a", "n": 1})
    world.container.delete_item("o-1", "a")
    lines = said("tail", *where, "--until-idle", "--exact", *checkpoint).splitlines()
    assert [event_from_json(line).type.value for line in lines] == ["CREATE", "DELETE"]


def test_partitions_and_tokens_are_shown(world, where, tmp_path):
    path = tmp_path / "position"
    said("tail", *where, "--from", "now", "--until-idle", "--checkpoint", path)
    assert len(said("partitions", *where).splitlines()) >= 2
    assert "LSN" in said("token", "check", where[0], f"@{path}")


def test_a_start_in_the_past_names_the_way_out(where):
    ran = run("tail", *where, "--from", "beginning", "--until-idle")
    assert_refused(ran, ran.returncode, "UNSUPPORTED_CAPABILITY", "backfill=True")
    assert ran.returncode != 0
