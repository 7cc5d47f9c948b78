"""Tests thousands of partitions: nothing is lost, and the work of a call grows at most linearly.

With `MULTICLOUDDB_SCALE=10000`, the history is long. Measurements are logged at INFO.
"""

import logging
import os
import random
import time

import pytest

from multiclouddb_api import Beginning, Now
from multiclouddb_conformance.waiting import assert_prompt
from multiclouddb_spi.continuation.token import decode_token

CHANGES = int(os.environ.get("MULTICLOUDDB_SCALE", "1500"))
BEGINNING = Beginning()
LONG = 300  # seconds, for one call on a slow machine
log = logging.getLogger("multiclouddb.tests")


@pytest.fixture
def large(make_bench):
    def make(partitions, *, threads=False, **config):
        bench = make_bench(partitions)
        bench.connect(threads=threads, page_records=1000, **config)
        return bench

    return make


def timed(call, times=1):
    began = time.perf_counter()
    for _ in range(times):
        result = call()
    return result, 1000 * (time.perf_counter() - began) / times


class TestLongLife:
    def test_nothing_is_lost_in_1000_partitions_over_thousands_of_splits_and_merges(self, large):
        bench, dice = large(1000), random.Random(2)
        sim, place, came, duplicates = bench.sim, BEGINNING, set(), 0
        for change in range(CHANGES):
            names = sim.open_partitions
            if len(names) < 900 or (len(names) < 1100 and dice.random() < 0.5):
                sim.split(dice.choice(names))
            elif dice.random() < 0.1:
                sim.roll(dice.choice(names))
            else:
                sim.merge(*dice.sample(names, 2))
            sim.transaction([(f"k{dice.randrange(5000)}", {"n": change}) for _ in range(3)])
            if change % 60 == 0:
                page = bench.page(place, size=dice.choice([1, 50, 0]))
                duplicates += sum(event.event_id in came for event in page.events)
                came |= {event.event_id for event in page.events}
                place = page.continuation_token
            if change % 1000 == 999:
                bench.connect(page_records=1000)
        began, pages = time.perf_counter(), 0
        for page in bench.walk(place):
            pages += 1
            duplicates += sum(event.event_id in came for event in page.events)
            came |= {event.event_id for event in page.events}
        assert came == {item.event_id for item in sim.truth}
        assert duplicates == 0
        state = decode_token(page.continuation_token).state["p"]
        assert {entry[0] for entry in state} == set(sim.open_partitions), "drained partitions leave the token"
        assert bench.calls.open_readers <= len(sim.open_partitions)
        log.info(
            "%d changes, %d events, %d open: the last %d pages took %.1f s",
            CHANGES, len(came), len(state), pages, time.perf_counter() - began,
        )  # fmt: skip


class TestManyPartitions:
    @pytest.mark.parametrize("count", [1000, 10_000])
    def test_work_of_a_call_is_linear_in_partitions(self, large, count):
        bench = large(count)
        calls = bench.calls
        (page, cold) = timed(lambda: bench.page(Now(), timeout=LONG))
        assert page.idle
        assert calls.total_fetches == count
        assert sum(calls.opens.values()) == count
        assert calls.starts == 1

        (page, warm) = timed(lambda: bench.page(page.continuation_token, timeout=LONG))
        assert page.idle
        assert calls.total_fetches == 2 * count
        assert sum(calls.opens.values()) == count, "readers live on"

        bench.fill(1000, keys=1000)
        (page, busy) = timed(lambda: bench.page(page.continuation_token, timeout=LONG))
        assert len(page.events) == 1000
        assert calls.total_fetches <= 3 * count
        assert calls.mapped == 1000

        bench.fill(100, keys=100)
        before = calls.total_fetches
        (small, one) = timed(lambda: bench.page(page.continuation_token, size=1, timeout=LONG))
        assert len(small.events) <= 1
        assert calls.total_fetches - before <= count
        token = page.continuation_token
        assert len(token) < 40 * count
        assert len(decode_token(token).state["p"]) == count
        log.info(
            "%d partitions: cold idle %.0f ms, warm idle %.0f ms, busy %.0f ms, one event %.0f ms, "
            "token %d bytes",
            count, cold, warm, busy, one, len(token),
        )  # fmt: skip

    def test_a_full_small_page_asks_no_more_partitions_than_are_read_at_once(self, large):
        bench = large(2000, max_concurrency=16)
        bench.fill(6000, keys=6000)
        page = bench.page(size=1)
        assert len(page.events) == 1
        assert bench.calls.total_fetches <= 16

    def test_idle_sweep_on_threads_asks_each_once_and_all_at_a_time_are_bounded(self, large):
        bench = large(1000, threads=True, max_concurrency=8)
        (page, took) = timed(lambda: bench.page(Now(), timeout=LONG))
        assert page.idle
        assert bench.calls.total_fetches == 1000
        assert set(bench.calls.fetches.values()) == {1}
        log.info("1000 partitions on threads: cold idle %.0f ms", took)

    def test_paced_partitions_are_asked_once_each(self, large):
        from multiclouddb_conformance.simulation import ServiceBehaviour

        bench = large(2000, threads=True)
        bench.sim.behaviour = ServiceBehaviour(poll_after=0.3)
        token = bench.page(Now(), timeout=LONG).continuation_token

        def attempt():
            before = bench.calls.fetches.copy()
            (page, took) = timed(lambda: bench.page(token, timeout=LONG))
            assert page.idle
            assert set((bench.calls.fetches - before).values()) == {1}
            assert bench.calls.fetches.keys() == before.keys()
            return took / 1000

        assert_prompt(10, attempt, at_most=60)  # sequential polls would take 600 seconds

    def test_many_waiting_children_cost_no_more_than_their_number(self, large):
        """Each pair is merged, so every page handles all waiting children."""
        bench = large(2000)
        token = bench.page(Now()).continuation_token
        names = bench.sim.open_partitions
        for one, other in zip(names[::2], names[1::2], strict=True):
            bench.sim.merge(one, other)
        bench.fill(500, keys=500)
        before = bench.calls.total_fetches
        came = [event.event_id for page in bench.walk(token) for event in page.events]
        assert sorted(came) == sorted(bench.written())
        assert bench.calls.total_fetches - before <= 2000 + 3 * 1000
