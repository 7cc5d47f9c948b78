"""Tests `ChangeFeedIterator` over a scripted service and a clock that does not wait."""

import copy
import inspect
import itertools
import math
import os
import signal
import sys
import threading
import time
from datetime import UTC, datetime

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import multiclouddb_api as api
from multiclouddb_api.aio.driver import LoopTimer
from multiclouddb_api.iterator import IteratorSettings
from multiclouddb_api.pacing import Timer
from multiclouddb_conformance.interrupting import interrupted_at
from multiclouddb_conformance.through_asyncio import AsyncioClient
from multiclouddb_conformance.waiting import assert_prompt, wait_until

ADDRESS = api.ResourceAddress("shop", "orders")
MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)
IDLE = api.ChangeFeedPage((), "", idle=True)
GAP = api.ChangeFeedPage((), "", notices=(api.Gap("P", "1", "5"),))


class FakeTimer(Timer):
    """A clock that moves only when the iterator waits."""

    def __init__(self):
        super().__init__()
        self.time = 1000.0
        self.waits = []

    def now(self):
        return self.time

    def wait(self, seconds):
        if seconds > 0 and not self.stopped:
            self.waits.append(round(seconds, 6))
            self.time += seconds
        return not self.stopped


class MemoryStore:
    """A checkpoint store that counts its calls; a save fails before ("lost") or after ("done") it is kept."""

    def __init__(self):
        self.checkpoint = None
        self.saved = []
        self.failures = []

    def load(self, name):
        return self.checkpoint

    def save(self, name, token, expected):
        if expected != (self.checkpoint and self.checkpoint.version):
            raise error(api.ErrorCategory.CONFLICT)
        failure = self.failures.pop(0) if self.failures else None
        if failure != "lost":
            self.checkpoint = api.Checkpoint(token, str(len(self.saved) + 1))
            self.saved.append(token)
        if failure is not None:
            raise error(api.ErrorCategory.PERMANENT_FAILURE)
        return self.checkpoint


def error(category, **detail):
    return api.MulticloudDbError("it failed", api.ErrorDetail(category, **detail))


def throttled(after=None):
    return error(api.ErrorCategory.THROTTLED, retryable=True, retry_after_seconds=after)


def event(partition, number):
    return api.ChangeEvent(
        f"{partition}{number}", api.MulticloudDbKey({"id": number}), api.ChangeType.UPDATE, MOMENT, None,
        None, f"{number:04}", None, False, ADDRESS, partition,
    )  # fmt: skip


class Service:
    """A service whose partitions are lists of pages; `"P@2"` is the token after the second page of P.

    Each page is either a number of events, or a ChangeFeedPage that supplies the notices and diagnostics.
    After its last page a partition is idle, or retired if it has children. Each read first takes one of
    `faults`: an error, None, or a function of the clock that returns an error or None.
    """

    def __init__(self, pages, children=None, *, faults=(), seconds=0.0):
        self.partitions, self.children = {"P": pages}, children or {}
        self.start = "P@0"
        self.reads, self.options = [], []
        self.faults, self.errors = list(faults), {}
        self.on_read = lambda: None
        self.seconds, self.timer = seconds, None

    def read_changes(self, request, options=None):
        self.reads.append(request)
        self.options.append(options)
        self.on_read()
        if self.timer is not None:
            self.timer.time += self.seconds
        fault = self.faults.pop(0) if self.faults else None
        if callable(fault):
            self.timer.progress = options.progress
            fault = fault(self.timer)
        if fault is not None:
            raise fault
        start = request.start_position
        token = start.token if isinstance(start, api.FromContinuationToken) else self.start
        partition, _, index = token.partition("@")
        if isinstance(request.scope, api.PhysicalPartition):
            assert request.scope.partition_id == partition
        return self.page(partition, int(index))

    def page(self, partition, index):
        pages, token = self.partitions[partition], f"{partition}@{index + 1}"
        diagnostics = api.OperationDiagnostics(partition_errors=dict(self.errors))
        if index < len(pages):
            if isinstance(pages[index], api.ChangeFeedPage):
                return attrs.evolve(pages[index], continuation_token=token)
            before = sum(page for page in pages[:index] if isinstance(page, int))
            events = tuple(event(partition, before + number) for number in range(pages[index]))
            return api.ChangeFeedPage(events, token, diagnostics=diagnostics)
        retired = partition in self.children
        children = self.children.get(partition, ())
        named = tuple(api.ChildPartition(child, (partition,), f"{child}@0") for child in children)
        return api.ChangeFeedPage((), token, not retired and not self.errors, retired, named, (), diagnostics)


class FakeLoopTimer(FakeTimer, LoopTimer):
    """The same clock for asyncio."""

    async def pause_until(self, due):
        return self.wait(due - self.now())


FACES = ["blocking", "asyncio"]
_face = FACES[0]


@pytest.fixture(params=FACES, autouse=True)
def face(request, monkeypatch):
    """Every test of this file runs through the blocking face and through the one of asyncio."""
    monkeypatch.setattr(sys.modules[__name__], "_face", request.param)
    return request.param


def iterator(service, start=None, scope=None, **options):
    request = api.ChangeFeedRequest(ADDRESS, start or api.Beginning(), **({"scope": scope} if scope else {}))
    if _face == "asyncio":
        made = AsyncioClient(lambda: service).iterate_changes(request, **options)
        made._changes._timer = made._feed.timer = service.timer = FakeLoopTimer()
    else:
        made = api.ChangeFeedIterator(service, request, **options)
        made._feed.timer = service.timer = FakeTimer()
    return made


