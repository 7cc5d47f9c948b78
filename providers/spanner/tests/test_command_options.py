"""Tests the command-line options with Spanner's emulator."""

import pytest

from multiclouddb_conformance.command_options import CommandOptions, Shown

from .servers.emulator import STILL, shared
from .table import Table

pytestmark = pytest.mark.emulator(*STILL)


class TestOptions(CommandOptions):
    @pytest.fixture
    def shown(self):
        emulator = shared(STILL)
        orders = Table(emulator, name="orders")
        yield Shown(
            emulator.url, orders.where, lambda key: orders.put([key, 1, "x"]), orders.delete,
            lambda key: {"id": key},
        )  # fmt: skip
        orders.drop()
