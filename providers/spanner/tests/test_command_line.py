"""Tests the command line with Spanner, in real processes that are killed and started again."""

import pytest

from multiclouddb_conformance.command_line import Tail, Writer, assert_refused, follow, run
from multiclouddb_conformance.command_options import CommandOptions, Shown

from .servers.emulator import HASTY, STILL, shared
from .table import Table

pytestmark = pytest.mark.emulator(*HASTY)


@pytest.fixture
def orders():
    """Provide a table on an emulator whose partitions live for 3 to 6 seconds."""
    made = Table(shared(HASTY), name="orders")
    yield made
    made.drop()


@pytest.fixture
def where(orders):
    """Return the server and the table as arguments for the commands."""
    return orders.emulator.url, orders.where


def test_a_tail_that_is_killed_again_and_again_misses_nothing(orders, where, tmp_path):
    """The commands miss no change while another process writes and partitions split and merge."""
    orders.put(["before", 0, ""])
    tail = Tail(*where, "--from", "now", "--checkpoint", tmp_path / "position")
    writer = Writer(lambda key: orders.put([key, 0, "a document"]), pause=0.01)
    follow(tail, writer, [(None, 1), (None, 100), (None, 7)])
    assert sorted(tail.keys()) == sorted(writer.written)
    assert len(writer.written) > 50


@pytest.mark.parametrize(
    ("url", "address", "code", "category", "word"),
    [
        ("URL", "DATABASE/no_such", 4, "NOT_FOUND", "no_such"),
        ("spanner://p/i?emulator_host=localhost:9", "d/t", 8, "TRANSIENT_FAILURE", "UNAVAILABLE"),
    ],
)
def test_failures_are_one_line_with_a_way_out(where, url, address, code, category, word):
    url, address = url.replace("URL", where[0]), address.replace("DATABASE", where[1].partition("/")[0])
    ran = run("tail", url, address, "--until-idle")
    assert_refused(ran, code, category, word)
    assert len(ran.stderr.splitlines()) == 1


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
