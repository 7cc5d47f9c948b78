"""Tests `ChangeFeedIterator` over a scripted service and a clock that does not wait."""

import itertools
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

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeEvent,
    ChangeFeedIterator,
    ChangeFeedPage,
    ChangeFeedRequest,
    ChangeType,
    Checkpoint,
    ChildPartition,
    ErrorCategory,
    ErrorDetail,
    FeedEnded,
    FileCheckpointStore,
    FromContinuationToken,
    Gap,
    MulticloudDbError,
    MulticloudDbKey,
    Now,
    OperationDiagnostics,
    PhysicalPartition,
    RecordSkipped,
    ResourceAddress,
)
from multiclouddb_api.iterator import IteratorSettings
from multiclouddb_api.pacing import Timer
from multiclouddb_conformance.waiting import assert_prompt

ADDRESS = ResourceAddress("shop", "orders")
MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)


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
    """A checkpoint store that counts its calls."""

    def __init__(self):
        self.checkpoint = None
        self.saved = []
        self.failures = []

    def load(self, name):
        return self.checkpoint

    def save(self, name, token, expected):
        if expected != (self.checkpoint and self.checkpoint.version):
            raise error(ErrorCategory.CONFLICT)
        failure = self.failures.pop(0) if self.failures else None
        if failure != "lost":
            self.checkpoint = Checkpoint(token, str(len(self.saved) + 1))
            self.saved.append(token)
        if failure is not None:
            raise error(ErrorCategory.PERMANENT_FAILURE)
        return self.checkpoint


def error(category, *, retryable=False, skip_token=None):
    return MulticloudDbError("it failed", ErrorDetail(category, retryable=retryable, skip_token=skip_token))


def throttled():
    return error(ErrorCategory.THROTTLED, retryable=True)


def event(partition, number):
    return ChangeEvent(
        event_id=f"{partition}{number}",
        key=MulticloudDbKey({"id": number}),
        type=ChangeType.UPDATE,
        timestamp=MOMENT,
        new_item_state=None,
        old_item_state=None,
        order_key=f"{number:04}",
        by_expiry=None,
        backfilled=False,
        address=ADDRESS,
        partition_id=partition,
    )


class Service:
    """A service whose partitions are lists of pages; `"P@2"` is the token after the second page of P.

    Each page is either a number of events, or a ChangeFeedPage that supplies the notices and diagnostics.
    After its last page a partition is idle, or retired if it has children.

    Args:
        pages: Maps each partition to its pages.
        children: Maps each parent to its children.
        start: The token from which Beginning, Now and AtTime start.
    """

    def __init__(self, pages, children=None, start="P@0"):
        self.partitions = pages
        self.children = children or {}
        self.start = start
        self.reads = []
        self.options = []
        self.faults = []
        self.on_read = lambda: None
        self.errors = {}
        self.seconds = 0.0
        self.timer = None

    def read_changes(self, request, options=None):
        self.reads.append(request)
        self.options.append(options)
        self.on_read()
        if self.timer is not None:
            self.timer.time += self.seconds
        if self.faults and (fault := self.faults.pop(0)) is not None:
            raise fault
        token = self.start
        if isinstance(request.start_position, FromContinuationToken):
            token = request.start_position.token
        partition, _, index = token.partition("@")
        if isinstance(request.scope, PhysicalPartition):
            assert request.scope.partition_id == partition
        return self.page(partition, int(index))

    def events(self, partition):
        counts = [page for page in self.partitions[partition] if isinstance(page, int)]
        return [f"{partition}{number}" for number in range(sum(counts))]

    def page(self, partition, index):
        pages = self.partitions[partition]
        before = sum(page for page in pages[:index] if isinstance(page, int))
        diagnostics = OperationDiagnostics(partition_errors=dict(self.errors))
        if index < len(pages):
            shape = pages[index]
            count = shape if isinstance(shape, int) else 0
            events = tuple(event(partition, before + number) for number in range(count))
            page = ChangeFeedPage(events, f"{partition}@{index + 1}", diagnostics=diagnostics)
            if not isinstance(shape, int):
                page = attrs.evolve(shape, continuation_token=f"{partition}@{index + 1}")
            return page
        retired = partition in self.children
        named = tuple(
            ChildPartition(child, self.parents(child), f"{child}@0")
            for child in self.children.get(partition, ())
        )
        idle = not retired and not self.errors
        return ChangeFeedPage((), f"{partition}@{index + 1}", idle, retired, named, (), diagnostics)

    def parents(self, child):
        return tuple(parent for parent, children in self.children.items() if child in children)