def stored(pages, store, start=None, **options):
    """Return an iterator over a new service, which saves its checkpoints in the store."""
    service = pages if isinstance(pages, Service) else Service(pages)
    return iterator(service, start, checkpoint_store=store, checkpoint_name="w", **options)


def ids(events):
    return [event.event_id for event in events]


def whole_life(pages, **options):
    service = pages if isinstance(pages, Service) else Service(pages)
    return ids(iterator(service, until_idle=True, **options))


def failed(changes):
    """Return the events that came before the error of an iteration, and the error."""
    got = []
    with pytest.raises(api.MulticloudDbError) as caught:
        got.extend(change.event_id for change in changes)
    return got, caught.value


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def longest(monkeypatch):
    """Make every random wait as long as it may be."""
    monkeypatch.setattr("random.uniform", lambda low, high: high)


@pytest.mark.shows("Plan 16")
class TestPagesAndEvents:
    def test_events_come_one_by_one_and_pages_whole(self):
        service = Service([2, 0, 3])
        assert whole_life(service) == ["P0", "P1", "P2", "P3", "P4"]
        after = [api.FromContinuationToken(f"P@{number}") for number in (1, 2, 3)]
        assert [request.start_position for request in service.reads] == [api.Beginning(), *after]
        pages = list(iterator(Service([2, 0, 3]), until_idle=True).pages())
        assert [len(page.events) for page in pages] == [2, 0, 3, 0]
        assert [page.idle for page in pages] == [False, False, False, True]

    def test_the_request_and_the_settings_reach_the_call(self):
        service = Service([1])
        request = api.ChangeFeedRequest(ADDRESS, api.AtTime(MOMENT), max_page_size=7)
        changes = api.ChangeFeedIterator(service, request, until_idle=True, timeout_seconds=7, wait_seconds=3)
        iter(changes)
        assert service.reads == []
        list(changes)
        assert {attrs.evolve(read, start_position=api.AtTime(MOMENT)) for read in service.reads} == {request}
        assert service.options[0] == api.OperationOptions(7, 3)

    def test_a_loop_without_end_leaves_out_partitions(self):
        service = Service([1])
        next(iterator(service).pages())
        assert not service.options[0].ask_all

    def test_a_loop_that_an_error_has_ended_reads_again(self):
        changes = iterator(Service([1], faults=[error(api.ErrorCategory.PERMANENT_FAILURE)]))
        with pytest.raises(api.MulticloudDbError, match="it failed"):
            next(changes)
        assert next(changes).event_id == "P0"

    def test_a_loop_after_the_last_event_reads_again(self):
        service = Service([1])
        changes = iterator(service, until_idle=True)
        assert ids([next(changes)]) == ["P0"]
        assert next(changes, None) is None
        service.partitions["P"] += [0, 2]
        loop = iter(changes)
        assert ids(loop) == ["P1", "P2"]
        service.partitions["P"] += [0, 1]
        assert ids([next(changes)]) == ["P3"]  # though somebody still holds the loop that ended

    def test_next_within_a_loop_continues_the_loop(self):
        changes, seen = iterator(Service([4]), until_idle=True), []
        for each in changes:
            seen += ids([each, next(changes)])
        assert seen == ["P0", "P1", "P2", "P3"]

    def test_a_feed_that_ended_ends_the_iteration_after_its_page(self):
        ended = api.ChangeFeedPage((), "", notices=(api.FeedEnded("dropped"),))
        pages = list(iterator(Service([1, ended, 1])).pages())
        assert [page.notices for page in pages] == [(), (api.FeedEnded("dropped"),)]
        assert whole_life([1, GAP, 1]) == ["P0", "P1"]  # other notices do not end it

    def test_a_retired_partition_ends_the_iteration(self):
        pages = list(iterator(Service([1], {"P": ["Q"]}), scope=api.PhysicalPartition("P")).pages())
        assert pages[-1].partition_retired
        assert [child.partition_id for child in pages[-1].child_partitions] == ["Q"]


@pytest.mark.shows("Plan 16")
class TestIdleBackoff:
    def take(self, count, pages=(), seconds=0.0, **options):
        changes = iterator(Service(list(pages), seconds=seconds), **options)
        list(itertools.islice(changes.pages(), count))
        return changes._feed.timer.waits

    def test_waits_grow_with_jitter_within_their_bounds(self):
        waits = self.take(51)
        bounds = [0.005 * 2**number for number in range(10)] + 40 * [5]
        assert all(0.005 <= wait <= bound for wait, bound in zip(waits, bounds, strict=True))
        assert len(set(waits[10:])) > 20

    def test_the_longest_waits_are_at_least_a_fiftieth(self, monkeypatch):
        """A short first wait does not make an idle consumer read more often."""
        monkeypatch.setattr("random.uniform", lambda low, high: low)
        waits = self.take(13)
        assert (waits[0], waits[-1]) == (0.005, pytest.approx(0.1))

    @pytest.mark.usefixtures("longest")
    @pytest.mark.parametrize(
        ("pages", "count", "options", "waits"),
        [
            ([], 6, {"idle_backoff_seconds": 1, "max_idle_backoff_seconds": 6}, [1, 2, 4, 6, 6]),
            # the first event resets them
            ([IDLE, IDLE, IDLE, 1, IDLE, IDLE], 8, {}, [0.005, 0.01, 0.02, 0.005, 0.01, 0.02]),
            # an empty page that is not idle is followed at once
            ([0, 0, 0, 0, 0], 5, {}, []),
        ],
    )
    def test_waits_reach_their_bounds_and_begin_again(self, pages, count, options, waits):
        assert self.take(count, pages, **options) == pytest.approx(waits)

    @pytest.mark.parametrize(
        ("options", "seconds", "waits"),
        [({"wait_seconds": 20}, 20.0, 0), ({"wait_seconds": 20}, 0.0, 4), ({}, 20.0, 4)],
    )
    def test_only_time_spent_in_a_long_poll_is_not_spent_again(self, options, seconds, waits):
        assert len(self.take(5, seconds=seconds, **options)) == waits

    def test_until_idle_ends_after_the_first_idle_page_and_goes_on_when_iterated_again(self):
        changes = iterator(Service([0, 2, IDLE, 2]), until_idle=True)
        assert ids(changes) == ["P0", "P1"]
        assert changes.continuation_token == "P@3"
        assert changes._feed.timer.waits == []
        assert ids(changes) == ["P2", "P3"]


