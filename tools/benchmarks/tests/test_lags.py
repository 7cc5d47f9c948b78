"""Tests the measurement of lags: the calculation, a run on each kind of reader, and the page."""

import attrs
import pytest
from typer.testing import CliRunner

from benchmarks.lags.command import app
from benchmarks.lags.lag import Lags, lags_of
from benchmarks.lags.page import page_text, write_docs
from benchmarks.lags.record import Record, Row
from benchmarks.lags.run import measure
from benchmarks.record import ROOT

LAGS = Lags(changes=12_000, again=3, seconds=600.0, median=0.02, p99=1.5, largest=6.0, without_restart=0.4)
ROW = Row("mongo", "events", LAGS, 20.0, 1.5, "0123abcd", "2026-01-31", "a machine")


def written(*times):
    """Return the lines of a writer that committed the changes 0, 1, … at these times."""
    return [{"number": number, "at": at} for number, at in enumerate(times)]


def got(*calls):
    """Return the lines of a handler, from the time and the numbers of each call."""
    return [{"at": at, "numbers": numbers} for at, *numbers in calls]


class TestLags:
    def test_every_change_counts_except_the_first_which_shows_that_the_reader_runs(self):
        found = lags_of(written(0, 10, 11, 12), got((5, 0), (10.5, 1), (13, 2, 3)), killed_at=12.5)
        assert (found.changes, found.again, found.seconds) == (3, 0, 2)
        assert (found.median, found.p99, found.largest) == (1, 2, 2)

    def test_the_outage_counts_and_is_also_left_out(self):
        # Before the kill, waiting for the restart, after it, and waiting for the first call after it.
        times = written(0, 10, 19, 25, 30, 29.9)
        calls = got((1, 0), (13, 1), (30, 2, 3), (30.5, 4, 5))
        found = lags_of(times, calls, killed_at=20)
        assert found.largest == 11
        assert found.without_restart == 3

    def test_a_change_that_came_again_counts_once_at_its_first_arrival(self):
        calls = got((1, 0), (11, 1), (16, 1), (17, 1), (18, 2))
        found = lags_of(written(0, 10, 17), calls, killed_at=15)
        assert (found.changes, found.again) == (2, 1)
        assert found.largest == 1

    def test_the_restart_ends_with_the_first_new_change_and_not_with_an_old_one(self):
        # The change 1 comes again at 16, but the change 2 had to wait for the new process until 20.
        found = lags_of(written(0, 10, 17, 21), got((1, 0), (11, 1), (16, 1), (20, 2), (21.5, 3)), 15)
        assert (found.largest, found.without_restart) == (3, 1)

    def test_a_change_that_arrives_before_its_commit_is_acknowledged_has_no_lag(self):
        found = lags_of(written(0, 10, 20), got((1, 0), (9.9, 1), (20, 2)), killed_at=15)
        assert found.largest == 0

    @pytest.mark.parametrize(
        ("calls", "message"),
        [
            ([(1, 0), (11, 1)], "1 of 3 changes did not arrive, such as 2"),
            ([(1, 0), (20, 2)], "1 of 3 changes did not arrive, such as 1"),
            ([(1, 0), (11, 1), (20, 2, 7)], "1 changes arrived that nobody committed, such as 7"),
            ([(1, 0), (11, 1), (12, 2)], "no change arrived after the reader was killed"),
        ],
    )
    def test_a_lost_or_an_invented_change_is_a_failure(self, calls, message):
        with pytest.raises(ValueError, match=message):
            lags_of(written(0, 10, 12), got(*calls), killed_at=15)


class TestRuns:
    def test_a_worker_is_killed_and_gets_everything(self, tmp_path):
        lags, load = measure("embedded", "events", seconds=4, rate=20, folder=tmp_path)
        assert lags.changes == 80
        assert 0 <= lags.median <= lags.p99 <= lags.largest
        assert lags.without_restart <= lags.largest
        assert load > 0

    @pytest.mark.parametrize(
        ("service", "reader"),
        [
            ("embedded", "spark"),
            ("mongo", "events"),
            ("dynamo", "events"),
            ("spanner", "events"),
            ("cosmos", "events"),
        ],
    )
    def test_every_database_and_spark_as_well(self, tmp_path, service, reader):
        assert measure(service, reader, seconds=4, rate=20, folder=tmp_path)[0].changes == 80

    def test_a_process_that_fails_ends_the_run_with_what_it_said(self, tmp_path):
        with pytest.raises(RuntimeError, match=r"the reader ended with status 1:\n(.|\n)*KeyError: 'nobody'"):
            measure("embedded", "nobody", seconds=4, rate=20, folder=tmp_path)


class TestPage:
    def test_it_is_made_from_the_record(self):
        again = "run: python -m benchmarks.lags --redraw, or --record"
        page = (ROOT / "reference" / "lags.md").read_text(encoding="utf-8")
        assert page == page_text(Record.read()), again

    def test_a_record_comes_back_as_it_was_written(self, tmp_path):
        for folder in ("assets", "reference"):
            (tmp_path / folder).mkdir()
        made = Record((ROW, attrs.evolve(ROW, reader="spark")))
        write_docs(made, tmp_path)
        assert Record.read(tmp_path) == made
        page = (tmp_path / "reference" / "lags.md").read_text(encoding="utf-8")
        assert "| MongoDB | worker | 20 ms | 1.5 s | 6.0 s | 400 ms | 12,000 | 3 | 1.5 |" in page
        assert "commits 20\nchanges a second for 10 minutes" in page

    def test_it_names_each_machine_once(self):
        again = attrs.evolve(ROW, reader="spark", commit="4567abcd", day="2026-02-01")
        page = page_text(Record((ROW, again, attrs.evolve(ROW, service="dynamo", setting="another"))))
        assert [line for line in page.splitlines() if line.startswith("Machine: ")] == [
            "Machine: a machine. Recorded on 2026-01-31, 2026-02-01, commits `0123abcd`, `4567abcd`.",
            "Machine: another. Recorded on 2026-01-31, commit `0123abcd`.",
        ]

    def test_a_new_row_replaces_that_of_the_same_service_and_reader(self):
        new, other = attrs.evolve(ROW, load=2.0), attrs.evolve(ROW, service="embedded")
        assert Record((ROW,)).merged([new, other], ["embedded", "mongo"]) == Record((other, new))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "oracle"], "there is no database 'oracle'; the databases are embedded, mongo, dynamo"),
        (["--reader", "kafka"], "there is no reader 'kafka'; the readers are events, spark"),
        (["--record", "--seconds", "5"], "--record needs 600 seconds and 20 changes a second"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(words, message):
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 2
    assert ran.stderr.startswith(f"error: {message}")