def iterator(service, start=None, scope=None, **options):
    request = ChangeFeedRequest(ADDRESS, start or Beginning(), **({"scope": scope} if scope else {}))
    made = ChangeFeedIterator(service, request, **options)
    made._timer = service.timer = FakeTimer()
    return made


def ids(events):
    return [event.event_id for event in events]


def collect(changes, got):
    """Collect events, including those that came before an error."""
    for change in changes:
        got.append(change.event_id)


def whole_life(service, **options):
    return ids(iterator(service, until_idle=True, **options))


@pytest.mark.shows("Plan 16")
class TestPagesAndEvents:
    def test_events_come_one_by_one_in_order(self):
        service = Service({"P": [2, 0, 3]})
        assert whole_life(service) == service.events("P")

    def test_pages_come_whole_empty_and_idle_ones_too(self):
        pages = list(iterator(Service({"P": [2, 0, 3]}), until_idle=True).pages())
        assert [len(page.events) for page in pages] == [2, 0, 3, 0]
        assert [page.idle for page in pages] == [False, False, False, True]

    def test_each_read_goes_on_behind_the_page_before(self):
        service = Service({"P": [1, 1]})
        whole_life(service)
        positions = [request.start_position for request in service.reads]
        assert positions == [Beginning(), FromContinuationToken("P@1"), FromContinuationToken("P@2")]

    def test_the_request_is_otherwise_passed_through(self):
        service = Service({"P": [1]})
        iterator(service, AtTime(MOMENT), until_idle=True)
        request = ChangeFeedRequest(ADDRESS, AtTime(MOMENT), max_page_size=7)
        changes = ChangeFeedIterator(service, request, until_idle=True)
        changes._timer = FakeTimer()
        list(changes)
        assert {attrs.evolve(read, start_position=AtTime(MOMENT)) for read in service.reads} == {request}

    def test_nothing_is_read_before_the_first_is_asked_for(self):
        service = Service({"P": [1]})
        iter(iterator(service))
        assert service.reads == []

    def test_the_settings_reach_the_call(self):
        service = Service({"P": []})
        list(iterator(service, timeout_seconds=7, wait_seconds=3, until_idle=True))
        assert (service.options[0].timeout_seconds, service.options[0].wait_seconds) == (7, 3)

    def test_a_feed_that_ended_ends_the_iteration_after_its_page(self):
        ended = ChangeFeedPage((), "", notices=(FeedEnded("dropped"),))
        pages = list(iterator(Service({"P": [1, ended, 1]})).pages())
        assert [page.notices for page in pages] == [(), (FeedEnded("dropped"),)]

    def test_a_retired_partition_ends_the_iteration(self):
        service = Service({"P": [1], "Q": [1]}, {"P": ["Q"]})
        pages = list(iterator(service, scope=PhysicalPartition("P")).pages())
        assert pages[-1].partition_retired
        assert [child.partition_id for child in pages[-1].child_partitions] == ["Q"]

    def test_other_notices_do_not_end_it(self):
        gap = ChangeFeedPage((), "", notices=(Gap("P", "1", "5"),))
        assert whole_life(Service({"P": [1, gap, 1]})) == ["P0", "P1"]


@pytest.mark.shows("Plan 16")
class TestIdleBackoff:
    def take(self, count, service, **options):
        changes = iterator(service, **options)
        list(itertools.islice(changes.pages(), count))
        return changes._timer.waits

    def test_waits_grow_within_their_bounds(self):
        waits = self.take(16, Service({"P": []}))
        bounds = [0.005 * 2**number for number in range(10)] + 5 * [5]
        assert len(waits) == len(bounds)
        assert all(0.005 <= wait <= bound for wait, bound in zip(waits, bounds, strict=True))

    def test_the_longest_waits_are_at_least_a_fiftieth(self, monkeypatch):
        """The longest waits have a lower limit, so a short first wait does not make an idle consumer read
        more often."""
        monkeypatch.setattr("random.uniform", lambda low, high: low)
        waits = self.take(13, Service({"P": []}))
        assert waits[0] == 0.005
        assert waits[-1] == pytest.approx(0.1)

    def test_waits_are_jittered(self):
        waits = self.take(40, Service({"P": []}))
        assert len(set(waits[10:])) > 20

    def test_waits_reach_their_bounds(self, monkeypatch):
        monkeypatch.setattr("random.uniform", lambda low, high: high)
        waits = self.take(6, Service({"P": []}), idle_backoff_seconds=1, max_idle_backoff_seconds=6)
        assert waits == [1, 2, 4, 6, 6]

    def test_the_first_event_resets_them(self, monkeypatch):
        monkeypatch.setattr("random.uniform", lambda low, high: high)
        idle = ChangeFeedPage((), "", idle=True)
        waits = self.take(8, Service({"P": [idle, idle, idle, 1, idle, idle]}))
        assert waits == pytest.approx([0.005, 0.01, 0.02, 0.005, 0.01, 0.02][: len(waits)])
        assert len(waits) == 6

    def test_an_empty_page_that_is_not_idle_is_followed_at_once(self):
        assert self.take(5, Service({"P": [0, 0, 0, 0, 0]})) == []

    def test_time_spent_in_a_long_poll_is_not_spent_again(self):
        service = Service({"P": []})
        service.seconds = 20.0
        assert self.take(5, service, wait_seconds=20) == []

    def test_a_slow_read_without_a_long_poll_shortens_no_wait(self):
        service = Service({"P": []})
        service.seconds = 20.0
        assert len(self.take(5, service)) == 4