def interrupt(timer, place, act):
    """Run an action, and stop a timer when the action reaches a given instruction."""
    began = time.monotonic()
    seen = itertools.count()
    stopped = []

    def trace(frame, what, argument):
        frame.f_trace_opcodes = True
        if what == "opcode" and next(seen) == place:
            stopped.append(time.monotonic() - began)
            timer.stop()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return stopped[0] if stopped else None


@pytest.mark.shows("Plan 16")
class TestStop:
    def run_stopped(self, act):
        """Iterate over an idle feed on the real clock; return the number of seconds from `act` to the end."""
        service, long = Service([]), {"idle_backoff_seconds": 60, "max_idle_backoff_seconds": 60}
        changes = api.ChangeFeedIterator(service, api.ChangeFeedRequest(ADDRESS, api.Beginning()), **long)
        stopped = []

        def later():
            wait_until(lambda: service.reads)
            time.sleep(0.05)  # the iterator is waiting now
            stopped.append(time.monotonic())
            act(changes)

        thread = threading.Thread(target=later)
        thread.start()
        list(changes)
        ended = time.monotonic()
        thread.join()
        assert len(service.reads) == 1
        return ended - stopped[0]

    @pytest.mark.parametrize("place", ["thread", "signal handler"])
    def test_takes_effect_within_a_tenth_of_a_second(self, place):
        iterating = []
        before = signal.signal(signal.SIGUSR1, lambda *_: iterating[0].stop())

        def act(changes):
            iterating[:] = [changes]
            changes.stop() if place == "thread" else os.kill(os.getpid(), signal.SIGUSR1)

        try:
            assert_prompt(0.1, lambda: self.run_stopped(act), at_most=30, tries=10)
        finally:
            signal.signal(signal.SIGUSR1, before)

    def test_at_any_instruction_of_the_wait_neither_deadlocks_nor_is_lost(self):
        """A signal handler runs between two instructions of the waiting thread."""
        for place in itertools.count():
            for _ in range(3):  # a busy machine may pause the test for as long as the wait
                timer = Timer()
                began = time.monotonic()
                stopped_after = interrupt(timer, place, lambda timer=timer: timer.wait(1))
                if time.monotonic() - began < 1:
                    break
            else:  # the instruction comes after the wait, or does not exist
                assert stopped_after is None or stopped_after >= 1, f"lost stop at instruction {place}"
                break
        assert place > 10

    def test_before_the_first_read_ends_the_iteration_at_once(self):
        service = Service([1])
        changes = iterator(service)
        changes.stop()
        assert (ids(changes), service.reads) == ([], [])

    @pytest.mark.parametrize(
        "read", [ids, lambda changes: [each for page in changes.pages() for each in ids(page.events)]]
    )
    def test_in_a_read_drops_its_page(self, store, read):
        service = Service([1, 1])
        changes = stored(service, store)
        service.on_read = lambda: changes.stop() if len(service.reads) == 2 else None
        assert read(changes) == ["P0"]
        assert changes.continuation_token == "P@1"
        assert store.saved == ["P@1"]

    def test_in_a_retry_ends_it_without_an_error(self):
        service = Service([1], faults=[throttled() for _ in range(5)])
        changes = iterator(service)
        service.on_read = lambda: changes.stop() if len(service.reads) == 3 else None
        assert ids(changes) == []
        assert len(service.reads) == 3

    @pytest.mark.parametrize("pages", [[1, 3], [2, 2]], ids=["in the middle of a page", "at its last event"])
    def test_saves_only_pages_that_were_taken_whole(self, store, pages):
        changes, got = stored(pages, store), []
        for change in changes:
            got.append(change.event_id)
            if len(got) == 2:
                changes.stop()
        changes.close()
        assert (got, store.saved) == (["P0", "P1"], ["P@1"])

    def test_in_the_body_of_a_loop_over_pages_saves_the_page(self, store):
        changes = stored([2, 2], store)
        for _ in changes.pages():
            changes.stop()
        assert store.saved == ["P@1"]


