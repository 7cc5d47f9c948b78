"""Tests that every row works on a small part of its data, and that both sides read the same events."""

import json
from functools import partial

import pytest

from benchmarks.row import Bench, Done, load_rows, row
from benchmarks.stores import fill, grow, small_document

pytestmark = pytest.mark.xdist_group("jvm")

MOST = 30


class TestRows:
    @pytest.mark.timeout(1800)
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
            row("memory")(lambda bench: iter(()))

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
        from benchmarks.rows.embedded import bare_loop, through_arrow, through_the_client

        arrow = through_arrow(stores[1], 150, 7)
        for read in (partial(through_the_client, stores[1]), arrow, partial(bare_loop, stores[1])):
            done = read()
            ids = list(done.ids)
            assert done.count == len(set(ids)) == 150

    def test_reading_less_breaks_the_row_of_memory(self, stores):
        from benchmarks.rows.memory import _fresh_process

        assert isinstance(_fresh_process(stores[1], 150), Done)
        with pytest.raises(ValueError, match="read 150 of 151 events"):
            _fresh_process(stores[1], 151)

    def test_peak_memory_is_the_process_own(self, stores):
        """The peak memory of a child process does not include that of the large process that starts it."""
        ballast = bytearray(400 * 2**20)
        ballast[:: 2**12] = b"x" * len(ballast[:: 2**12])
        from benchmarks.rows.memory import _fresh_process

        assert _fresh_process(stores[1], 150).value < 200

    def test_the_ideal_is_never_above_what_latency_allows(self):
        from benchmarks.rows.fan_out import ideal
        from multiclouddb_conformance.simulation import Simulation

        sim = Simulation(64)
        for number in range(640):
            sim.write(f"key-{number}", {"number": number})
        done = ideal(sim)
        assert done.count == 640
        # There is at least one read for each partition, and 64 reads run at the same time.
        assert done.seconds >= 0.02
