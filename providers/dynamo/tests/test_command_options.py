"""Tests the options of the command line on DynamoDB Local."""

import itertools

import pytest

from multiclouddb_conformance.command_options import CommandOptions, Shown

from .servers.local import shared

NUMBERS = itertools.count()


class TestOptions(CommandOptions):
    @pytest.fixture
    def shown(self):
        local = shared()
        name = f"orders-{next(NUMBERS)}"
        local.create_table(name)
        client = local.client()
        return Shown(
            f"dynamo://eu-west-1?endpoint_url={local.endpoint_url}", name,
            lambda key: client.put_item(TableName=name, Item={"pk": {"S": key}}),
            lambda key: client.delete_item(TableName=name, Key={"pk": {"S": key}}),
            lambda key: {"pk": key},
            can_start_at=False,
        )  # fmt: skip
