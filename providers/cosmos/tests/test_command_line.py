"""Tests the options of the command line with the emulator of Cosmos DB."""

import pytest

from multiclouddb_conformance.command_options import CommandOptions, Shown, command


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
