"""Tests that Ctrl-C in any line of a call throws away what is kept, and that the next call goes on at its token.

Usually each line is tried once, when it first runs; the soak tries it each time that it runs.
"""

import sys
import threading
from contextlib import suppress

import pytest

from multiclouddb_api import Beginning, ErrorCategory, MulticloudDbError, Snapshot, SnapshotOrder
from multiclouddb_spi import ProviderFault
from multiclouddb_spi.fetching.consumer import Consumer
from multiclouddb_spi.fetching.consumers import Consumers
from multiclouddb_spi.fetching.daemon_pool import DaemonPool
from multiclouddb_spi.fetching.fetcher import Fetcher
from multiclouddb_spi.interrupts import Renewed

from .conftest import eventually_true
from .interrupt import interrupted_at, lines_of


class Interrupted:
    """A call of a client that has lived for a while; each line of it is interrupted, each in a client anew."""

    size = 3

    def __init__(self, bench):
        self.bench = bench
        bench.fill(60)

    def connect(self):
        return self.bench.connect(page_records=5)

    def live(self):
        """Make a client, and return its next call's place."""
        self.connect()
        place = Beginning()
        for _ in range(2):
            place = self.bench.page(place, self.size).continuation_token
        return place

    def page(self, place):
        return self.bench.page(place, self.size)

    def found(self, place, engine=None):
        return [event.event_id for event in self.bench.page(place, self.size, engine=engine).events]

    def lines(self, each_time):
        """Return what to interrupt: each line once, as the first time that it runs, or each time."""
        place = self.live()
        ran = lines_of(lambda: self.page(place))
        return range(1, len(ran) + 1) if each_time else [first(line) for line in dict.fromkeys(ran)]

    def check(self, line):
        place = self.live()
        client = self.bench.engine
        assert interrupted_at(line, lambda: self.page(place))
        assert client.provider.calls.open_readers == sum(
            each.open_streams for each in client._calls.kept.consumers._kept.values()
        )
        assert not client._calls.kept.consumers._used
        assert self.found(place, client) == self.found(place, self.connect())
        for each in (client, self.bench.engine):
            each.close()
            assert (each.buffered_bytes, each.provider.calls.open_readers) == (0, 0)


class AtAStart(Interrupted):
    def live(self):
        self.connect()
        return Beginning()


class AfterAFailure(Interrupted):
    """The call before has failed after it had read, so the next one takes over what it has left."""

    def live(self):
        place = super().live()
        pages = self.bench.engine._calls.kept.pages

        def fails(*_):
            raise ProviderFault.of(ErrorCategory.TRANSIENT_FAILURE, "no page", retryable=True)

        pages.reading = fails
        self.bench.refused(ErrorCategory.TRANSIENT_FAILURE, place, size=self.size)
        del pages.reading
        return place


class OfAScan(Interrupted):
    """Rows and changes are read beside each other."""

    def live(self):
        self.connect()
        place = Snapshot(SnapshotOrder.INTERLEAVED)
        for _ in range(2):
            place = self.bench.page(place, self.size).continuation_token
        return place


class OnThreads(Interrupted):
    """What the threads do meanwhile differs from call to call."""

    def connect(self):
        return self.bench.connect(threads=True, page_records=5)

    def found(self, place, engine=None):
        """Return which events there are; a page takes what comes first."""
        events, _ = self.bench.drain(place, engine=engine)
        return sorted(event.event_id for event in events)

    def check(self, line):
        before = threading.active_count()
        super().check(line)
        eventually_true(lambda: threading.active_count() <= before)


def first(line):
    return lambda place: place == line


KINDS = [Interrupted, AtAStart, AfterAFailure, OfAScan]


@pytest.mark.parametrize("kind", [*KINDS, OnThreads])
@pytest.mark.parametrize("each_time", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_at_any_line_of_a_call_nothing_is_left_and_the_next_one_goes_on(make_bench, kind, each_time):
    interrupted = kind(make_bench(2))
    lines = interrupted.lines(each_time)
    assert len(lines) > 300
    for line in lines:
        interrupted.check(line)
