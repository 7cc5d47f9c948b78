"""A change stream in memory, for tests of the reader.

Commits may have equal times, and an answer may end anywhere.
"""

import itertools
import threading
import time

import attrs

from multiclouddb_api import ResourceAddress
from multiclouddb_spanner.catalog import ChangeStreamInfo
from multiclouddb_spanner.mapping import SpannerView
from multiclouddb_spanner.position import place_of, text_at
from multiclouddb_spanner.reader import SpannerReader
from multiclouddb_spanner.records import Children, DataRecord, Heartbeat, Mod, Shape
from multiclouddb_spanner.source import RequestSizes
from multiclouddb_spi import Deadline

SHAPE = Shape(("id", "n"))
ADDRESS = ResourceAddress("db", "items")
VIEW = SpannerView(ADDRESS, "spanner:x:p", ("id",))
ORIGIN = 1_700_000_000_000_000


def record(at, transaction, sequence, mods, *, kind="INSERT", capture="NEW_ROW", shape=SHAPE):
    """Make a record. The key of each change shows the position of the change."""
    at += ORIGIN
    made = [Mod(f'{{"id":"{at}-{transaction}-{sequence}-{nth}"}}', '{"n":"1"}', "{}") for nth in range(mods)]
    text = text_at(at)
    return DataRecord(
        at, text, f"{sequence:08}", transaction, "items", shape, made, kind, capture, False, dict, 100 * mods
    )


@attrs.define
class FakeClock:
    """The service's clock, whose time the test sets."""

    time: int = 0
    forgotten: bool = False

    def now(self, scope):
        return ORIGIN + self.time

    def passed(self):
        return ORIGIN + self.time

    def ahead(self):
        return ORIGIN + self.time

    def forget_clock(self):
        self.forgotten = True


class FakeWindow:
    def __init__(self, stream, items, end, waits, current, deadline):
        self.stream, self.end, self.waits, self.current = stream, end, waits, current
        self.began, self.expires = time.monotonic(), deadline.at
        size = stream.message
        self.messages = [items[at : at + size] for at in range(0, len(items), size)]
        self.is_open = True
        stream.open += 1

    def next(self):
        if self.stream.breaks:
            self.stream.breaks -= 1
            if not self.stream.breaks:
                raise ConnectionError("broken off")
        return self.messages.pop(0) if self.messages else None

    def cancel(self):
        self.stream.open -= self.is_open
        self.is_open = False


class FakeStream:
    """One partition of a change stream, with so many records in a message.

    Without `order`, each answer has the order of `records`. The numbers in `order` choose which transaction
    comes next if several have the same commit timestamp.
    """

    def __init__(self, records, ends=None, message=2, slots=8, order=()):
        self.records, self.ends, self.message = records, ends, message
        self.order = itertools.cycle(order) if order else None
        self.client = FakeClock(max([each.at - ORIGIN for each in records], default=0) + 5)
        self.slots = threading.Semaphore(slots)
        self.spans = RequestSizes(3600 * 1_000_000)
        self.windows, self.open, self.breaks = [], 0, 0
        self.whole, self.ended = True, {}
        self.info = ChangeStreamInfo("s", "items", ("id",), False, True, "NEW_ROW", 86400)
        self.kept = lambda now: self.info.retention

    def sent(self):
        """Return the records in the order of the next answer; a record that is sent again is a new object."""
        queues, found = {}, []
        for each in self.records:
            queues.setdefault((each.at, getattr(each, "transaction", "")), []).append(attrs.evolve(each))
        while queues:
            first = min(at for at, _ in queues)
            turns = [name for name in queues if name[0] == first]
            name = turns[next(self.order) % len(turns)]
            found.append(queues[name].pop(0))
            if not queues[name]:
                del queues[name]
        return found

    def window(self, token, start, end, scope, *, waits=0.0, current=False):
        assert start <= end
        self.windows.append((start - ORIGIN, end - ORIGIN))
        items = [each for each in (self.sent() if self.order else self.records) if start <= each.at <= end]
        if self.ends is not None and start <= ORIGIN + self.ends <= end:
            items.append(Children(ORIGIN + self.ends, {"child": ("p", "q")}))
        elif not items:
            items.append(Heartbeat(end))
        return FakeWindow(self, items, end, waits, current, scope.deadline)

    def check_watched(self, at, scope):
        return None

    def watched_whole(self, record, scope):
        return self.whole

    def translated(self, error, at, scope, token=None):
        return None

    def has(self, token, start, end, wanted, scope):
        return False

    def fitted(self, record, scope):
        return record

    def unnamed(self, token):
        return ConnectionError("no children")

    def reader(self, cursor, until=None, **settings):
        bound = None if until is None else place_of(until)
        return SpannerReader(self, VIEW, "p", place_of(cursor), bound, **settings)


def fetch(reader, most=1000, wait=0.0, nbytes=1 << 20):
    return reader.fetch(most, nbytes, wait, Deadline.after(30))


def names(batch):
    """Return a short name for each change of a batch."""
    return [(record.at, record.transaction, record.sequence, nth) for record, nth in batch.records]
