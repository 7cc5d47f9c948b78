"""Tests one row: the order of the sides, medians and verdicts, and that both sides read the same events."""

import gc

import pytest

from benchmarks.measure import UnequalError, checksum, failure, run_row, turns
from benchmarks.row import Done, load_rows


def steady(value, **settings):
    return lambda: Done(10, value=value, **settings)


class TestTurns:
    def test_sides_alternate_and_the_first_pair_is_not_counted(self, make_row):
        order = []

        def side(name, values):
            def run():
                order.append(name)
                return Done(1, value=values.pop(0))

            return run

        ours = side("o", [1000.0, 5.0, 1.0, 4.0, 2.0, 3.0])
        result = run_row(make_row(ours, side("b", [1000.0, 10.0, 10.0, 10.0, 10.0, 900.0]), goal=0.1))
        assert "".join(order) == "obbo" * 3
        assert (result.value, result.baseline, result.ratio) == (3.0, 10.0, pytest.approx(0.3))
        assert result.pairs == 5

    @pytest.mark.parametrize(("pairs", "warm_up", "expected"), [(2, True, 3), (1, False, 1)])
    def test_a_warm_up_is_one_pair_more(self, pairs, warm_up, expected):
        assert len(turns(pairs, warm_up=warm_up)) == expected

    def test_every_row_counts_several_pairs_but_those_of_fresh_processes_of_counts_and_of_a_million_rows(
        self,
    ):
        few = {name: row for name, row in load_rows().items() if row.pairs < 3}
        assert not any(row.warm_up for row in few.values())
        assert set(few) == {
            "copy-delta",
            "copy-postgres",
            "copy-spark",
            "cost-cosmos",
            "cost-dynamo",
            "lag-spark",
            "lag-worker",
            "memory",
            "memory-large",
        }

    def test_the_garbage_collector_is_on(self, make_row):
        states = []

        def ours():
            states.append(gc.isenabled())
            return Done(10)

        run_row(make_row(ours))
        assert all(states)


class TestFigures:
    def test_a_value_is_the_count_a_second_unless_it_is_given(self, make_row):
        result = run_row(make_row(lambda: Done(10, seconds=2.0), lambda: Done(10, seconds=0.5)))
        assert (result.value, result.baseline, result.ratio) == (5.0, 20.0, 0.25)

    def test_notes_are_medians_too(self, make_row):
        numbers = iter([9.0, 1.0, 2.0, 3.0])
        ours = lambda: Done(10, value=1.0, notes={"small": next(numbers)})  # noqa: E731
        assert run_row(make_row(ours, steady(1.0), pairs=3)).notes == {"small": 2.0}


class TestVerdict:
    @pytest.mark.parametrize(
        ("ours", "goal", "at_most", "verdict"),
        [
            (1.0, 0.5, False, "met"),
            (0.9, 0.5, False, "missed"),
            (1.0, 0.5, True, "met"),
            (1.1, 0.5, True, "missed"),
        ],
    )
    def test_a_goal_bounds_the_ratio(self, make_row, ours, goal, at_most, verdict):
        result = run_row(make_row(steady(ours), steady(2.0), goal=goal, at_most=at_most))
        assert result.verdict == verdict

    def test_without_a_baseline_it_bounds_the_value(self, make_row):
        result = run_row(make_row(steady(7.0), None, goal=10, at_most=True, unit="bytes"))
        assert (result.ok, result.ratio, result.baseline) == (True, None, None)
        assert (result.goal_text, result.achieved_text) == ("≤ 10 bytes", "7.0 bytes")

    def test_a_miss_has_what_is_known(self, make_row):
        result = run_row(make_row(steady(1.0), steady(2.0), reason="Known to be slow."))
        assert result.reason == "Known to be slow."

    def test_a_goal_that_is_met_needs_no_reason(self, make_row):
        assert run_row(make_row(steady(2.0), steady(1.0), reason="Known.")).reason == ""

    def test_a_failure_is_one_line(self, make_row):
        result = failure(make_row(steady(1.0)), ValueError("no store\nand more"))
        assert (result.verdict, result.reason) == ("failed", "ValueError: no store")
        assert result.value is None


class TestSameWork:
    def test_reading_less_fails_the_row(self, make_row):
        with pytest.raises(UnequalError, match="ours read 9 and the baseline 10"):
            run_row(make_row(lambda: Done(9), lambda: Done(10)))

    def test_reading_one_event_twice_fails_the_row(self, make_row):
        with pytest.raises(UnequalError, match="not the same ids"):
            run_row(make_row(lambda: Done(2, ["a", "a"]), lambda: Done(2, ["a", "b"])))

    def test_reading_nothing_fails_the_row(self, make_row):
        with pytest.raises(UnequalError, match="nothing was read"):
            run_row(make_row(lambda: Done(0), lambda: Done(0)))

    def test_order_is_no_difference(self, make_row):
        run_row(make_row(lambda: Done(2, ["b", "a"]), lambda: Done(2, (text for text in "ab"))))

    def test_a_checksum_made_elsewhere_is_taken(self):
        assert checksum(checksum(["a", "b"])) == checksum(["b", "a"])

    def test_rows_that_compare_amounts_may_differ(self, make_row):
        run_row(make_row(lambda: Done(9), lambda: Done(10), same_work=False))