@pytest.mark.shows("Plan 16")
class TestUntilIdle:
    def test_ends_after_the_first_idle_page(self):
        idle = ChangeFeedPage((), "", idle=True)
        service = Service({"P": [2, idle, 2]})
        changes = iterator(service, until_idle=True)
        assert ids(changes) == ["P0", "P1"]
        assert changes.continuation_token == "P@2"
        assert changes._timer.waits == []

    def test_the_same_iterator_goes_on_when_iterated_again(self):
        idle = ChangeFeedPage((), "", idle=True)
        changes = iterator(Service({"P": [1, idle, 1]}), until_idle=True)
        assert ids(changes) == ["P0"]
        assert ids(changes) == ["P1"]

    def test_an_empty_page_that_is_not_idle_does_not_end_it(self):
        assert whole_life(Service({"P": [0, 0, 1]})) == ["P0"]


def interrupt(timer, place, act):
    """Run an action, and stop a timer when the action reaches a given instruction.

    Returns:
        The number of seconds until the timer was stopped, or None if the action has fewer instructions.
    """
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
        service = Service({"P": []})
        changes = ChangeFeedIterator(
            service,
            ChangeFeedRequest(ADDRESS, Beginning()),
            idle_backoff_seconds=60,
            max_idle_backoff_seconds=60,
        )
        stopped = []

        def later():
            while not service.reads:
                time.sleep(0.01)
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

    def check_stopped(self, act):
        assert_prompt(0.1, lambda: self.run_stopped(act), at_most=30, tries=10)

    def test_from_another_thread_takes_effect_within_a_tenth_of_a_second(self):
        self.check_stopped(lambda changes: changes.stop())

    def test_from_a_signal_handler_takes_effect_within_a_tenth_of_a_second(self):
        changes = []
        before = signal.signal(signal.SIGUSR1, lambda *_: changes[0].stop())

        def act(iterating):
            changes[:] = [iterating]
            os.kill(os.getpid(), signal.SIGUSR1)

        try:
            self.check_stopped(act)
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
        service = Service({"P": [1]})
        changes = iterator(service)
        changes.stop()
        assert ids(changes) == []
        assert service.reads == []

    def test_in_a_read_drops_its_page(self):
        service = Service({"P": [1, 1]})
        store = MemoryStore()
        changes = iterator(service, checkpoint_store=store, checkpoint_name="w")
        service.on_read = lambda: changes.stop() if len(service.reads) == 2 else None
        assert ids(changes) == ["P0"]
        assert changes.continuation_token == "P@1"
        assert store.saved == ["P@1"]

    def test_in_a_read_drops_its_page_in_a_loop_over_pages_too(self):
        service = Service({"P": [1, 1]})
        changes = iterator(service)
        service.on_read = lambda: changes.stop() if len(service.reads) == 2 else None
        assert [ids(page.events) for page in changes.pages()] == [["P0"]]

    def test_in_a_retry_ends_it_without_an_error(self):
        service = Service({"P": [1]})
        changes = iterator(service)
        service.faults = [throttled() for _ in range(5)]
        service.on_read = lambda: changes.stop() if len(service.reads) == 3 else None
        assert ids(changes) == []
        assert len(service.reads) == 3

    def stopped_at_the_second(self, changes):
        """Return the events of an iteration that is stopped at the second event."""
        got = []
        for change in changes:
            got.append(change.event_id)
            if len(got) == 2:
                changes.stop()
        return got

    def test_in_the_middle_of_a_page_leaves_the_page_to_be_delivered_again(self):
        store = MemoryStore()
        changes = iterator(Service({"P": [1, 3]}), checkpoint_store=store, checkpoint_name="w")
        assert self.stopped_at_the_second(changes) == ["P0", "P1"]
        changes.close()
        assert store.saved == ["P@1"]

    def test_at_the_last_event_of_a_page_saves_the_page(self):
        store = MemoryStore()
        changes = iterator(Service({"P": [2, 2]}), checkpoint_store=store, checkpoint_name="w")
        assert self.stopped_at_the_second(changes) == ["P0", "P1"]
        assert store.saved == ["P@1"]

    def test_in_the_body_of_a_loop_over_pages_saves_the_page(self):
        store = MemoryStore()
        changes = iterator(Service({"P": [2, 2]}), checkpoint_store=store, checkpoint_name="w")
        for _ in changes.pages():
            changes.stop()
        assert store.saved == ["P@1"]


