"""Tests transactions with the same commit timestamp, whose order may differ in each query."""

import json
from collections import deque

import attrs
from hypothesis import example, given
from hypothesis import strategies as st

from .fake import ORIGIN, FakeStream, fetch, names, record

BEGIN = [ORIGIN]
SIZES = st.integers(1, 5)


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


@st.composite
def logs(draw):
    """Generate commits with one, two or three timestamps.

    Each commit has several transactions with several records.
    """
    found = []
    for at in range(1, draw(st.integers(1, 3)) + 1):
        for transaction in "abc"[: draw(st.integers(1, 3))]:
            counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
            found += [record(at, f"{at}{transaction}", nth, count) for nth, count in enumerate(counts)]
    return found


def every_change(records):
    return sorted(
        (each.at, each.transaction, each.sequence, nth) for each in records for nth in range(len(each.mods))
    )


def stored(cursor):
    """Return the position after encoding and decoding, as in a token."""
    return json.loads(json.dumps(cursor))


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


def endless(data, strategy):
    return lambda: data.draw(strategy)


class TestMixedOrders:
    @given(logs(), st.integers(1, 4), st.lists(st.integers(0, 8), min_size=1), st.data())
    def test_each_change_comes_once_from_a_stop_at_every_change(self, records, message, turns, data):
        """If a reader stops at any change of a page, another reader gets all the remaining changes."""
        step = iter(range(10**9))
        stream = MixedStream(lambda: turns[next(step) % len(turns)], records, message)
        sizes = data.draw(st.lists(SIZES, min_size=1, max_size=6))
        cursor, seen = BEGIN, []
        for size in sizes:
            reader = stream.reader(stored(cursor))
            batch = fetch(reader, size)
            reader.close()
            for count in range(len(batch) + 1):
                rest = drained(stream, batch.cursor_after(count), lambda: 3)
                assert sorted(seen + names(batch)[:count] + rest) == every_change(records)
            seen += names(batch)
            cursor = batch.cursor_after(len(batch))

    @given(logs(), st.integers(1, 2), st.integers(1, 12), st.data())
    def test_each_change_comes_once_though_answers_break_off(self, records, message, breaks, data):
        stream = MixedStream(endless(data, st.integers(0, 2)), records, message)
        stream.breaks = breaks
        assert sorted(drained(stream, BEGIN, endless(data, SIZES))) == every_change(records)


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
