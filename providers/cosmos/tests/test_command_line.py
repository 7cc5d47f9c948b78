"""Tests the options of the command line with the emulator of Cosmos DB."""

import json

import pytest

from testing.command_options import CommandOptions, Shown, command


class TestOptions(CommandOptions):
    @pytest.fixture
    def shown(self, world, tmp_path):
        url, position = world.config().connection["url"], tmp_path / "position"
        ran = command("tail", url, "shop/orders", "--until-idle", "--checkpoint", position)
        assert ran.exit_code == 0, ran.stderr
        return Shown(
            url, "shop/orders",
            lambda key: world.container.upsert_item({"id": key, "pk": key}),
            lambda key: world.container.delete_item(key, key),
            lambda key: {"pk": key, "id": key},
            # The feed with all versions can start only at the current time or at a token.
            begin=("--from", f"@{position}"),
            can_start_at=False, has_old=False, option="backfill=true",
        )  # fmt: skip


@pytest.mark.parametrize("by", ["url", "option"])
def test_the_latest_versions_of_merged_ranges(world, by):
    """An account without backup is read from the beginning."""
    world.server.all_versions(False)
    written = world.fill(10)
    world.put("gone", deleted=True)
    world.server.merge("shop", "orders", "0", "1")
    url = world.config().connection["url"]
    chosen = ["--option", "mode=latest", "--option", "delete_marker=/deleted"]
    if by == "url":
        url, chosen = f"{url}&mode=latest&delete_marker=/deleted", []
    ran = command("tail", url, "shop/orders", "--from", "beginning", "--until-idle", "--json", *chosen)
    assert ran.exit_code == 0, ran.stderr
    events = [json.loads(line) for line in ran.stdout.splitlines()]
    assert sorted(each["new_item_state"]["n"] for each in events if each["type"] == "UPDATE") == written
    (gone,) = (each for each in events if each["type"] == "DELETE")
    assert gone["key"]["id"] == "gone"
    assert gone["old_item_state"]["deleted"] is True
