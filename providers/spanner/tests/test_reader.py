"""Tests reads of one partition. Each change comes exactly once, wherever a page or a process ends."""

import itertools
import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from multiclouddb_api import ErrorCategory
from multiclouddb_spanner.records import Children, Heartbeat
from multiclouddb_spanner.source import RequestSizes
from multiclouddb_spi import Child, Continue, Drained, ProviderFault, Reached

from .fake import ORIGIN, FakeStream, fetch, names, record

BEGIN = [ORIGIN]
HOUR = 3_600_000_000


def every_change(records):
    found = [(each.at, each.transaction, each.sequence, len(each.mods)) for each in records]
    return [(*name, nth) for *name, count in found for nth in range(count)]


def stored(cursor):
    """Return the position after encoding and decoding, as in a token."""
    return json.loads(json.dumps(cursor))


def singles(count):
    """Return transactions of one change each, a microsecond apart."""
    return [record(at, "t", 0, 1) for at in range(1, count + 1)]


@st.composite
def logs(draw):
    found = []
    for at in sorted(draw(st.sets(st.integers(1, 60), min_size=1, max_size=6))):
        sequences = dict.fromkeys("abc"[: draw(st.integers(1, 3))], 0)
        for _ in range(draw(st.integers(1, 5))):
            transaction = draw(st.sampled_from(sorted(sequences)))
            found.append(record(at, f"{at}{transaction}", sequences[transaction], draw(st.integers(1, 4))))
            sequences[transaction] += 1
    return found


class TestEveryPlace:
    STEPS = st.tuples(st.integers(1, 6), st.sampled_from(["same", "new", "breaks"]), st.integers(0, 4))

    @given(logs(), st.data())
    def test_each_change_comes_once_through_any_life(self, records, data):
        """Readers are replaced after any change and answers break off; each has equal times in its order."""
        ends, since = data.draw(st.sampled_from([None, 62])), data.draw(st.sampled_from([0, 1, 20, 60, 61]))
        order, message, slots = data.draw(
            st.tuples(st.lists(st.integers(0, 8), max_size=4), st.integers(1, 4), st.integers(0, 1))
        )
        stream = FakeStream(records, ends=ends, message=message, slots=slots, order=order)
        stream.client.time = 70
        cursor, seen = [ORIGIN, ORIGIN + since] if since else BEGIN, []
        reader, over = stream.reader(cursor), False
        steps = itertools.chain(data.draw(st.lists(self.STEPS, max_size=12)), itertools.repeat((5, "new", 0)))
        while not over:
            most, how, lost = next(steps)
            stream.breaks = lost + 1 if how == "breaks" else 0
            try:
                batch = fetch(reader, most)
            except ConnectionError:
                count = 0
            else:
                assert len(batch) <= most
                count = len(batch) if how != "new" else max(0, len(batch) - lost)
                seen += names(batch)[:count]
                cursor = batch.cursor_after(count)
                over = count == len(batch) and (batch.caught_up or not isinstance(batch.outcome, Continue))
            if how != "same":
                reader.close()
                reader = stream.reader(stored(cursor))
        reader.close()
        assert isinstance(batch.outcome, Drained) == bool(ends)
        assert stream.open == 0
        wanted = [each for each in every_change(records) if each[0] >= ORIGIN + since]
        if not order:
            assert seen == wanted
        assert sorted(seen) == sorted(wanted)
        assert [at for at, *_ in seen] == sorted(at for at, *_ in seen)
        for name in {name for _, name, *_ in wanted}:
            assert [each for each in seen if each[1] == name] == [each for each in wanted if each[1] == name]

    @given(logs(), st.data())
    def test_a_range_has_the_same_changes_whenever_it_is_read(self, records, data):
        stream = FakeStream(records, message=3)
        everything = every_change(records)
        batch = fetch(stream.reader(BEGIN))
        start = data.draw(st.integers(0, len(everything)))
        stop = data.draw(st.integers(start, len(everything)))
        cursors = [stored(batch.cursor_after(number)) for number in (start, stop)]
        stream.ends = 70  # the partition is split in the meantime
        stream.records = [*records, record(68, "later", 0, 2)]
        stream.client.time = 100
        reader, seen = stream.reader(*cursors), []
        while not isinstance((batch := fetch(reader, 2)).outcome, Reached):
            seen += names(batch)
        assert seen + names(batch) == everything[start:stop]
        assert batch.cursor_after(len(batch)) == cursors[1] or not len(batch)
        again = fetch(reader)
        assert (len(again), again.outcome) == (0, Reached())

    @example(1)
    @given(st.integers(1, 4))
    def test_a_record_begun_earlier_leaves_the_marks_of_others(self, taken):
        """After t1 and the rest of the partly delivered transaction t5, the position contains t1's mark."""
        stream = FakeStream([record(1, "t1", 0, 5), record(1, "t5", 0, 5)], message=1, order=[1, 0, 0, 0])
        first = fetch(stream.reader(BEGIN), taken)
        second = fetch(stream.reader(stored(first.cursor_after(taken))), 10 - taken)
        cut = second.cursor_after(10 - taken)
        assert cut == [ORIGIN + 1, {"t1": ["00000000", 5], "t5": ["00000000", 5]}]

    def test_a_new_answer_in_another_order_skips_nothing(self):
        """No slot is free, so each fetch asks again. The first record of the second answer was not begun."""
        stream = FakeStream([record(5, "t", 0, 3), record(5, "u", 0, 3)], slots=0, order=[0, 0, 1, 1])
        reader = stream.reader(BEGIN)
        seen = [*names(fetch(reader, 2)), *names(fetch(reader, 4))]
        assert sorted(seen) == every_change(stream.records)

    def test_a_bound_that_is_reached_at_the_start_asks_nothing(self):
        stream = FakeStream([record(3, "a", 0, 2)])
        batch = fetch(stream.reader([ORIGIN + 2], [ORIGIN + 2]))
        assert (len(batch), batch.outcome, stream.windows) == (0, Reached(), [])

    def test_a_bound_before_the_start_asks_whether_the_partition_had_ended(self):
        stream = FakeStream([record(3, "a", 0, 2), record(4, "b", 0, 1)])
        batch = fetch(stream.reader([ORIGIN + 4], [ORIGIN + 2]))
        assert (len(batch), batch.outcome, stream.windows) == (0, Reached(), [(4, 4)])

    def test_an_error_in_the_middle_of_a_message_keeps_what_was_taken_before_it(self):
        stream, asked = FakeStream(singles(8), message=3), []

        def watched_whole(record, scope):
            asked.append(record.at - ORIGIN)
            if asked[-1] == 5 and asked.count(5) == 1:
                raise ConnectionError("the schema cannot be read")
            return True

        stream.watched_whole = watched_whole
        reader = stream.reader(BEGIN)
        first = fetch(reader)
        assert (len(first), first.end) == (4, first.cursor_after(4))
        found = names(first)
        while len(found) < 8:
            found += names(fetch(reader))
        assert found == every_change(stream.records)

    def test_an_answer_that_begins_too_early_repeats_nothing(self):
        stream = FakeStream([record(3, "a", 0, 2), record(5, "b", 0, 3)])
        asked = stream.window
        stream.window = lambda token, start, *rest, **settings: asked(token, ORIGIN, *rest, **settings)
        assert names(fetch(stream.reader([ORIGIN + 5]))) == every_change(stream.records)[2:]