@pytest.mark.shows("Plan 16")
class TestCheckpoint:
    def test_a_page_is_saved_only_when_the_caller_comes_back_for_more(self):
        store = MemoryStore()
        pages = iterator(Service({"P": [2, 1, 1]}), checkpoint_store=store, checkpoint_name="w").pages()
        saved = []
        for _ in range(3):
            next(pages)
            saved.append(list(store.saved))
        assert saved == [[], ["P@1"], ["P@1", "P@2"]]

    def test_with_events_a_page_is_saved_behind_its_last_event(self):
        store = MemoryStore()
        changes = iter(iterator(Service({"P": [2, 1]}), checkpoint_store=store, checkpoint_name="w"))
        saved = []
        for _ in range(3):
            next(changes)
            saved.append(list(store.saved))
        assert saved == [[], [], ["P@1"]]

    def test_a_page_with_nothing_but_a_notice_is_saved_when_the_caller_comes_back(self):
        store = MemoryStore()
        gap = ChangeFeedPage((), "", notices=(Gap("P", "1", "5"),))
        pages = iterator(Service({"P": [gap, 1]}), checkpoint_store=store, checkpoint_name="w").pages()
        next(pages)
        assert store.saved == []
        next(pages)
        assert store.saved == ["P@1"]

    def test_the_token_is_that_of_the_last_page_the_caller_came_back_from(self):
        changes = iterator(Service({"P": [1, 1]}))
        pages = changes.pages()
        assert changes.continuation_token is None
        next(pages)
        assert changes.continuation_token is None
        next(pages)
        assert changes.continuation_token == "P@1"

    def test_the_token_of_the_request_is_the_first(self):
        changes = iterator(Service({"P": [1, 1]}), FromContinuationToken("P@1"))
        assert changes.continuation_token == "P@1"

    def test_a_stored_token_goes_before_the_start_of_the_request(self):
        store = MemoryStore()
        store.checkpoint = Checkpoint("P@2", "1")
        service = Service({"P": [1, 1, 1]})
        assert whole_life(service, checkpoint_store=store, checkpoint_name="w") == ["P2"]

    def test_a_crash_in_the_body_delivers_the_page_again(self):
        service = Service({"P": [2, 2]})
        store = MemoryStore()
        pages = iterator(service, checkpoint_store=store, checkpoint_name="w").pages()
        next(pages)
        next(pages)
        del pages
        assert whole_life(service, checkpoint_store=store, checkpoint_name="w") == ["P2", "P3"]

    def test_a_break_delivers_the_page_again(self):
        store = MemoryStore()
        changes = iterator(
            Service({"P": [2, 2]}), checkpoint_store=store, checkpoint_name="w", until_idle=True
        )
        for change in changes:
            if change.event_id == "P3":
                break
        assert store.saved == ["P@1"]
        assert ids(changes) == ["P2", "P3"]

    def test_idle_pages_are_saved_each_by_default(self):
        store = MemoryStore()
        changes = iterator(Service({"P": []}), checkpoint_store=store, checkpoint_name="w")
        list(itertools.islice(changes.pages(), 4))
        assert store.saved == ["P@1", "P@2", "P@3", "P@4"]

    def test_idle_pages_are_saved_once_an_interval(self):
        store = MemoryStore()
        changes = iterator(
            Service({"P": []}),
            checkpoint_store=store,
            checkpoint_name="w",
            checkpoint_interval_seconds=60,
            idle_backoff_seconds=5,
        )
        list(itertools.islice(changes.pages(), 1 + 25))
        assert store.saved == ["P@1", "P@13", "P@25"]

    def test_events_are_saved_within_the_interval_too(self):
        store = MemoryStore()
        whole_life(
            Service({"P": [0, 0, 1, 0]}),
            checkpoint_store=store,
            checkpoint_name="w",
            checkpoint_interval_seconds=60,
        )
        assert store.saved == ["P@1", "P@3", "P@5"]

    def test_what_the_interval_held_back_is_saved_at_a_clean_end(self):
        store = MemoryStore()
        options = {"checkpoint_store": store, "checkpoint_name": "w", "checkpoint_interval_seconds": 60}
        with iterator(Service({"P": []}), **options) as changes:
            list(itertools.islice(changes.pages(), 3))
            assert store.saved == ["P@1"]
        assert store.saved == ["P@1", "P@3"]

    def test_a_position_that_did_not_move_is_not_saved_again(self):
        store = MemoryStore()
        service = Service({"P": []})
        service.page = lambda partition, index: ChangeFeedPage((), "P@0", idle=True)
        changes = iterator(service, checkpoint_store=store, checkpoint_name="w")
        list(itertools.islice(changes.pages(), 5))
        assert store.saved == ["P@0"]

    def test_a_second_worker_gets_the_conflict(self, tmp_path):
        service = Service({"P": [1, 1, 1, 1]})
        options = {"checkpoint_store": FileCheckpointStore(tmp_path), "checkpoint_name": "w"}
        one, two = (iter(iterator(service, **options)) for _ in range(2))
        next(one)
        next(two)
        next(one)
        with pytest.raises(MulticloudDbError) as caught:
            next(two)
        assert caught.value.category == ErrorCategory.CONFLICT
        assert "its own name" in caught.value.message
        assert next(one).event_id == "P2"

    def test_a_worker_with_a_conflict_does_not_take_over(self):
        """A worker with a conflict does not continue, even if both workers wrote the same token."""
        service = Service({"P": [1, 1, 1, 1]})
        store = MemoryStore()
        one, two = (iterator(service, checkpoint_store=store, checkpoint_name="w") for _ in range(2))
        both = [iter(one), iter(two)]
        for changes in both:
            next(changes)
        next(both[0])
        for _ in range(2):
            with pytest.raises(MulticloudDbError) as caught:
                list(two)
            assert caught.value.category == ErrorCategory.CONFLICT
        assert store.saved == ["P@1"]

    def test_a_save_that_failed_is_made_again(self):
        store = MemoryStore()
        store.failures = ["lost"]
        changes = iterator(
            Service({"P": [1, 1]}), checkpoint_store=store, checkpoint_name="w", until_idle=True
        )
        with pytest.raises(MulticloudDbError):
            list(changes)
        assert ids(changes) == ["P1"]
        assert store.checkpoint.token == "P@3"

    def test_a_save_that_failed_but_was_done_is_no_conflict(self):
        store = MemoryStore()
        store.failures = ["done"]
        changes = iterator(
            Service({"P": [1, 1]}), checkpoint_store=store, checkpoint_name="w", until_idle=True
        )
        with pytest.raises(MulticloudDbError):
            list(changes)
        assert ids(changes) == ["P1"]
        assert store.checkpoint.token == "P@3"

    def test_a_start_at_now_is_stored_before_anything_is_delivered(self):
        store = MemoryStore()
        service = Service({"P": [0, 1]})
        options = {"checkpoint_store": store, "checkpoint_name": "w", "checkpoint_interval_seconds": 600}
        changes = iter(iterator(service, Now(), wait_seconds=20, **options))
        next(changes)
        assert store.saved == ["P@1"]
        assert [option.wait_seconds for option in service.options] == [0, 20]

    def test_events_of_the_first_page_at_now_come_again_after_an_exception(self):
        """Another read from `Now` would start after these events."""
        service = Service({"P": [1, 1]})
        changes = iterator(service, Now(), until_idle=True)
        pages = changes.pages()
        next(pages)
        pages.close()
        service.start = "P@1"
        assert ids(changes) == ["P0", "P1"]

    def test_a_corrupt_checkpoint_is_refused_before_anything_is_read(self, tmp_path):
        store = FileCheckpointStore(tmp_path)
        store.path("w").write_text("{")
        service = Service({"P": [1]})
        with pytest.raises(MulticloudDbError, match="truncated"):
            whole_life(service, checkpoint_store=store, checkpoint_name="w")
        assert service.reads == []


