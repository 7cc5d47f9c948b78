"""Tests reads of one partition. Each change comes exactly once, wherever a page or a process ends."""

import json
import time
from collections import deque

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from multiclouddb_api import ErrorCategory
from multiclouddb_spanner.records import Heartbeat
from multiclouddb_spanner.source import RequestSizes
from multiclouddb_spi import Child, Continue, Drained, ProviderFault, Reached

from .fake import ORIGIN, FakeStream, fetch, names, record

BEGIN = [ORIGIN]


def every_change(records):
    found = [(each.at, each.transaction, each.sequence, len(each.mods)) for each in records]
    return [(*name, nth) for *name, count in found for nth in range(count)]


def stored(cursor):
    """Return the position after encoding and decoding, as in a token."""
    return json.loads(json.dumps(cursor))


@st.composite
def logs(draw):
    """Generate commits, some with the same timestamp.

    The records of transactions with the same timestamp are interleaved.
    """
    found = []
    for at in sorted(draw(st.sets(st.integers(1, 60), min_size=1, max_size=6))):
        sequences = dict.fromkeys("abc"[: draw(st.integers(1, 3))], 0)
        for _ in range(draw(st.integers(1, 5))):
            transaction = draw(st.sampled_from(sorted(sequences)))
            found.append(record(at, f"{at}{transaction}", sequences[transaction], draw(st.integers(1, 4))))
            sequences[transaction] += 1
    return found


def test_a_request_is_smaller_after_a_failure_and_larger_after_four_answers():
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


