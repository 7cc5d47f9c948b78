"""Tests that fetched records are not wasted, by counting the sent records and the opened readers.

In these tests, the service ignores the requested size, and its answers are several times larger.
"""

import threading

import pytest

from multiclouddb_api import Beginning
from multiclouddb_conformance.simulation import SimulationReader

BOUND = 65_536
MOST_OVERHEAD = 1.2


class Sent:
    """A counter of the records that the service has sent, and of the bytes that the client has kept."""

    def __init__(self, monkeypatch):
        self.records = self.largest = self.held = 0
        self.engine = None
        lock, fetch = threading.Lock(), SimulationReader.fetch

        def whatever_is_asked(reader, max_records, max_bytes, wait, deadline):
            batch = fetch(reader, max_records, 2**40, wait, deadline)
            with lock:
                self.records += len(batch)
                self.largest = max(self.largest, batch.nbytes)
                if self.engine is not None:
                    self.held = max(self.held, self.engine.buffered_bytes)
            return batch

        monkeypatch.setattr(SimulationReader, "fetch", whatever_is_asked)


@pytest.fixture
def sent(monkeypatch):
    return Sent(monkeypatch)


@pytest.fixture
def backlog(make_bench, sent):
    """Make partitions with the same number of records, in answers of about 16 KB.

    Four answers fill the buffer.
    """

    def make(partitions, records=60, *, threads=False, **config):
        bench = make_bench(partitions)
        for name in bench.sim.open_partitions:
            key = bench.key_in(name)
            for number in range(records):
                bench.sim.write(key, {"n": number, "text": "x" * 800})
        bench.connect(threads=threads, max_buffered_bytes=BOUND, **config)
        sent.engine = bench.engine
        return bench

    return make


class TestOneConsumer:
    @pytest.mark.parametrize("threads", [False, True], ids=["inline", "threads"])
    @pytest.mark.parametrize("size", [7, 20, 50])
    @pytest.mark.parametrize("partitions", [16, 64])
    def test_nothing_is_fetched_twice(self, backlog, sent, partitions, size, threads):
        bench = backlog(partitions, threads=threads)
        came = bench.drain(size=size)[0]
        assert len(came) == 60 * partitions
        assert sent.records <= MOST_OVERHEAD * len(came)
        assert sum(bench.calls.opens.values()) == partitions

    @pytest.mark.parametrize("size", [10, 20])
    @pytest.mark.parametrize("partitions", [16, 64])
    def test_what_is_held_stays_bounded(self, backlog, sent, partitions, size):
        """The buffered bytes stay within a bound, except after the first answers, whose sizes are unknown in
        advance.

        After that, one fetch may exceed the bound. With small pages, the first partition in the queue often
        waits for memory. The page must then return other records and keep no place for this partition.
        """
        bench = backlog(partitions)
        pages = bench.walk(size=size)
        for _ in range(partitions):
            page = next(pages)
        sent.held = 0
        pages.close()
        bench.drain(page.continuation_token, size=size)
        assert sent.held <= BOUND + 2 * sent.largest

    def test_every_partition_has_its_turn_while_there_are_no_bytes(self, backlog):
        bench = backlog(40)
        seen, place = set(), Beginning()
        for _ in range(3 * 40):
            page = bench.page(place, size=20)
            seen |= {event.partition_id for event in page.events}
            place = page.continuation_token
        assert len(seen) == 40


class TestSeveralConsumers:
    def test_two_take_nothing_from_each_other(self, backlog, sent):
        bench = backlog(16)
        places, came = [Beginning(), Beginning()], 0
        for turn in range(1000):
            page = bench.page(places[turn % 2], size=20 + turn % 2)  # the two are never at the same position
            places[turn % 2] = page.continuation_token
            came += len(page.events)
            if came == 2 * 16 * 60:
                break
        assert came == 2 * 16 * 60
        assert sent.records <= MOST_OVERHEAD * came

    @pytest.mark.parametrize(("seconds", "evicted"), [(0.0, True), (600.0, False)])
    def test_what_a_consumer_has_left_behind_makes_room(self, backlog, sent, monkeypatch, seconds, evicted):
        """A consumer that starts again never requests the records of its old position.

        The engine must detect that no consumer needs these records.
        """
        from multiclouddb_spi.fetching import readers

        monkeypatch.setattr(readers, "_RESTING_SECONDS", seconds)
        bench = backlog(16)
        page = bench.page(size=7)
        for _ in range(10):
            page = bench.page(page.continuation_token, size=7)
        assert sent.held > BOUND / 2
        assert bench.calls.closes == 0
        assert len(bench.drain(size=20)[0]) == 16 * 60
        assert (bench.calls.closes > 0) is evicted

    def test_no_more_makes_room_than_has_to(self, backlog, monkeypatch):
        """The buffer is almost full with the records of three consumers. A fourth consumer needs so much room
        that two of the three consumers must lose their fetched records.
        """
        from multiclouddb_spi.fetching import readers

        monkeypatch.setattr(readers, "_RESTING_SECONDS", 0.0)
        bench = backlog(1)
        places = []
        for size in (8, 9, 10):
            page = bench.page(bench.page(size=size).continuation_token, size=size)
            places.append(page.continuation_token)
        assert bench.calls.closes == 0
        assert bench.engine.buffered_bytes > BOUND * 3 / 4
        bench.page(size=11)
        assert bench.calls.closes == 2
        bench.page(places[-1], size=1)
        assert sum(bench.calls.opens.values()) == 4