@pytest.mark.shows("Plan 16")
class TestCheckpoint:
    @pytest.mark.parametrize(
        ("pages", "by_page", "saved"),
        [
            ([2, 1, 1], True, [[], ["P@1"], ["P@1", "P@2"]]),
            ([GAP, 1], True, [[], ["P@1"]]),
            ([2, 1], False, [[], [], ["P@1"]]),
        ],
    )
    def test_a_page_is_saved_only_when_the_caller_comes_back_for_more(self, store, pages, by_page, saved):
        changes = stored(pages, store)
        steps = changes.pages() if by_page else iter(changes)
        found = []
        for _ in saved:
            assert changes.continuation_token == (store.saved[-1] if store.saved else None)
            next(steps)
            found.append(list(store.saved))
        assert found == saved

    def test_the_token_of_the_store_goes_before_that_of_the_request(self, store):
        assert iterator(Service([1, 1]), api.FromContinuationToken("P@1")).continuation_token == "P@1"
        store.checkpoint = api.Checkpoint("P@2", "1")
        assert ids(stored([1, 1, 1], store, api.FromContinuationToken("P@1"), until_idle=True)) == ["P2"]

    def test_a_crash_or_a_break_in_the_body_delivers_the_page_again(self, store):
        service = Service([2, 2])
        pages = stored(service, store).pages()
        next(pages)
        next(pages)
        del pages
        changes = stored(service, store, until_idle=True)
        assert next(iter(changes)).event_id == "P2"
        assert store.saved == ["P@1"]
        assert ids(changes) == ["P2", "P3"]

    @pytest.mark.parametrize(
        ("pages", "options", "count", "saved"),
        [
            ([], {}, 4, ["P@1", "P@2", "P@3", "P@4"]),
            ([], {"checkpoint_interval_seconds": 60, "idle_backoff_seconds": 5}, 26, ["P@1", "P@13", "P@25"]),
            ([0, 0, 1, 0], {"checkpoint_interval_seconds": 60, "until_idle": True}, 9, ["P@1", "P@3", "P@5"]),
        ],
    )
    def test_idle_pages_are_saved_once_an_interval_and_events_at_once(
        self, store, pages, options, count, saved
    ):
        list(itertools.islice(stored(pages, store, **options).pages(), count))
        assert store.saved == saved

    def test_what_the_interval_held_back_is_saved_at_a_clean_end(self, store):
        with stored([], store, checkpoint_interval_seconds=60) as changes:
            list(itertools.islice(changes.pages(), 3))
            assert store.saved == ["P@1"]
        assert store.saved == ["P@1", "P@3"]

    def test_a_position_that_did_not_move_is_not_saved_again(self, store):
        service = Service([])
        service.page = lambda partition, index: api.ChangeFeedPage((), "P@0", idle=True)
        list(itertools.islice(stored(service, store).pages(), 5))
        assert store.saved == ["P@0"]

    @pytest.mark.parametrize("make", [lambda folder: MemoryStore(), api.FileCheckpointStore])
    def test_a_second_worker_gets_the_conflict_and_does_not_take_over(self, tmp_path, make):
        """A worker with a conflict does not continue, even if both workers wrote the same token."""
        store, service = make(tmp_path), Service([1, 1, 1, 1])
        one, two = (stored(service, store) for _ in range(2))
        first, second = iter(one), iter(two)
        for each in (first, second, first):
            next(each)
        for again in (second, two):
            assert failed(again)[1].category == api.ErrorCategory.CONFLICT
        assert store.load("w").token == "P@1"
        assert next(first).event_id == "P2"

    @pytest.mark.parametrize("failure", ["lost", "done"])
    def test_a_save_that_failed_is_made_again(self, store, failure):
        store.failures = [failure]
        changes = stored([1, 1], store, until_idle=True)
        failed(changes)
        assert ids(changes) == ["P1"]
        assert store.checkpoint.token == "P@3"

    def test_it_is_a_conflict_if_another_worker_has_saved_meanwhile(self, store):
        def limited(*arguments):
            calls.append(arguments)
            assert len(calls) < 5, "the save is repeated for ever"
            return save(*arguments)

        calls, save, store.save, store.failures = [], store.save, limited, ["lost"]
        changes = stored([1, 1, 1], store, until_idle=True)
        assert failed(changes)[1].category == api.ErrorCategory.PERMANENT_FAILURE
        store.checkpoint = api.Checkpoint("of another", "7")
        assert failed(changes)[1].category == api.ErrorCategory.CONFLICT
        assert store.checkpoint.token == "of another"

    def test_a_start_at_now_is_stored_before_anything_is_delivered(self, store):
        service = Service([0, 1])
        next(iter(stored(service, store, api.Now(), wait_seconds=20, checkpoint_interval_seconds=600)))
        assert store.saved == ["P@1"]
        assert [option.wait_seconds for option in service.options] == [0, 20]

    def test_what_came_first_after_now_comes_again_to_the_next_run(self, store):
        """A run that dies in its first page has saved the start: Azure/azure-cosmos-dotnet-v3 issue 2525."""
        service = Moving([0, 1, 1])
        with pytest.raises(CrashError):
            run(stored(service, store, api.Now(), checkpoint_interval_seconds=600), [], 0, by_event=True)
        assert ids(stored(service, store, api.Now(), until_idle=True)) == ["P0", "P1"]

    @pytest.mark.parametrize("start", [api.Now(), api.Snapshot()])
    @pytest.mark.parametrize("first", [1, GAP], ids=["events", "notices"])
    def test_the_first_page_comes_again_after_an_exception(self, first, start):
        """Another read would start after it, or begin another snapshot."""
        service = Service([first, 1])
        changes = iterator(service, start, until_idle=True)
        pages = changes.pages()
        page = next(pages)
        pages.close()
        service.start = "P@1"
        again = list(changes.pages())
        assert (again[0], len(again)) == (page, 3)

    def test_a_block_begins_now_and_not_at_its_first_read(self, store):
        """Azure/azure-cosmos-dotnet-v3 issues 5268, 5617: what was written before the first read was lost."""
        service = Service([0, 1])
        with stored(service, store, api.Now(), until_idle=True, checkpoint_interval_seconds=600) as changes:
            assert [read.start_position for read in service.reads] == [api.Now()]
            assert store.saved == ["P@1"]
            assert ids(changes) == ["P0"]
        assert [read.start_position for read in service.reads].count(api.Now()) == 1

    @pytest.mark.parametrize("first", [1, GAP], ids=["events", "notices"])
    def test_a_block_gives_what_a_client_has_read_that_passes_no_options_on(self, first):
        service = Service([first, 1])
        with iterator(service, api.Now(), until_idle=True) as changes:
            pages = list(changes.pages())
        assert len(pages) == len(service.reads) == 3
        other = list(iterator(Service([first, 1]), api.Now(), until_idle=True).pages())
        assert [page.events for page in pages] == [page.events for page in other]

    def test_a_block_has_read_the_page_that_only_fixes_the_start(self):
        service = Service([0, 1])
        with iterator(service, api.Now(), until_idle=True) as changes:
            pages = list(changes.pages())
        other = list(iterator(Service([0, 1]), api.Now(), until_idle=True).pages())
        assert [page.events for page in pages] == [page.events for page in other[1:]]
        assert len(service.reads) == len(other) == 3

    @pytest.mark.parametrize("start", [api.Beginning(), api.FromContinuationToken("P@1")])
    def test_a_block_with_another_start_reads_nothing_before_its_loop(self, start):
        service = Service([1, 1])
        with iterator(service, start, until_idle=True):
            assert service.reads == []

    def test_a_block_goes_on_at_its_checkpoint(self, store):
        store.checkpoint = api.Checkpoint("P@1", "7")
        service = Service([1, 1])
        with stored(service, store, api.Now(), until_idle=True) as changes:
            assert service.reads == []
            assert ids(changes) == ["P1"]

    def test_a_corrupt_checkpoint_is_refused_before_anything_is_read(self, tmp_path):
        store, service = api.FileCheckpointStore(tmp_path), Service([1])
        store.path("w").write_text("{")
        assert failed(stored(service, store))[1].category == api.ErrorCategory.INVALID_REQUEST
        assert service.reads == []


