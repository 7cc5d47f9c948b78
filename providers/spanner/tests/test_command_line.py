"""Tests the command line with Spanner, in real processes that are killed and started again."""

import re

import pytest

from multiclouddb_conformance.command_line import Tail, Writer, assert_refused, facts, follow, run, said
from multiclouddb_conformance.command_options import CommandOptions, Shown

from .servers.emulator import HASTY, STILL, shared
from .table import Table

pytestmark = pytest.mark.emulator(*HASTY)


@pytest.fixture(scope="module")
def emulator():
    """Provide an emulator whose partitions live for 3 to 6 seconds."""
    return shared(HASTY)


@pytest.fixture
def orders(emulator):
    made = Table(emulator, name="orders")
    yield made
    made.drop()


@pytest.fixture
def where(emulator, orders):
    """Return the server and the table as arguments for the commands."""
    return emulator.url, orders.where


class TestTail:
    def test_killed_again_and_again_it_misses_nothing(self, orders, where, tmp_path):
        """The commands miss no change while another process writes and partitions split and merge."""
        orders.put(["before", 0, ""])
        tail = Tail(*where, "--from", "now", "--checkpoint", tmp_path / "position")
        writer = Writer(lambda key: orders.put([key, 0, "a document"]), pause=0.01)
        follow(tail, writer, [(None, 1), (None, 100), (None, 7)])
        assert sorted(tail.keys()) == sorted(writer.written)
        assert len(writer.written) > 50

    def test_its_lines_have_whole_rows_and_types(self, orders, where):
        orders.put(["o-1", 1, "x"])
        orders.put(["o-1", 2, "x"])
        orders.delete("o-1")
        lines = said("tail", *where, "--from", "beginning", "--until-idle").splitlines()
        assert [line.split()[1:3] for line in lines] == [
            [kind, 'id="o-1"'] for kind in ("CREATE", "UPDATE", "DELETE")
        ]
        assert lines[1].endswith('{"id":"o-1","n":2,"text":"x"}')


class TestOthers:
    def test_partitions_are_listed(self, where):
        first, *lines = said("partitions", *where).splitlines()
        assert re.fullmatch(r"(\d+) partitions?: \1 open, 0 closed", first)
        assert all("open" in line and "spanner:" in line for line in lines)

    def test_a_token_is_checked_and_inspected(self, orders, where, tmp_path):
        said("tail", *where, "--until-idle", "--checkpoint", tmp_path / "position")
        token = f"@{tmp_path}/position"
        found = facts("token", "check", where[0], token)
        assert (found["resumes"], found["changes"]) == ("yes", "none at present")
        orders.put(["o-1", 1, "a document"])
        out = said("token", "check", where[0], token)
        assert re.search(r"^changes +waiting$", out, re.MULTILINE)
        assert "a document" not in out
        found = facts("token", "inspect", token)
        assert (found["provider"], found["resource"]) == ("spanner", orders.where)

    @pytest.mark.parametrize(
        ("url", "address", "code", "category", "word"),
        [
            ("URL", "DATABASE/no_such", 4, "NOT_FOUND", "no_such"),
            ("URL", "orders", 3, "INVALID_REQUEST", "database"),
            ("URL&change_stream=other", "DATABASE/orders", 4, "NOT_FOUND", "orders_stream"),
            ("spanner://p/i?emulator_host=localhost:9", "d/t", 8, "TRANSIENT_FAILURE", "UNAVAILABLE"),
            ("spanner://p", "d/t", 3, "INVALID_REQUEST", "instance"),
        ],
    )
    def test_failures_are_one_line_with_a_way_out(self, orders, where, url, address, code, category, word):
        url, address = url.replace("URL", where[0]), address.replace("DATABASE", where[1].partition("/")[0])
        ran = run("tail", url, address, "--until-idle")
        assert_refused(ran, code, category, word.replace("orders_stream", "items_stream"))
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