class TestEveryPlace:
    @given(logs(), st.integers(1, 5), st.integers(1, 4), st.lists(st.integers(0, 3)), st.booleans())
    def test_a_new_process_at_any_place_goes_on_exactly_there(self, records, most, message, taken, ends):
        """A new process continues at the exact position of the previous one. Each run delivers some of the
        records."""
        stream = FakeStream(records, ends=62 if ends else None, message=message)
        stream.client.time = 70
        cursor, seen = BEGIN, []
        lives = iter(taken)
        for _ in range(400):
            reader = stream.reader(stored(cursor))
            batch = fetch(reader, most)
            if next(lives, 0) == 3:
                cursor, seen = batch.cursor_after(len(batch)), seen + names(batch)
                batch = fetch(reader, most)
            count = max(len(batch) - next(lives, 0), 0) if len(batch) else 0
            seen += names(batch)[:count]
            cursor = batch.cursor_after(count)
            reader.close()
            done = count == len(batch) and (batch.caught_up or not isinstance(batch.outcome, Continue))
            if done:
                break
        assert seen == every_change(records)
        assert isinstance(batch.outcome, Drained) == ends
        assert stream.open == 0

    @given(logs(), st.integers(1, 7), st.integers(1, 4))
    def test_one_reader_reads_everything_through_small_fetches(self, records, most, message):
        stream = FakeStream(records, message=message)
        reader, seen = stream.reader(BEGIN), []
        while not (batch := fetch(reader, most)).caught_up:
            assert len(batch) <= most
            seen += names(batch)
        assert seen + names(batch) == every_change(records)
        assert stream.open == 0
        assert len(stream.windows) == 1

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

    @given(logs(), st.integers(1, 8))
    def test_an_answer_that_breaks_off_loses_nothing(self, records, breaks):
        stream = FakeStream(records, message=1)
        reader, seen, cursor = stream.reader(BEGIN), [], BEGIN
        stream.breaks = breaks
        while True:
            try:
                batch = fetch(reader, 4)
            except ConnectionError:
                reader.close()
                reader = stream.reader(stored(cursor))
                continue
            seen += names(batch)
            cursor = batch.cursor_after(len(batch))
            if batch.caught_up:
                break
        assert seen == every_change(records)

    @given(logs(), st.integers(0, 70))
    def test_what_was_committed_before_the_start_is_left_out(self, records, since):
        stream = FakeStream(records)
        stream.client.time = 100
        cursor, seen = [ORIGIN, ORIGIN + since] if since else BEGIN, []
        while True:
            reader = stream.reader(stored(cursor))
            batch = fetch(reader, 1)
            seen += names(batch)
            cursor = batch.cursor_after(len(batch))
            reader.close()
            if batch.caught_up:
                break
        assert seen == [each for each in every_change(records) if each[0] >= ORIGIN + since]


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

    def test_a_wait_reads_ahead_of_the_clock_for_five_seconds_at_most(self):
        stream = FakeStream([])
        stream.client.time = 10
        for wait, ahead in ((1.0, 1_000_000), (60.0, 5_000_000)):
            fetch(stream.reader(BEGIN), wait=wait)
            assert stream.windows[-1] == (0, 10 + ahead)

    def test_a_waiting_answer_is_given_up_ten_seconds_after_its_wait(self):
        stream, left = FakeStream([]), []
        asked = stream.window

        def window(token, start, end, scope, **settings):
            left.append(scope.deadline.remaining())
            return asked(token, start, end, scope, **settings)

        stream.window = window
        fetch(stream.reader(BEGIN), wait=2.0)
        fetch(stream.reader(BEGIN))
        assert left[0] <= 12 < 50 < left[1]

    def test_much_past_is_read_piece_by_piece(self):
        stream = FakeStream([])
        stream.client.time = 10 * 3600 * 1_000_000
        reader, lengths = stream.reader(BEGIN), []
        while not (batch := fetch(reader)).caught_up:
            assert batch.caught_up is False
        lengths = [(end - start) / 3600e6 for start, end in stream.windows]
        assert lengths[:3] == pytest.approx([1, 2, 4])

    def test_what_is_left_of_an_answer_is_served_without_another_query(self):
        stream = FakeStream([record(at, "t", 0, 1) for at in range(1, 50)], message=7)
        reader = stream.reader(BEGIN)
        assert [len(fetch(reader, 5)) for _ in range(9)] == [5] * 9
        assert len(stream.windows) == 1

    def test_without_a_place_for_an_open_answer_it_is_asked_again(self):
        stream = FakeStream([record(at, "t", 0, 1) for at in range(1, 20)], slots=0)
        reader, seen = stream.reader(BEGIN), []
        while not (batch := fetch(reader, 5)).caught_up:
            seen += names(batch)
            assert stream.open == 0
        assert seen + names(batch) == every_change(stream.records)

    def test_without_a_place_windows_become_shorter(self):
        hour = 3_600_000_000
        stream = FakeStream([record(at * hour // 4, "t", 0, 5) for at in range(1, 12)], slots=0)
        reader = stream.reader(BEGIN)
        for _ in range(4):
            assert len(fetch(reader, 2)) == 2
        lengths = [end - start for start, end in stream.windows]
        assert lengths == [hour, hour // 2, hour // 4, hour // 8]

    def test_places_are_given_back(self):
        stream = FakeStream([record(at, "t", 0, 1) for at in range(1, 20)], slots=1)
        for _ in range(5):
            reader = stream.reader(BEGIN)
            fetch(reader, 5)
            assert stream.open == 1
            reader.close()
            assert stream.open == 0

    def test_an_open_answer_is_left_that_may_last_longer_than_the_fetch(self):
        stream = FakeStream([record(at, "t", 0, 1) for at in range(1, 20)])
        stream.client.time = 30
        reader = stream.reader(BEGIN)
        assert len(fetch(reader, 2, wait=5.0)) == 2
        assert len(fetch(reader, 2)) == 2
        assert len(stream.windows) == 2

    def test_bytes_bound_a_fetch(self):
        stream = FakeStream([record(at, "t", 0, 1) for at in range(1, 20)])
        assert len(fetch(stream.reader(BEGIN), nbytes=450)) == 5


class TestPauses:
    @pytest.mark.parametrize(
        ("took", "pause"), [(0.0, 0.05), (0.004, 0.05), (0.02, 0.2), (0.099, 0.99), (0.2, 1.0), (9.0, 1.0)]
    )
    def test_an_idle_partition_pauses_ten_times_as_long_as_its_query_took(self, took, pause, monkeypatch):
        stream, clock = FakeStream([]), Stopwatch()
        monkeypatch.setattr("multiclouddb_spanner.reader.time", clock)
        asked = stream.window

        def slow(*arguments, **settings):
            clock.now += took
            return asked(*arguments, **settings)

        stream.window = slow
        assert fetch(stream.reader(BEGIN)).poll_after == pytest.approx(pause)

    @pytest.mark.parametrize(("took", "proven"), [(0.9, False), (1.2, True)])
    def test_a_wait_of_more_than_half_its_time_proves_that_nothing_is_there(self, took, proven, monkeypatch):
        stream, clock = FakeStream([]), Stopwatch()
        monkeypatch.setattr("multiclouddb_spanner.reader.time", clock)
        asked = stream.window

        def slow(*arguments, **settings):
            window = asked(*arguments, **settings)
            window.began = clock.now
            clock.now += took
            return window

        stream.window = slow
        assert fetch(stream.reader(BEGIN), wait=2.0).caught_up is proven

    def test_nothing_pauses_after_a_change_or_a_wait(self):
        stream = FakeStream([record(5, "t", 0, 1)])
        assert fetch(stream.reader(BEGIN)).poll_after == 0.0
        assert fetch(stream.reader([ORIGIN + 7]), wait=1e-6).poll_after == 0.0


class Stopwatch:
    """A clock that moves only when the test advances it, and shows a later time than the machine's clock."""

    def __init__(self):
        self.now = time.monotonic() + 3600

    def monotonic(self):
        return self.now


class TestEnds:
    def test_children_come_with_the_last_changes_and_again_after_them(self):
        stream = FakeStream([record(5, "t", 0, 3)], ends=9)
        stream.client.time = 30
        batch = fetch(stream.reader(BEGIN))
        child = Child("child", ("p", "q"), [ORIGIN + 9])
        assert (len(batch), batch.outcome) == (3, Drained((child,)))
        again = fetch(stream.reader(stored(batch.cursor_after(3))))
        assert (len(again), again.outcome) == (0, Drained((child,)))

    def test_a_full_page_leaves_the_end_for_the_next_one(self):
        stream = FakeStream([record(5, "t", 0, 3)], ends=9)
        stream.client.time = 30
        reader = stream.reader(BEGIN)
        assert fetch(reader, 2).outcome == Continue()
        assert isinstance(fetch(reader, 2).outcome, Drained)

    def test_a_child_inherits_what_is_not_wanted(self):
        stream = FakeStream([], ends=9)
        stream.client.time = 30
        batch = fetch(stream.reader([ORIGIN, ORIGIN + 20]))
        assert batch.outcome == Drained((Child("child", ("p", "q"), [ORIGIN + 9, ORIGIN + 20]),))

    def test_a_heartbeat_at_the_end_keeps_the_position_inside_the_partition(self):
        """An answer ends between the heartbeat and the children. The children come with the next answer."""
        stream = FakeStream([Heartbeat(ORIGIN + 9)], ends=9, message=1)
        stream.client.time, stream.breaks = 30, 2
        first = fetch(stream.reader(BEGIN))
        assert (len(first), first.outcome, first.end) == (0, Continue(), [ORIGIN + 9])
        assert isinstance(fetch(stream.reader(stored(first.end))).outcome, Drained)

    def test_an_end_that_is_still_to_come_is_none(self):
        stream = FakeStream([], ends=9)
        stream.client.time = 8
        reader = stream.reader(BEGIN)
        assert fetch(reader).outcome == Continue()
        stream.client.time = 9
        assert isinstance(fetch(reader).outcome, Drained)


class TestRequired:
    @pytest.mark.parametrize(
        ("field", "capture", "kind"),
        [
            ("require_new", "OLD_AND_NEW_VALUES", "UPDATE"),
            ("require_new", "NEW_VALUES", "UPDATE"),
            ("require_old", "NEW_ROW", "UPDATE"),
            ("require_old", "OLD_AND_NEW_VALUES", "UPDATE"),
            ("require_old", "NEW_ROW", "DELETE"),
        ],
    )
    def test_what_lacks_its_row_is_refused_after_what_has_it(self, field, capture, kind):
        good = record(5, "t", 0, 2, kind="UPDATE", capture="NEW_ROW_AND_OLD_VALUES")
        stream = FakeStream([good, record(7, "u", 0, 1, kind=kind, capture=capture)])
        reader = stream.reader(BEGIN, **{field: True})
        first = fetch(reader)
        assert (len(first), first.caught_up) == (2, False)
        for again in (reader, stream.reader(stored(first.end), **{field: True})):
            with pytest.raises(ProviderFault) as caught:
                fetch(again)
            assert caught.value.fault.category == ErrorCategory.UNSUPPORTED_CAPABILITY
            assert "ALTER CHANGE STREAM s" in caught.value.fault.message
            assert "INCLUDE_IF_AVAILABLE" in caught.value.fault.message
            states = {"require_new": "new_item_state_mode", "require_old": "old_item_state_mode"}
            assert f"{states[field]}=REQUIRE" in caught.value.fault.message

    @pytest.mark.parametrize("kind", ["INSERT", "DELETE"])
    def test_an_insert_has_its_row_and_a_delete_has_none(self, kind):
        stream = FakeStream([record(5, "t", 0, 2, kind=kind, capture="NEW_VALUES")])
        assert len(fetch(stream.reader(BEGIN, require_new=True))) == 2

    def test_a_stream_that_leaves_columns_out_by_now_has_no_rows(self):
        stream = FakeStream([record(5, "t", 0, 1)])
        batch = fetch(stream.reader(BEGIN))
        assert batch.events(0, 1)[0].new_item_state == {
            "id": f"{ORIGIN + 5}-t-0-0", "n": "1",
        }  # fmt: skip
        stream.whole = False
        batch = fetch(stream.reader(BEGIN))
        assert batch.events(0, 1)[0].new_item_state is None
        with pytest.raises(ProviderFault, match="all columns"):
            fetch(stream.reader(BEGIN, require_new=True))


class TestBoundsAtOnce:
    @pytest.mark.parametrize("start", [2, 4])
    def test_a_bound_that_is_reached_at_the_start_asks_nothing(self, start):
        stream = FakeStream([record(3, "a", 0, 2)])
        batch = fetch(stream.reader([ORIGIN + start], [ORIGIN + 2]))
        assert (len(batch), batch.outcome, stream.windows) == (0, Reached(), [])

    def test_changes_before_the_start_that_the_service_returns_again_are_left_out(self):
        """The service may begin an answer earlier than requested. Changes before the start are left out."""
        stream = FakeStream([record(3, "a", 0, 2), record(5, "b", 0, 3)])
        asked = stream.window

        def earlier(token, start, end, scope, **settings):
            return asked(token, ORIGIN, end, scope, **settings)

        stream.window = earlier
        batch = fetch(stream.reader([ORIGIN + 5]))
        assert names(batch) == [(ORIGIN + 5, "b", "00000000", nth) for nth in range(3)]


# -- Transactions with the same commit timestamp, whose order may differ in each query


class MixedStream(FakeStream):
    """A partition in which transactions with the same commit timestamp are ordered differently in each query.

    The records of a transaction stay in order.

    Args:
        order: The order of the transactions, as numbers; None to keep the order of the last query.
        records: The partition's changes.
        message: The number of records in a message.
    """

    def __init__(self, order, records, message):
        super().__init__(records, message=message)
        self.order, self.plain = order, records

    def window(self, *arguments, **settings):
        queues = {}
        for each in self.plain:
            # A record that is sent again is a new object.
            queues.setdefault((each.at, each.transaction), deque()).append(attrs.evolve(each))
        self.records = []
        while queues:
            first = min(at for at, _ in queues)
            turns = [name for name in queues if name[0] == first]
            name = turns[self.order() % len(turns)]
            self.records.append(queues[name].popleft())
            if not queues[name]:
                del queues[name]
        return super().window(*arguments, **settings)


def drained(stream, cursor, sizes):
    """Return the changes after a position, read by a new reader for each page."""
    seen = []
    for _ in range(200):
        reader = stream.reader(stored(cursor))
        try:
            batch = fetch(reader, sizes())
        except ConnectionError:
            continue
        finally:
            reader.close()
        seen += names(batch)
        cursor = batch.cursor_after(len(batch))
        if batch.caught_up:
            break
    return seen


@given(logs(), st.integers(1, 4), st.lists(st.integers(0, 8), min_size=1), st.data())
def test_each_change_comes_once_from_a_stop_at_every_change(records, message, turns, data):
    """If a reader stops at any change of a page, another reader gets all the remaining changes."""
    step = iter(range(10**9))
    stream = MixedStream(lambda: turns[next(step) % len(turns)], records, message)
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    cursor, seen = BEGIN, []
    for size in sizes:
        reader = stream.reader(stored(cursor))
        batch = fetch(reader, size)
        reader.close()
        for count in range(len(batch) + 1):
            rest = drained(stream, batch.cursor_after(count), lambda: 3)
            assert sorted(seen + names(batch)[:count] + rest) == sorted(every_change(records))
        seen += names(batch)
        cursor = batch.cursor_after(len(batch))


@example(1)
@given(st.integers(1, 4))
def test_a_record_that_began_on_the_page_before_leaves_the_marks_of_others(taken):
    """After t1 and the rest of the partly delivered transaction t5, the position still contains t1's mark."""
    records = [record(1, "t1", 0, 5), record(1, "t5", 0, 5)]
    turns = iter([1, 0] + [0] * 50)
    stream = MixedStream(lambda: next(turns), records, 1)
    first = fetch(stream.reader(BEGIN), taken)
    second = fetch(stream.reader(stored(first.cursor_after(taken))), 10 - taken)
    cut = second.cursor_after(10 - taken)
    assert cut == [ORIGIN + 1, {"t1": ["00000000", 5], "t5": ["00000000", 5]}]
