"""Tests the options of the command line with Google's emulator."""

import pytest

from testing.command_options import CommandOptions, Shown

from .servers.emulator import STILL
from .table import Table


@pytest.mark.emulator(*STILL)
class TestOptions(CommandOptions):
    @pytest.fixture
    def shown(self, own):
        orders = Table(own, name="orders")
        yield Shown(
            own.url, orders.where, lambda key: orders.put([key, 1, "x"]), orders.delete,
            lambda key: {"id": key},
        )  # fmt: skip
        orders.drop()
