"""Tests the command line with Cosmos DB, in real processes that are killed and started again."""

import json

import pytest

from multiclouddb_conformance.command_line import Tail, Writer, follow
from multiclouddb_conformance.command_options import command


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


@pytest.mark.parametrize("by", ["url", "option"])
def test_the_latest_versions_of_merged_ranges(world, where, by):
    """An account without backup is read from the beginning."""
    world.server.all_versions(False)
    written = world.fill(10)
    world.put("gone", deleted=True)
    world.server.merge("shop", "orders", "0", "1")
    url, collection = where
    chosen = ["--option", "mode=latest", "--option", "delete_marker=/deleted"]
    if by == "url":
        url, chosen = f"{url}&mode=latest&delete_marker=/deleted", []
    ran = command("tail", url, collection, "--from", "beginning", "--until-idle", "--json", *chosen)
    assert ran.exit_code == 0, ran.stderr
    events = [json.loads(line) for line in ran.stdout.splitlines()]
    assert sorted(each["new_item_state"]["n"] for each in events if each["type"] == "UPDATE") == written
    (gone,) = (each for each in events if each["type"] == "DELETE")
    assert gone["key"]["id"] == "gone"
    assert gone["old_item_state"]["deleted"] is True