@pytest.mark.shows("Plan 16")
class TestOutage:
    def test_retryable_failures_are_retried_with_growing_waits(self, monkeypatch):
        monkeypatch.setattr("random.uniform", lambda low, high: high)
        service = Service({"P": [1]})
        service.faults = [throttled() for _ in range(9)]
        changes = iterator(service, until_idle=True)
        assert ids(changes) == ["P0"]
        moments = set(itertools.accumulate(changes._timer.waits))  # an outage report divides a wait into two
        assert moments >= set(itertools.accumulate([0.5, 1, 2, 4, 8, 16, 30, 30, 30]))
        assert max(moments) == 121.5

    def test_what_the_service_asks_for_is_waited_in_full(self):
        service = Service({"P": [1]})
        detail = ErrorDetail(ErrorCategory.THROTTLED, retryable=True, retry_after_seconds=30)
        service.faults = [MulticloudDbError("it failed", detail) for _ in range(3)]
        changes = iterator(service, until_idle=True)
        assert ids(changes) == ["P0"]
        assert 90 <= sum(changes._timer.waits) < 100

    def test_what_the_service_asks_for_does_not_make_an_outage_longer(self):
        service = Service({"P": [1]})
        detail = ErrorDetail(ErrorCategory.THROTTLED, retryable=True, retry_after_seconds=1e9)
        service.faults = [MulticloudDbError("it failed", detail) for _ in range(3)]
        changes = iterator(service, max_outage_seconds=20)
        began = changes._timer.now()
        with pytest.raises(MulticloudDbError):
            list(changes)
        assert changes._timer.now() - began == 20

    def test_waits_are_fully_jittered(self):
        service = Service({"P": [1]})
        service.faults = [throttled() for _ in range(30)]
        changes = iterator(service, until_idle=True, max_outage_seconds=10_000)
        list(changes)
        assert min(changes._timer.waits[7:]) < 15 < max(changes._timer.waits[7:])

    @pytest.mark.parametrize(("began", "most"), [(1000.0, 29.9), (1e9 + 0.1, 10 / 3), (1000.0, 30.0)])
    def test_reports_of_an_outage_need_one_wait_each(self, monkeypatch, began, most):
        """Only one wait precedes each report, even if a read fails just before it is due and times are
        rounded.
        """
        monkeypatch.setattr("random.uniform", lambda low, high: min(high, most))
        service = Service({"P": [1]})
        service.faults = [throttled() for _ in range(100)]
        changes = iterator(service, until_idle=True, max_outage_seconds=10_000)
        timer, waits = changes._timer, []
        timer.time = began

        def wait(seconds):
            waits.append(seconds)
            timer.time += seconds
            assert len(waits) < 400
            return True

        timer.wait = wait
        list(changes)
        assert sum(waits) > 300

    def test_raises_the_last_error_when_it_lasts_too_long(self, monkeypatch):
        monkeypatch.setattr("random.uniform", lambda low, high: high)
        service = Service({"P": [1]})
        service.faults = [throttled() for _ in range(100)]
        faults = list(service.faults)
        changes = iterator(service, max_outage_seconds=20)
        began = changes._timer.now()
        with pytest.raises(MulticloudDbError) as caught:
            list(changes)
        assert changes._timer.now() - began == 20
        assert caught.value is faults[len(service.reads) - 1]

    def test_a_success_in_between_gives_the_whole_time_again(self):
        service = Service({"P": [1, 1]})
        service.seconds = 15.0
        service.faults = [throttled(), None, throttled(), None]
        assert whole_life(service, max_outage_seconds=20) == ["P0", "P1"]

    def test_the_time_counts_from_the_first_failure(self):
        service = Service({"P": [1]})
        service.faults = [throttled() for _ in range(3)]
        service.seconds = 15.0
        with pytest.raises(MulticloudDbError):
            whole_life(service, max_outage_seconds=20)

    def test_zero_seconds_raise_at_once(self):
        service = Service({"P": [1]})
        service.faults = [throttled()]
        with pytest.raises(MulticloudDbError):
            whole_life(service, max_outage_seconds=0)
        assert len(service.reads) == 1

    def test_other_errors_raise_at_once(self):
        service = Service({"P": [1]})
        service.faults = [error(ErrorCategory.CHECKPOINT_EXPIRED)]
        changes = iterator(service)
        with pytest.raises(MulticloudDbError) as caught:
            list(changes)
        assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED
        assert changes._timer.waits == []

    def test_after_an_error_the_iterator_goes_on_where_it_was(self):
        service = Service({"P": [2, 2]})
        service.faults = [None, error(ErrorCategory.NOT_FOUND)]
        changes = iterator(service, until_idle=True)
        got = []
        with pytest.raises(MulticloudDbError):
            collect(changes, got)
        assert changes.continuation_token == "P@1"
        assert ids(changes) == ["P2", "P3"]

    def test_after_an_outage_the_whole_time_is_given_again(self):
        service = Service({"P": [1]})
        service.faults = [throttled() for _ in range(3)]
        service.seconds = 15.0
        changes = iterator(service, max_outage_seconds=20, until_idle=True)
        with pytest.raises(MulticloudDbError):
            list(changes)
        service.faults = [throttled()]
        assert ids(changes) == ["P0"]

    def test_a_partition_that_fails_for_too_long_is_named(self):
        service = Service({"P": [1] * 10})
        service.errors = {"shard-7": "access denied"}
        service.seconds = 4.0
        changes = iterator(service, max_outage_seconds=10)
        got = []
        with pytest.raises(MulticloudDbError, match=r"shard-7.*access denied") as caught:
            collect(changes, got)
        assert (caught.value.category, caught.value.retryable) == (ErrorCategory.TRANSIENT_FAILURE, True)
        assert got == ["P0", "P1", "P2", "P3"]
        assert changes.continuation_token == "P@4"

    def test_a_partition_that_works_in_between_may_fail_again(self):
        def flicker():
            service.errors = {"shard-7": "slow"} if len(service.reads) % 3 else {}

        service = Service({"P": [1] * 20})
        service.seconds = 4.0
        service.on_read = flicker
        assert len(whole_life(service, max_outage_seconds=10)) == 20

    def test_partitions_that_fail_one_after_the_other_are_not_one_outage(self):
        def wander():
            service.errors = {f"shard-{len(service.reads) // 2}": "slow"} if len(service.reads) < 20 else {}

        service = Service({"P": [1] * 20})
        service.seconds = 4.0
        service.on_read = wander
        assert len(whole_life(service, max_outage_seconds=10)) == 20

    def test_empty_pages_with_a_failing_partition_are_not_asked_for_in_a_hurry(self, monkeypatch):
        monkeypatch.setattr("random.uniform", lambda low, high: high)
        service = Service({"P": []})
        service.errors = {"shard-7": "slow"}
        changes = iterator(service)
        list(itertools.islice(changes.pages(), 4))
        assert changes._timer.waits == [0.5, 1, 2]