@pytest.mark.shows("Plan 16")
class TestOutage:
    @pytest.mark.usefixtures("longest")
    def test_retryable_failures_are_retried_with_growing_waits(self):
        changes = iterator(Service([1], faults=[throttled() for _ in range(9)]), until_idle=True)
        assert ids(changes) == ["P0"]
        # An outage report divides a wait into two.
        moments = set(itertools.accumulate(changes._feed.timer.waits))
        assert moments >= set(itertools.accumulate([0.5, 1, 2, 4, 8, 16, 30, 30, 30]))
        assert max(moments) == 121.5

    def test_waits_are_fully_jittered(self):
        faults = [throttled() for _ in range(30)]
        changes = iterator(Service([1], faults=faults), until_idle=True, max_outage_seconds=10_000)
        list(changes)
        assert min(changes._feed.timer.waits[7:]) < 15 < max(changes._feed.timer.waits[7:])

    def test_what_the_service_asks_for_is_waited_in_full(self):
        changes = iterator(Service([1], faults=[throttled(30) for _ in range(3)]), until_idle=True)
        assert ids(changes) == ["P0"]
        assert 90 <= sum(changes._feed.timer.waits) < 100

    @pytest.mark.usefixtures("longest")
    @pytest.mark.parametrize("after", [None, 1e9])
    def test_raises_the_last_error_when_it_lasts_too_long(self, after):
        faults = [throttled(after) for _ in range(100)]
        service = Service([1], faults=faults)
        changes = iterator(service, max_outage_seconds=20)
        began = changes._feed.timer.now()
        _, raised = failed(changes)
        assert changes._feed.timer.now() - began == 20
        assert raised is faults[len(service.reads) - 1]

    @pytest.mark.parametrize(("began", "most"), [(1000.0, 29.9), (1e9 + 0.1, 10 / 3), (1000.0, 30.0)])
    def test_reports_of_an_outage_need_one_wait_each(self, monkeypatch, began, most):
        """Only one wait precedes each report, even if a read fails just before it is due and times are
        rounded.
        """
        monkeypatch.setattr("random.uniform", lambda low, high: min(high, most))
        faults = [throttled() for _ in range(100)]
        changes = iterator(Service([1], faults=faults), until_idle=True, max_outage_seconds=10_000)
        changes._feed.timer.time = began
        list(changes)
        assert len(changes._feed.timer.waits) < 400
        assert changes._feed.timer.time - began > 300

    @pytest.mark.parametrize(
        ("faults", "seconds", "most", "kept"),
        [
            ([throttled(), None, throttled(), None], 15.0, 20, True),  # a success gives the whole time again
            ([throttled() for _ in range(3)], 15.0, 20, False),  # the time counts from the first failure
            ([throttled()], 0.0, 0, False),
            ([error(api.ErrorCategory.CHECKPOINT_EXPIRED)], 0.0, 20, False),
        ],
    )
    def test_how_long_it_may_last(self, faults, seconds, most, kept):
        service = Service([1, 1], faults=faults, seconds=seconds)
        changes = iterator(service, max_outage_seconds=most, until_idle=True)
        if kept:
            assert ids(changes) == ["P0", "P1"]
            return
        assert failed(changes)[0] == []
        assert changes._feed.timer.waits == [] if seconds == 0 else len(service.reads) > 1
        # The same iterator begins again with the whole time.
        service.faults = [throttled()] if most else []
        assert ids(changes) == ["P0", "P1"]

    def test_a_service_that_was_never_read_may_have_a_time_of_its_own(self):
        service = Service([1, 1], faults=[throttled()])
        changes = iterator(service, max_start_seconds=0, max_outage_seconds=20, until_idle=True)
        assert failed(changes)[0] == []
        assert (len(service.reads), changes._feed.timer.waits) == (1, [])
        service.faults = [throttled()]
        assert failed(changes)[0] == []  # it has not been read yet
        service.faults = [None, throttled(), throttled()]
        assert ids(changes) == ["P0", "P1"]  # from the first page on, it is an outage
        service.faults = [throttled()]
        assert ids(changes) == []  # in another loop, too

    def test_a_service_that_starts_late_is_waited_for(self):
        service = Service([1], faults=[throttled() for _ in range(200)])
        changes = iterator(service, max_start_seconds=math.inf, max_outage_seconds=1, until_idle=True)
        assert ids(changes) == ["P0"]

    def test_after_an_error_the_iterator_goes_on_where_it_was(self):
        faults = [None, error(api.ErrorCategory.NOT_FOUND)]
        changes = iterator(Service([2, 2], faults=faults), until_idle=True)
        assert failed(changes)[0] == ["P0", "P1"]
        assert changes.continuation_token == "P@1"
        assert ids(changes) == ["P2", "P3"]

    def test_a_partition_that_fails_for_too_long_is_named(self):
        service = Service([1] * 10, seconds=4.0)
        service.errors = {"shard-7": "access denied"}
        changes = iterator(service, max_outage_seconds=10)
        got, raised = failed(changes)
        assert "shard-7" in raised.message
        assert "access denied" in raised.message
        assert (raised.category, raised.retryable) == (api.ErrorCategory.TRANSIENT_FAILURE, True)
        assert got == ["P0", "P1", "P2", "P3"]
        assert changes.continuation_token == "P@4"

    @pytest.mark.parametrize(
        "errors",
        [
            lambda reads: {"shard-7": "slow"} if reads % 3 else {},
            lambda reads: {f"shard-{reads // 2}": "slow"} if reads < 20 else {},
        ],
        ids=["one works in between", "one after the other"],
    )
    def test_partitions_that_work_again_are_not_one_outage(self, errors):
        service = Service([1] * 20, seconds=4.0)
        service.on_read = lambda: setattr(service, "errors", errors(len(service.reads)))
        assert len(whole_life(service, max_outage_seconds=10)) == 20

    @pytest.mark.usefixtures("longest")
    def test_empty_pages_with_a_failing_partition_are_not_asked_for_in_a_hurry(self):
        service = Service([])
        service.errors = {"shard-7": "slow"}
        changes = iterator(service)
        list(itertools.islice(changes.pages(), 4))
        assert changes._feed.timer.waits == [0.5, 1, 2]


