"""Tests the options of the command line on MongoDB."""

import pytest

from multiclouddb_conformance.command_options import CommandOptions, Shown


class TestOptions(CommandOptions):
    @pytest.fixture
    def shown(self, one, database):
        orders = one.client()[database].create_collection("orders")
        return Shown(
            one.uri(), f"{database}/orders",
            lambda key: orders.insert_one({"_id": key}),
            lambda key: orders.delete_one({"_id": key}),
            lambda key: {"_id": key},
            option="allow_missing=true",
        )  # fmt: skip