class TestPoison:
    def poisoned(self, skip_token="P@2"):
        service = Service({"P": [1, 1, 1]})
        read = service.read_changes

        def reading(request, options=None):
            page = read(request, options)
            if page.continuation_token == "P@2":
                raise error(ErrorCategory.PROVIDER_ERROR, skip_token=skip_token)
            if request.start_position == FromContinuationToken("P@2"):
                return attrs.evolve(page, notices=(RecordSkipped("P", "sequence 1"),))
            return page

        service.read_changes = reading
        return service

    def test_raises_by_default(self):
        changes = iterator(self.poisoned(), until_idle=True)
        got = []
        with pytest.raises(MulticloudDbError) as caught:
            collect(changes, got)
        assert got == ["P0"]
        assert caught.value.detail.skip_token == "P@2"
        assert changes.continuation_token == "P@1"

    def test_skip_goes_on_behind_the_record(self):
        pages = list(iterator(self.poisoned(), until_idle=True, on_poison="skip").pages())
        assert [change.event_id for page in pages for change in page.events] == ["P0", "P2"]
        assert pages[1].notices == (RecordSkipped("P", "sequence 1"),)

    def test_the_skipped_record_is_behind_the_checkpoint_only_when_its_notice_is_delivered(self):
        store = MemoryStore()
        options = {"on_poison": "skip", "checkpoint_store": store, "checkpoint_name": "w"}
        pages = iterator(self.poisoned(), **options).pages()
        next(pages)
        next(pages)
        assert store.saved == ["P@1"]

    def test_a_record_without_a_way_around_raises(self):
        with pytest.raises(MulticloudDbError):
            whole_life(self.poisoned(skip_token=None), on_poison="skip")

    def test_a_skip_token_that_leads_nowhere_raises(self):
        with pytest.raises(MulticloudDbError):
            whole_life(self.poisoned(skip_token="P@1"), on_poison="skip")