class TestPoison:
    def poisoned(self, skip_token="P@2"):
        service = Service([1, 1, 1])
        read = service.read_changes

        def reading(request, options=None):
            page = read(request, options)
            if page.continuation_token == "P@2":
                raise error(api.ErrorCategory.PROVIDER_ERROR, skip_token=skip_token)
            if request.start_position == api.FromContinuationToken("P@2"):
                return attrs.evolve(page, notices=(api.RecordSkipped("P", "sequence 1"),))
            return page

        service.read_changes = reading
        return service

    @pytest.mark.parametrize(
        ("token", "options"),
        [("P@2", {}), (None, {"on_poison": "skip"}), ("P@1", {"on_poison": "skip"})],
        ids=["by default", "without a way around", "with a token that leads nowhere"],
    )
    def test_raises(self, token, options):
        changes = iterator(self.poisoned(token), until_idle=True, **options)
        got, raised = failed(changes)
        assert (got, raised.detail.skip_token) == (["P0"], token)
        assert changes.continuation_token == "P@1"

    def test_skip_goes_on_behind_the_record(self):
        pages = list(iterator(self.poisoned(), until_idle=True, on_poison="skip").pages())
        assert [change.event_id for page in pages for change in page.events] == ["P0", "P2"]
        assert pages[1].notices == (api.RecordSkipped("P", "sequence 1"),)

    def test_the_skipped_record_is_behind_the_checkpoint_only_when_its_notice_is_delivered(self, store):
        pages = stored(self.poisoned(), store, on_poison="skip").pages()
        next(pages)
        next(pages)
        assert store.saved == ["P@1"]


