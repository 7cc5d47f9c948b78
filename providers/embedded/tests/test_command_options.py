"""Tests the command-line options with the embedded store."""

import pytest

from multiclouddb_embedded import EmbeddedStore
from testing.command_options import CommandOptions, Shown


class TestOptions(CommandOptions):
    @pytest.fixture
    def shown(self, tmp_path):
        with EmbeddedStore(tmp_path / "shop.db", durable=False) as store:
            store.create_collection("orders", 2)
            yield Shown(
                f"embedded://{store.path}", "main/orders",
                lambda key: store.put("orders", key, {"n": 1}),
                lambda key: store.delete("orders", key),
                lambda key: {"id": key},
                option="poll_seconds=0.01",
            )  # fmt: skip