@pytest.mark.shows("Plan 16")
class TestLife:
    def test_a_closed_iterator_is_refused(self):
        changes = iterator(Service({"P": [1]}))
        changes.close()
        changes.close()
        with pytest.raises(MulticloudDbError, match="closed"):
            list(changes)

    def test_leaving_the_with_block_closes(self):
        with iterator(Service({"P": [1]}), until_idle=True) as changes:
            assert ids(changes) == ["P0"]
        with pytest.raises(MulticloudDbError, match="closed"):
            list(changes)

    def test_an_error_in_the_with_block_is_not_covered_by_one_of_the_store(self):
        store = MemoryStore()
        options = {"checkpoint_store": store, "checkpoint_name": "w", "checkpoint_interval_seconds": 60}
        changes = iterator(Service({"P": []}), **options)

        def fail():
            with changes:
                list(itertools.islice(changes.pages(), 3))
                store.failures = ["lost"]
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()

    def test_a_second_loop_takes_over_from_the_first(self):
        changes = iterator(Service({"P": [1, 1, 1]}))
        first = changes.pages()
        next(first)
        second = changes.pages()
        assert next(second).events[0].event_id == "P0"
        with pytest.raises(MulticloudDbError, match="one loop"):
            next(first)
        assert next(second).events[0].event_id == "P1"

    def test_the_client_stays_open(self):
        service = Service({"P": []})
        service.close = lambda: pytest.fail("closed")
        iterator(service).close()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"timeout_seconds": 0}, "timeout_seconds"),
            ({"wait_seconds": -1}, "wait_seconds"),
            ({"wait_seconds": "5"}, "wait_seconds.*int or float, not str"),
            ({"until_idle": 1}, "until_idle.*bool"),
            ({"idle_backoff_seconds": 0}, "idle_backoff_seconds"),
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
        with pytest.raises(MulticloudDbError, match=f"ChangeFeedIterator.{message}") as caught:
            iterator(Service({}), **options)
        assert caught.value.category == ErrorCategory.INVALID_REQUEST

    def test_a_request_of_another_type_is_refused(self):
        with pytest.raises(MulticloudDbError, match=r"ChangeFeedIterator\.request"):
            ChangeFeedIterator(Service({}), "orders")

    def test_the_settings_of_the_client_are_those_of_the_iterator(self):
        fields = {field.name for field in attrs.fields(ChangeFeedIterator) if field.kw_only}
        assert fields == IteratorSettings.__annotations__.keys()


