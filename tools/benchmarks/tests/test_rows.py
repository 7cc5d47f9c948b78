"""Tests that every row works on a small part of its data, and that both sides read the same events."""

import json
import time

import pytest

from benchmarks.row import Bench, Section, load_rows, row
from benchmarks.rows import lag, memory
from benchmarks.rows.cost import counted
from benchmarks.rows.embedded import bare_loop, through_the_client
from benchmarks.rows.engine import ideal
from benchmarks.rows.lag import lags_of
from benchmarks.stores import fill, grow, small_document
from multiclouddb_api import ResourceAddress
from multiclouddb_conformance.simulation import Simulation

pytestmark = pytest.mark.xdist_group("jvm")

MOST = 30


class TestRows:
    @pytest.mark.timeout(3600)
    def test_the_whole_table_runs_each_row_in_a_process_of_its_own(self, run_benchmarks):
        ran = run_benchmarks("--scale", "0.002", "--json")
        rows = json.loads(ran.stdout)
        assert [(row["name"], row["reason"]) for row in rows if row["failed"]] == [], ran.stderr
        assert ran.returncode == 0
        assert [row["name"] for row in rows] == list(load_rows())
        assert [row["name"] for row in rows if not row["value"] > 0] == []

    def test_each_answers_a_question_and_they_are_few(self):
        rows = load_rows().values()
        assert len(rows) <= MOST
        questions = [each.question for each in rows]
        assert len(set(questions)) == len(questions)
        assert all(each.endswith("?") for each in questions)

    def test_two_rows_of_one_name_are_refused(self):
        with pytest.raises(ValueError, match="two rows 'memory'"):
            row("memory", Section.PROCESS)(lambda bench: iter(()))

    def test_a_small_run_does_some_of_everything(self, tmp_path):
        assert Bench(tmp_path, 0.001).size(100) == 1
        assert Bench(tmp_path).size(100) == 100


class TestWorkIsChecked:
    @pytest.fixture
    def stores(self, tmp_path):
        small, large = tmp_path / "small.db", tmp_path / "large.db"
        fill(small, 50, make=small_document)
        grow(small, large, 3)
        return small, large

    def test_a_grown_store_holds_as_many_events_each_with_its_own_id(self, stores):
        for read in (through_the_client, bare_loop):
            done = read(stores[1])
            assert done.count == len(set(done.ids)) == 150

    def test_reading_less_breaks_the_row_of_memory(self, stores):
        assert memory._whole(stores[1], 150).count == 150
        with pytest.raises(ValueError, match="read 150 of 149 events"):
            memory._whole(stores[1], 149)

    def test_peak_memory_is_the_process_own(self, stores):
        """The peak memory of a child process does not include that of the large process that starts it."""
        ballast = bytearray(400 * 2**20)
        ballast[:: 2**12] = b"x" * len(ballast[:: 2**12])
        assert memory._whole(stores[1], 150).value < 200

    def test_the_ideal_is_never_above_what_latency_allows(self):
        sim = Simulation(64)
        for number in range(640):
            sim.write(f"key-{number}", {"number": number})
        done = ideal(sim)
        assert done.count == 640
        # There is at least one read for each partition, and 64 reads run at the same time.
        assert done.seconds >= 0.02


class TestLags:
    """The arithmetic of the rows of lags; the whole table runs the readers."""

    def test_every_change_counts_except_the_first_which_shows_that_the_reader_runs(self):
        found = lags_of([0, 10, 11, 12, 30], notes((5, 0), (10.5, 1), (13, 2, 3), (31, 4)), killed_at=20)
        assert found.median == 1000
        assert (found.restart, found.again) == (11_000, 0)

    def test_a_change_that_waited_for_the_restart_does_not_count(self):
        # Before the kill, waiting for the restart, after it, and waiting for the first call after it.
        calls = notes((1, 0), (13, 1), (30, 2, 3), (30.5, 4, 5))
        found = lags_of([0, 10, 19, 25, 30, 29.9], calls, killed_at=20)
        assert found.median == 1750
        assert found.restart == 10_000

    def test_a_change_that_came_again_counts_once_at_its_first_arrival(self):
        calls = notes((1, 0), (11, 1), (16, 1), (17, 1), (18, 2), (20, 3))
        found = lags_of([0, 10, 17, 19], calls, killed_at=18.5)
        assert (found.median, found.again) == (1000, 1)

    @pytest.mark.parametrize(
        ("calls", "message"),
        [
            (((1, 0), (11, 1)), "1 of 3 changes did not arrive, such as 2"),
            (((1, 0), (11, 1), (12, 2), (13, 7)), "1 changes arrived that nobody committed, such as 7"),
            (((1, 0), (30, 1, 2)), "all changes have waited for the restart"),
        ],
    )
    def test_a_run_that_lost_or_invented_a_change_has_no_lags(self, calls, message):
        with pytest.raises(ValueError, match=message):
            lags_of([0, 10, 11], notes(*calls), killed_at=20)

    def test_a_slow_reader_is_killed_after_it_has_had_changes(self, monkeypatch, tmp_path):
        """Its changes come only when the writer waits for them."""
        written = []

        class Slow:
            def __init__(self, *_):
                self.told = notes((time.time(),))

            def wait(self, condition, seconds):
                missing = [number for number in written if number not in self.numbers()]
                self.told += notes((time.time(), *missing))
                assert condition()

            def notes(self):
                return self.told

            def numbers(self):
                return {number for line in self.told for number in line["numbers"]}

            def kill(self):
                pass

            start = kill

        monkeypatch.setattr(lag, "_Reader", Slow)
        place = lag._Place("", ResourceAddress("main", "items"), written.append)
        assert lag.measure("worker", place, 6, tmp_path).again == 0


class TestCosts:
    def test_a_reader_that_stands_still_is_an_error_and_not_few_requests(self):
        with pytest.raises(RuntimeError, match="has read 0 of 5 changes, and stands still"):
            counted(lambda seen: None, 5, 1, lambda: 0)

    def test_requests_are_counted_between_two_of_them(self):
        asked = []

        def reader(seen):
            seen.take(10)
            while not seen.over.wait(0.05):
                asked.append(1)

        done = counted(reader, 10, 0.5, lambda: len(asked))
        assert done.count >= 5
        # Each request waits for 50 ms or, on a busy machine, for longer; its time is taken just after.
        assert done.value <= 1.1 * 3600 / 0.05


def notes(*calls):
    """Return the notes of a reader, from the time and the numbers of each call of its handler."""
    return [{"at": at, "numbers": numbers} for at, *numbers in calls]