@pytest.mark.shows("Plan 16")
class TestLife:
    def test_a_closed_iterator_is_refused_and_the_client_stays_open(self):
        service = Service([1])
        service.close = lambda: pytest.fail("closed")
        with iterator(service, until_idle=True) as changes:
            assert ids(changes) == ["P0"]
        changes.close()
        assert "closed" in failed(changes)[1].message

    def test_an_error_in_the_with_block_is_not_covered_by_one_of_the_store(self, store):
        def fail():
            with stored([], store, checkpoint_interval_seconds=60) as changes:
                list(itertools.islice(changes.pages(), 3))
                store.failures = ["lost"]
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()

    def test_close_raises_the_error_of_the_store_and_closes_the_connection(self, store):
        changes, closed = stored([], store, checkpoint_interval_seconds=60), []
        changes._feed.at_close = lambda: closed.append("connection")
        list(itertools.islice(changes.pages(), 3))
        store.failures = ["lost"]
        with pytest.raises(api.MulticloudDbError):
            changes.close()
        assert (store.saved, closed) == (["P@1"], ["connection"])
        changes.close()
        assert store.saved == ["P@1", "P@3"]

    def test_a_close_that_is_given_up_during_its_save_asks_for_nothing_more(self, store):
        """So ends a coroutine whose event loop is closed."""
        changes, closed = stored([], store, checkpoint_interval_seconds=60), []
        changes._feed.at_close = lambda: closed.append("connection")
        list(itertools.islice(changes.pages(), 3))
        steps = changes._feed.close(save=True)
        next(steps)
        steps.close()
        assert closed == []

    def test_next_says_that_there_is_no_more(self):
        changes = iterator(Service([1]), until_idle=True)
        assert next(changes).event_id == "P0"
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(changes)

    def test_a_second_loop_takes_over_from_the_first(self):
        changes = iterator(Service([1, 1, 1]))
        first = changes.pages()
        next(first)
        second = changes.pages()
        assert next(second).events[0].event_id == "P0"
        with pytest.raises(api.MulticloudDbError, match="is iterated twice"):
            next(first)
        assert next(second).events[0].event_id == "P1"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"timeout_seconds": 0}, "timeout_seconds"),
            ({"timeout_seconds": 0.0009}, r"timeout_seconds: must be 0\.001 or more"),
            ({"wait_seconds": -1}, "wait_seconds"),
            ({"wait_seconds": "5"}, "wait_seconds.*int or float, not str"),
            ({"until_idle": 1}, "until_idle.*bool"),
            ({"idle_backoff_seconds": 0}, "idle_backoff_seconds"),
            ({"idle_backoff_seconds": 0.0009}, r"idle_backoff_seconds: must be 0\.001 or more"),
            ({"idle_backoff_seconds": 9}, "max_idle_backoff_seconds.*less than idle_backoff_seconds"),
            ({"max_idle_backoff_seconds": float("nan")}, "max_idle_backoff_seconds"),
            ({"max_outage_seconds": -1}, "max_outage_seconds.*use 0"),
            ({"checkpoint_name": "w"}, "checkpoint_store.*pass both"),
            ({"checkpoint_store": MemoryStore()}, "checkpoint_name.*pass both"),
            ({"checkpoint_name": " ", "checkpoint_store": MemoryStore()}, "checkpoint_name.*empty"),
            ({"checkpoint_interval_seconds": -1}, "checkpoint_interval_seconds"),
            ({"on_poison": "ignore"}, 'on_poison.*write "raise" or "skip"'),
        ],
    )
    def test_a_wrong_setting_is_refused_by_name(self, options, message):
        with pytest.raises(api.MulticloudDbError, match=f"ChangeFeedIterator.{message}") as caught:
            iterator(Service([]), **options)
        assert caught.value.category == api.ErrorCategory.INVALID_REQUEST

    def test_a_wait_and_a_time_limit_may_be_a_millisecond(self):
        changes = iterator(Service([1]), idle_backoff_seconds=0.001, timeout_seconds=0.001, until_idle=True)
        assert ids(changes) == ["P0"]

    @pytest.mark.parametrize("name", [name for name in IteratorSettings.__annotations__ if "seconds" in name])
    def test_a_text_is_no_number_of_seconds(self, name):
        with pytest.raises(api.MulticloudDbError, match=f"{name}.*int or float( or None)?, not str"):
            iterator(Service([]), **{name: "5"})

    def test_every_setting_is_given_by_name_and_is_one_of_the_client(self):
        with pytest.raises(api.MulticloudDbError, match=r"ChangeFeedIterator\.request"):
            api.ChangeFeedIterator(Service([]), "orders")
        client, request, *others = inspect.signature(api.ChangeFeedIterator).parameters.values()
        assert (client.name, request.name) == ("client", "request")
        assert {each.kind for each in others} == {inspect.Parameter.KEYWORD_ONLY}
        assert {each.name for each in others} == set(IteratorSettings.__annotations__)
        assert {each.name: each.default for each in others if each.default is not None} == {
            "timeout_seconds": 30,
            "wait_seconds": 0,
            "until_idle": False,
            "idle_backoff_seconds": 0.005,
            "max_idle_backoff_seconds": 5,
            "max_outage_seconds": 300,
            "checkpoint_interval_seconds": 0,
            "on_poison": "raise",
            "set_aside_documents": False,
            "max_set_aside": 100,
        }


class CrashError(Exception):
    pass