class CrashError(Exception):
    pass


@settings(max_examples=400, deadline=None)
@given(sizes=st.lists(st.integers(0, 3), max_size=12), data=st.data())
def test_nothing_is_skipped_and_order_is_kept_whatever_crashes(sizes, data):
    """The consumer may crash at any event or page, in a read or in a save, and restart in any process."""
    service = Service({"P": sizes})
    store = MemoryStore()
    delivered = []
    changes = None
    for _ in range(data.draw(st.integers(0, 6), label="crashes")):
        if changes is None or data.draw(st.booleans(), label="new process"):
            changes = life(service, store)
        left = data.draw(st.integers(0, 12), label="steps")
        at = data.draw(st.sampled_from(["event", "page", "read", "save", "saved"]), label="crash at")
        service.faults = [None] * left + [error(ErrorCategory.PERMANENT_FAILURE)] if at == "read" else []
        store.failures = [None] * left + ["lost" if at == "save" else "done"] if at.startswith("save") else []
        try:
            run(changes, delivered, left if at in ("event", "page") else None, by_event=at == "event")
        except (CrashError, MulticloudDbError):
            continue
        break
    service.faults, store.failures = [], []
    run(life(service, store), delivered, None, by_event=True)
    check(delivered, service)


def life(service, store):
    return iterator(service, until_idle=True, checkpoint_store=store, checkpoint_name="w")


def run(changes, delivered, left, *, by_event):
    """Iterate to the end, or to a crash after a number of events or pages."""
    if by_event:
        for count, change in enumerate(changes):
            delivered.append(change.event_id)
            if count == left:
                raise CrashError
    else:
        for count, page in enumerate(changes.pages()):
            delivered.extend(ids(page.events))
            if count == left:
                raise CrashError


def check(delivered, service):
    """Check that first deliveries came in order, and that a redelivery never skips events."""
    assert set(delivered) == set(service.events("P"))
    seen = -1
    for name in delivered:
        number = int(name[1:])
        assert number <= seen + 1
        seen = max(seen, number)