class TestWindows:
    def test_an_idle_partition_moves_to_the_service_s_now(self):
        stream = FakeStream([])
        reader = stream.reader(BEGIN)
        for now in (10, 20):
            stream.client.time = now
            batch = fetch(reader)
            assert (len(batch), batch.caught_up, batch.end) == (0, True, [ORIGIN + now + 1])
        assert stream.windows == [(0, 10), (11, 20)]

    def test_a_position_ahead_of_the_clock_is_read_at_itself(self):
        stream = FakeStream([])
        stream.client.time = 10
        batch = fetch(stream.reader([ORIGIN + 50]))
        assert stream.windows == [(50, 50)]
        assert (batch.end, batch.caught_up) == ([ORIGIN + 51], True)

    def test_a_wait_reads_five_seconds_ahead_and_ends_ten_later(self):
        stream, left = FakeStream([]), []
        stream.client.time, asked = 10, stream.window

        def window(token, start, end, scope, **settings):
            left.append(scope.deadline.remaining())
            return asked(token, start, end, scope, **settings)

        stream.window = window
        for wait, ahead in ((1.0, 1_000_000), (60.0, 5_000_000)):
            fetch(stream.reader(BEGIN), wait=wait)
            assert stream.windows[-1] == (0, 10 + ahead)
            assert left[-1] <= ahead / 1e6 + 10
        fetch(stream.reader(BEGIN))
        assert left[-1] > 20

    def test_much_past_is_read_piece_by_piece(self):
        stream = FakeStream([])
        stream.client.time = 10 * HOUR
        reader = stream.reader(BEGIN)
        while not (batch := fetch(reader)).caught_up:
            assert batch.caught_up is False
        assert [(end - start) / HOUR for start, end in stream.windows][:3] == pytest.approx([1, 2, 4])

    def test_the_rest_of_an_answer_takes_no_query_while_a_place_is_free(self):
        stream = FakeStream(singles(49), message=7, slots=1)
        reader = stream.reader(BEGIN)
        assert [len(fetch(reader, 5)) for _ in range(9)] == [5] * 9
        assert len(stream.windows) == 1
        assert stream.open == 1
        other = stream.reader(BEGIN)
        assert [len(fetch(other, 5)) for _ in range(2)] == [5, 5]
        assert len(stream.windows) == 3
        assert stream.open == 1
        reader.close()
        fetch(other, 5)
        assert stream.open == 1
        other.close()
        assert stream.open == 0

    def test_without_a_place_windows_become_shorter(self):
        stream = FakeStream([record(at * HOUR // 4, "t", 0, 5) for at in range(1, 12)], slots=0)
        reader = stream.reader(BEGIN)
        for _ in range(4):
            assert len(fetch(reader, 2)) == 2
        assert [HOUR / (end - start) for start, end in stream.windows] == [1, 2, 4, 8]

    def test_an_open_answer_is_left_that_may_last_longer_than_the_fetch(self):
        stream = FakeStream(singles(19))
        stream.client.time = 30
        reader = stream.reader(BEGIN)
        assert len(fetch(reader, 2, wait=5.0)) == 2
        assert len(fetch(reader, 2)) == 2
        assert len(stream.windows) == 2

    def test_bytes_bound_a_fetch(self):
        assert len(fetch(FakeStream(singles(19)).reader(BEGIN), nbytes=450)) == 5

    def test_a_request_is_smaller_after_a_failure_and_larger_after_four_answers(self):
        sizes = RequestSizes(1000)
        sizes.arrived("a")
        assert sizes.of("a") is None
        sizes.broke("a", 1600)
        sizes.broke("b", 2)
        assert (sizes.of("a"), sizes.of("b"), sizes.of("c")) == (400, 1, None)
        for _ in range(3):
            sizes.arrived("a")
        assert sizes.of("a") == 400
        sizes.arrived("a")
        assert sizes.of("a") == 800
        sizes.arrived("b", small=True)
        assert sizes.of("b") == 2
        sizes.arrived("a", small=True)
        assert sizes.of("a") is None


class Stopwatch:
    """A clock that moves only when the test advances it, and shows a later time than the machine's clock."""

    def __init__(self, monkeypatch):
        self.now = time.monotonic() + 3600
        monkeypatch.setattr("multiclouddb_spanner.reader.time", self)

    def monotonic(self):
        return self.now


class TestPauses:
    def slow(self, stream, clock, took):
        asked = stream.window

        def window(*arguments, **settings):
            made = asked(*arguments, **settings)
            made.began = clock.now
            clock.now += took
            return made

        stream.window = window
        return stream

    @pytest.mark.parametrize(("took", "pause"), [(0.004, 0.05), (0.02, 0.2), (9.0, 1.0)])
    def test_an_idle_partition_pauses_ten_times_as_long_as_its_query_took(self, took, pause, monkeypatch):
        stream = self.slow(FakeStream([]), Stopwatch(monkeypatch), took)
        assert fetch(stream.reader(BEGIN)).poll_after == pytest.approx(pause)

    @pytest.mark.parametrize(("took", "proven"), [(0.9, False), (1.2, True)])
    def test_a_wait_of_more_than_half_its_time_proves_that_nothing_is_there(self, took, proven, monkeypatch):
        stream = self.slow(FakeStream([]), Stopwatch(monkeypatch), took)
        assert fetch(stream.reader(BEGIN), wait=2.0).caught_up is proven
        assert stream.client.forgotten is not proven  # this machine may have slept

    def test_nothing_pauses_after_a_change_or_a_wait(self):
        stream = FakeStream([record(5, "t", 0, 1)])
        assert fetch(stream.reader(BEGIN)).poll_after == 0.0
        assert fetch(stream.reader([ORIGIN + 7]), wait=1e-6).poll_after == 0.0


class TestEnds:
    def ended(self, *records, **settings):
        stream = FakeStream(list(records), ends=9, **settings)
        stream.client.time = 30
        return stream

    def test_children_come_with_the_last_changes_and_again_after_them(self):
        stream = self.ended(record(5, "t", 0, 3))
        batch = fetch(stream.reader(BEGIN))
        child = Child("child", ("p", "q"), [ORIGIN + 9])
        assert (len(batch), batch.outcome) == (3, Drained((child,)))
        again = fetch(stream.reader(stored(batch.cursor_after(3))))
        assert (len(again), again.outcome) == (0, Drained((child,)))

    def test_a_full_page_leaves_the_end_for_the_next_one(self):
        reader = self.ended(record(5, "t", 0, 3)).reader(BEGIN)
        assert fetch(reader, 2).outcome == Continue()
        assert isinstance(fetch(reader, 2).outcome, Drained)

    def test_a_child_inherits_what_is_not_wanted(self):
        batch = fetch(self.ended().reader([ORIGIN, ORIGIN + 20]))
        assert batch.outcome == Drained((Child("child", ("p", "q"), [ORIGIN + 9, ORIGIN + 20]),))

    def test_a_heartbeat_at_the_end_keeps_the_position_inside_the_partition(self):
        """An answer ends between the heartbeat and the children. The children come with the next answer."""
        stream = self.ended(Heartbeat(ORIGIN + 9), message=1)
        stream.breaks = 2
        first = fetch(stream.reader(BEGIN))
        assert (len(first), first.outcome, first.end) == (0, Continue(), [ORIGIN + 9])
        assert isinstance(fetch(stream.reader(stored(first.end))).outcome, Drained)

    def test_a_heartbeat_behind_the_children_does_not_pass_them(self):
        """An answer ends after a heartbeat that follows the children. They come with the next answer."""
        children = Children(ORIGIN + 9, {"child": ("p", "q")})
        stream = FakeStream([children, Heartbeat(ORIGIN + 12)], message=1)
        stream.client.time, stream.breaks = 30, 3
        reader = stream.reader(BEGIN)
        with pytest.raises(ConnectionError):
            fetch(reader)
        while not (batch := fetch(reader)).caught_up and batch.outcome == Continue():
            pass
        assert isinstance(batch.outcome, Drained)

    def test_an_end_that_is_still_to_come_is_none(self):
        stream = self.ended()
        stream.client.time = 8
        reader = stream.reader(BEGIN)
        assert fetch(reader).outcome == Continue()
        stream.client.time = 9
        assert isinstance(fetch(reader).outcome, Drained)


class TestRequired:
    @pytest.mark.parametrize(
        ("field", "capture", "kind"),
        [
            ("new", "OLD_AND_NEW_VALUES", "UPDATE"),
            ("new", "NEW_VALUES", "UPDATE"),
            ("old", "NEW_ROW", "UPDATE"),
            ("old", "OLD_AND_NEW_VALUES", "UPDATE"),
            ("old", "NEW_ROW", "DELETE"),
        ],
    )
    def test_what_lacks_its_row_is_refused_after_what_has_it(self, field, capture, kind):
        good = record(5, "t", 0, 2, kind="UPDATE", capture="NEW_ROW_AND_OLD_VALUES")
        stream = FakeStream([good, record(7, "u", 0, 1, kind=kind, capture=capture)])
        required = {f"require_{field}": True}
        reader = stream.reader(BEGIN, **required)
        first = fetch(reader)
        assert (len(first), first.caught_up) == (2, False)
        for again in (reader, stream.reader(stored(first.end), **required)):
            with pytest.raises(ProviderFault, match=f"{field}_item_state_mode=REQUIRE") as caught:
                fetch(again)
            assert caught.value.fault.category == ErrorCategory.UNSUPPORTED_CAPABILITY
            assert "ALTER CHANGE STREAM s" in caught.value.fault.message

    @pytest.mark.parametrize("kind", ["INSERT", "DELETE"])
    def test_an_insert_has_its_row_and_a_delete_has_none(self, kind):
        stream = FakeStream([record(5, "t", 0, 2, kind=kind, capture="NEW_VALUES")])
        assert len(fetch(stream.reader(BEGIN, require_new=True))) == 2

    def test_a_stream_that_leaves_columns_out_by_now_has_no_rows(self):
        stream = FakeStream([record(5, "t", 0, 1)])
        whole, stream.whole = fetch(stream.reader(BEGIN)), False
        assert whole.events(0, 1)[0].new_item_state == {"id": f"{ORIGIN + 5}-t-0-0", "n": "1"}
        assert fetch(stream.reader(BEGIN)).events(0, 1)[0].new_item_state is None
        for field in ("new", "old"):
            with pytest.raises(ProviderFault, match=f"{field}_item_state_mode=REQUIRE: .*all columns"):
                fetch(stream.reader(BEGIN, **{f"require_{field}": True}))
