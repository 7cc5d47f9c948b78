"""Tests the comparison of costs: what is counted, what is computed, and the page."""

import attrs
import pytest
from typer.testing import CliRunner

from benchmarks.costs.command import app, count
from benchmarks.costs.cost import Cost, Counted
from benchmarks.costs.page import page_text, ratio_of, table_of, write_docs
from benchmarks.costs.published import PUBLISHED
from benchmarks.costs.record import Record
from benchmarks.record import ROOT

COUNTED = Counted(
    changes=10_000, reads=12, units=24.0, seconds=20.0, idle_reads=20, idle_others=5, idle_units=20.0
)


def cost(reader="ours", *, ours=False, **changes):
    return attrs.evolve(Cost.of("DynamoDB", reader, COUNTED, ours=ours), **changes)


class TestScale:
    def test_a_count_becomes_a_million_changes_and_an_hour(self):
        made = cost()
        assert (made.million_requests, made.million_units) == (1200, 2400)
        assert (made.hour_requests, made.hour_others, made.hour_units) == (3600, 900, 3600)
        assert made.delay_seconds == 1.0

    def test_a_request_that_waits_at_the_server_has_no_delay(self):
        assert Cost.of("MongoDB", "ours", COUNTED, waits=True).delay_seconds == 0

    def test_a_service_without_a_price_has_no_units(self):
        made = Cost.of("MongoDB", "ours", attrs.evolve(COUNTED, units=None, idle_units=None))
        assert made.million_units is made.hour_units is None


class TestRatio:
    def test_all_requests_are_compared_with_the_cheapest_that_asks_as_often(self):
        mine, dear = cost(ours=True), cost("dear", hour_requests=9000, hour_others=None)
        cheap = cost("cheap", hour_requests=1800, hour_others=None, delay_seconds=2.0)
        waits = cost("waits", hour_requests=1, delay_seconds=0.0)
        rows = [mine, cost(ours=True), dear, cheap, waits]
        assert ratio_of(mine, rows) == 4500 / 3600
        assert ratio_of(cheap, rows) is None
        assert " | 1.25 | " in table_of(rows).splitlines()[2]

    def test_one_that_waits_at_the_server_is_compared_with_such_or_with_a_later_one_as_it_is(self):
        mine, other = cost(ours=True, delay_seconds=0.0), cost("other", hour_requests=8100)
        assert ratio_of(mine, [mine]) is None
        assert ratio_of(mine, [mine, other]) == 0.5
        waits = cost("waits", hour_requests=900, delay_seconds=0.0)
        assert ratio_of(mine, [mine, other, waits]) == 2.5


class TestPublished:
    def test_the_vendors_readers_are_computed_and_name_their_source(self):
        for row in PUBLISHED:
            assert not row.ours
            assert "](https://" in row.known
            assert row.hour_requests == pytest.approx(3600 / row.delay_seconds)


class TestCounts:
    # An idle reader pauses for up to five seconds, and a query of Spanner that waits lasts as long.
    @pytest.mark.parametrize(
        ("service", "readers"), [("dynamo", 4), ("cosmos", 3), ("spanner", 2), ("mongo", 3)]
    )
    def test_every_reader_reads_everything_and_is_counted(self, service, readers):
        rows = count(service, changes=1200, seconds=6.0)
        assert len(rows) == readers
        assert {row.ours for row in rows} == ({True} if service == "spanner" else {True, False})
        for row in rows:
            assert row.million_requests > 0
            assert row.hour_requests > 0
            assert (row.million_units is None) is (service in {"spanner", "mongo"})


class TestPage:
    def test_it_is_made_from_the_record(self):
        kept = Record.read()
        assert kept is not None
        again = "run: python -m benchmarks.costs --redraw, or --record"
        assert (ROOT / "reference" / "costs.md").read_text(encoding="utf-8") == page_text(kept), again

    def test_a_record_comes_back_as_it_was_written(self, tmp_path):
        for folder in ("assets", "reference"):
            (tmp_path / folder).mkdir()
        made = Record((cost(ours=True),), 10_000, 20.0, "2026-01-31", "a machine")
        write_docs(made, tmp_path)
        assert Record.read(tmp_path) == made
        page = (tmp_path / "reference" / "costs.md").read_text(encoding="utf-8")
        assert "| ours | 1.0 s | 3,600 | 900 | 3,600 | 1.25 | 1,200 | 2,400 | counted |" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--only", "oracle"],
            "there is no service 'oracle'; the services are dynamo, cosmos, spanner, mongo",
        ),
        (["--record", "--only", "mongo"], "--record needs all services"),
        (["--record", "--seconds", "5"], "--record needs all services"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(words, message):
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 2
    assert ran.stderr.startswith(f"error: {message}")