@settings(max_examples=200, deadline=None)
@given(sizes=st.lists(st.integers(0, 3), max_size=12), data=st.data())
def test_nothing_is_skipped_and_order_is_kept_whatever_crashes(sizes, data):
    """The consumer may crash at any event or page, in a read or in a save, and restart in any process."""
    service, store, delivered, changes = Service(sizes), MemoryStore(), [], None
    for _ in range(data.draw(st.integers(0, 6), label="crashes")):
        if changes is None or data.draw(st.booleans(), label="new process"):
            changes = stored(service, store, until_idle=True)
        left = data.draw(st.integers(0, 12), label="steps")
        at = data.draw(st.sampled_from(["event", "page", "read", "save", "saved"]), label="crash at")
        service.faults = [None] * left + [error(api.ErrorCategory.PERMANENT_FAILURE)] if at == "read" else []
        store.failures = [None] * left + ["lost" if at == "save" else "done"] if at.startswith("save") else []
        try:
            run(changes, delivered, left if at in ("event", "page") else None, by_event=at == "event")
        except (CrashError, api.MulticloudDbError):
            continue
        break
    service.faults, store.failures = [], []
    run(stored(service, store, until_idle=True), delivered, None, by_event=True)
    # First deliveries come in order, and a redelivery never skips events.
    numbers = [int(name[1:]) for name in delivered]
    assert set(numbers) == set(range(sum(sizes)))
    for place, number in enumerate(numbers):
        assert number <= max(numbers[:place], default=-1) + 1


def run(changes, delivered, left, *, by_event):
    """Iterate to the end, or to a crash after a number of events or pages."""
    for count, step in enumerate(changes if by_event else changes.pages()):
        delivered.extend([step.event_id] if by_event else ids(step.events))
        if count == left:
            raise CrashError


class Moving(Service):
    """A service at which `Now` is two pages later at each read."""

    def read_changes(self, request, options=None):
        page = super().read_changes(request, options)
        if isinstance(request.start_position, api.Now):
            self.start = f"P@{int(self.start[2:]) + 2}"
        return page


class HandlerStore(MemoryStore):
    """A store in whose saves a signal comes, whose handler calls a function."""

    def __init__(self):
        super().__init__()
        self.handler, self.running = lambda: None, 0

    def save(self, name, token, expected):
        assert not self.running, "a lock of this store would now wait for ever"
        self.running += 1
        try:
            self.handler()
            return super().save(name, token, expected)
        finally:
            self.running -= 1


def test_close_in_a_signal_handler_that_interrupts_a_save_only_stops(face):
    if face == "asyncio":
        return  # asyncio calls its handlers between two steps of its loop
    store = HandlerStore()
    changes = stored([1, 1, 1], store, until_idle=True)
    store.handler = changes.close
    assert ids(changes) == ["P0"]
    assert store.saved == ["P@1"]


def test_another_process_saves_nothing(store, monkeypatch):
    changes = stored([1, 1], store, until_idle=True)
    events = iter(changes)
    next(events)
    with monkeypatch.context() as patch:
        patch.setattr("multiclouddb_api.process.os.getpid", lambda: -1)
        assert "another process" in failed(events)[1].message
    assert store.saved == []


def test_another_process_that_leaves_the_block_saves_nothing(store, monkeypatch):
    changes = stored([0, 0, 1], store, checkpoint_interval_seconds=600)
    pages = iter(changes.pages())
    for _ in range(2):
        next(pages)
    with monkeypatch.context() as patch:
        patch.setattr("multiclouddb_api.process.os.getpid", lambda: -1)
        changes.close()
    assert store.saved == ["P@1"]


def test_a_checkpoint_of_another_reading_is_named(store):
    store.checkpoint = api.Checkpoint("P@1", "7")
    reason = api.ErrorReason.WRONG_RESOURCE
    fault = api.invalid_request("continuation_token", "belongs to a/b", "start again", reason)
    error = failed(stored(Service([1], faults=[fault]), store))[1]
    assert error.message.startswith("checkpoint_name: 'w' in ")
    assert "belongs to a/b" in error.message
    assert error.detail.reason == reason


@pytest.mark.parametrize(("method", "answer"), [("load", {"token": "P@1"}), ("save", None), ("save", "7")])
def test_a_store_that_answers_something_else_is_refused(method, answer, store, monkeypatch):
    monkeypatch.setattr(store, method, lambda *arguments: answer)
    error = failed(stored([1], store, until_idle=True))[1]
    assert error.category == api.ErrorCategory.INVALID_REQUEST
    assert f"checkpoint_store.{method}: returned {type(answer).__name__}" in error.message


class Worker:
    """Handles the events of pages in an iterator, which Ctrl-C may interrupt."""

    def __init__(self, store):
        self.changes = stored(Moving([0, 2, 1, 3, 2]), store, api.Now(), until_idle=True)
        self.handled = []

    def work(self, by_page):
        if by_page:
            for page in self.changes.pages():
                self.handled += ids(page.events)
        else:
            for one in self.changes:
                self.handled.append(one.event_id)


@pytest.mark.parametrize("by_page", [True, False], ids=["pages", "events"])
def test_after_ctrl_c_in_any_line_it_goes_on_and_has_saved_nothing_that_was_not_handled(by_page, face):
    if face == "asyncio":
        return  # asyncio turns Ctrl-C into a cancellation, see `test_aio.py`
    number, was_interrupted = 0, True
    everything = ids(event("P", each) for each in range(8))
    while was_interrupted:
        number += 1
        store = MemoryStore()
        worker = Worker(store)
        was_interrupted = interrupted_at(number, lambda worker=worker: worker.work(by_page))
        handled = list(worker.handled)
        crashed = copy.deepcopy(store)
        after_a_crash = whole_life([0, 2, 1, 3, 2], checkpoint_store=crashed, checkpoint_name="w")
        worker.work(by_page)
        first = everything.index(worker.handled[0])
        assert set(worker.handled) == set(everything[first:]), number
        if handled:
            assert {*handled, *after_a_crash} >= set(everything[everything.index(handled[0]) :]), number
    assert number > 200
