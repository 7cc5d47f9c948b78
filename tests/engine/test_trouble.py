"""Tests that faults are retried, reported, tolerated or raised, and never lose an event."""

import gc
import pickle
import threading
import weakref

import pytest

from multiclouddb_api import (
    Beginning,
    ErrorCategory,
    MulticloudDbError,
    Now,
    Observer,
    Renamed,
    SkipToOldest,
)
from multiclouddb_conformance.simulation import (
    ConnectionDroppedError,
    CorruptError,
    DeniedError,
    IteratorExpiredError,
    ServerError,
    ServiceBehaviour,
    SimulationFeed,
    SimulationMapper,
    SimulationProvider,
    SimulationReader,
    ThrottledError,
)
from multiclouddb_spi import Fault, Partition, PartitionState, Survey

BEGINNING = Beginning()
FOREVER = None


def stopped(bench, pages, *, restart):
    """Read small pages and write to every partition, until an error occurs."""
    place = BEGINNING
    for _ in range(pages):
        bench.fill(80, keys=80)
        if restart:
            bench.connect()
        try:
            place = bench.page(place, size=3).continuation_token
        except MulticloudDbError as error:
            return error
    pytest.fail(f"no error within {pages} pages")


class Pauses:
    """A recorder of the pauses that the engine would have made."""

    def __init__(self):
        self.seconds = []

    def __call__(self, seconds):
        self.seconds.append(seconds)


class Retries(Observer):
    def __init__(self):
        self.told = []

    def retry(self, address, partition_id, attempt, wait_seconds, reason):
        self.told.append((address, partition_id, attempt, wait_seconds, reason))


class TestRetry:
    @pytest.mark.parametrize(
        "fault", [ServerError("503"), ThrottledError("slow down"), ConnectionDroppedError("gone")], ids=repr
    )
    def test_fault_that_passes_is_not_seen(self, bench, ids, fault):
        bench.fill(5)
        bench.sim.fail_next("p0", fault, times=3)
        page = bench.page()
        assert ids(page) == bench.written()
        assert page.diagnostics.retries == 3
        assert page.diagnostics.partition_errors == {}

    def test_reader_that_failed_is_not_used_again(self, bench):
        bench.fill(5)
        bench.sim.fail_next("p0", IteratorExpiredError("too old"), times=2)
        bench.page()
        assert bench.calls.opens["p0"] == 3
        assert not bench.calls.violations

    def test_answer_that_was_lost_on_its_way_is_read_again(self, bench, ids):
        """The service's iterator had advanced, but the next reader starts at the engine's own position."""
        bench.fill(5)
        bench.page(size=2)
        bench.sim.fail_next("p0", ConnectionDroppedError("in mid answer"))
        assert ids(bench.drain(size=2)[0]) == bench.written()

    def test_pauses_grow_with_jitter(self, bench):
        pauses = Pauses()
        bench.connect(pause=pauses)
        bench.sim.fail_next("p0", ServerError("503"), times=FOREVER)
        bench.refused(ErrorCategory.TRANSIENT_FAILURE)
        bounds = [0.1, 0.2, 0.4, 0.8, 1.6]
        assert len(pauses.seconds) == len(bounds)
        assert all(0 <= seconds <= bound for seconds, bound in zip(pauses.seconds, bounds, strict=True))
        assert len({round(seconds, 9) for seconds in pauses.seconds}) == len(bounds)

    def test_what_the_service_asks_for_is_waited_in_full(self, bench):
        pauses = Pauses()
        bench.connect(pause=pauses)
        bench.sim.fail_next("p0", ThrottledError("slow down", retry_after=1.5), times=2)
        bench.page()
        assert len(pauses.seconds) == 2
        assert all(1.5 <= seconds <= 2.0 for seconds in pauses.seconds)

    def test_no_pause_goes_beyond_the_deadline(self, bench):
        pauses = Pauses()
        bench.connect(pause=pauses)
        bench.sim.fail_next("p0", ThrottledError("slow down", retry_after=60), times=FOREVER)
        error = bench.refused(ErrorCategory.THROTTLED, timeout=5)
        assert error.retryable
        assert error.detail.retry_after_seconds == 60
        assert pauses.seconds == []
        assert bench.calls.fetches["p0"] == 1

    @pytest.mark.parametrize("operation", ["fetch", "start", "open_feed"])
    def test_try_that_hangs_until_the_deadline_does_not_hide_why_it_was_made(self, make_bench, operation):
        bench = make_bench(1)
        over = threading.Event()
        bench.connect(threads=True, pause=lambda _: over.wait(20))
        bench.sim.fail_next(
            "p0" if operation == "fetch" else None, ThrottledError("slow"), operation=operation
        )
        try:
            error = bench.refused(ErrorCategory.THROTTLED, timeout=1)
            assert error.retryable
        finally:
            over.set()

    def test_failure_of_before_does_not_stay_when_a_later_fetch_hangs(self, make_bench, ids):
        bench = make_bench(1)
        bench.connect(threads=True)
        bench.fill(5)
        bench.sim.fail_next("p0", ThrottledError("slow"))
        page = bench.page(size=2)
        assert page.diagnostics.retries == 1
        rest, token = bench.drain(page.continuation_token)
        assert ids(page) + ids(rest) == bench.written()
        bench.sim.hold("p0")
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, token, timeout=0.3)

    def test_failure_that_was_mended_is_not_that_of_a_fetch_that_never_began(self, make_bench):
        bench = make_bench(1)
        pool = bench.connect(threads=True, max_concurrency=1)._executor
        bench.fill(5)
        bench.sim.fail_next("p0", ThrottledError("slow"))
        page = bench.page()
        assert page.diagnostics.retries == 1
        over = threading.Event()
        for _ in range(pool._max_workers):
            pool.submit(over.wait, 60)
        try:
            bench.refused(ErrorCategory.TRANSIENT_FAILURE, page.continuation_token, timeout=0.3)
        finally:
            over.set()

    def test_failure_that_was_mended_keeps_nothing_of_what_was_handed_out(self, bench, monkeypatch):
        fetched, fetch = [], SimulationReader.fetch

        def watched(reader, *args):
            batch = fetch(reader, *args)
            fetched.append(weakref.ref(batch))
            return batch

        monkeypatch.setattr(SimulationReader, "fetch", watched)
        bench.fill(5)
        bench.sim.fail_next("p0", ThrottledError("slow"))
        assert bench.page().diagnostics.retries == 1
        gc.collect()
        assert [ref() for ref in fetched] == [None]

    def test_system_without_a_thread_left_is_not_told_as_a_closed_client(self, make_bench, monkeypatch):
        bench = make_bench(1)
        bench.connect(threads=True)

        def start(thread):
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            bench.refused(ErrorCategory.PERMANENT_FAILURE, match="can't start new thread")

    def test_what_the_vendor_has_retried_is_not_retried_by_us(self, bench):
        bench.sim.fail_next("p0", ServerError("503", vendor_retried=True), times=FOREVER)
        bench.refused(ErrorCategory.TRANSIENT_FAILURE)
        assert bench.calls.fetches["p0"] == 1

    @pytest.mark.parametrize("partitions", [1, 3])
    def test_nor_is_it_while_a_call_waits_for_news(self, make_bench, partitions):
        bench = make_bench(partitions=partitions)
        bench.connect()
        token = bench.page(Now()).continuation_token
        bench.sim.fail_next("p0", ServerError("503", vendor_retried=True), times=FOREVER)
        before = bench.calls.fetches["p0"]
        if partitions == 1:
            bench.refused(ErrorCategory.TRANSIENT_FAILURE, token, wait=1.0)
        else:
            page = bench.page(token, wait=0.3)
            assert (page.idle, len(page.diagnostics.partition_errors)) == (False, 1)
            assert bench.calls.fetches["p1"] > 2  # the call waits for the other partitions
        assert bench.calls.fetches["p0"] - before == 1

    def test_one_attempt_is_one_attempt(self, bench):
        bench.connect(attempts=1)
        bench.sim.fail_next("p0", ServerError("503"), times=FOREVER)
        bench.refused(ErrorCategory.TRANSIENT_FAILURE)
        assert bench.calls.fetches["p0"] == 1

    @pytest.mark.parametrize("fault", [DeniedError("no"), CorruptError("broken")], ids=repr)
    def test_what_no_retry_mends_is_not_retried(self, bench, fault):
        bench.sim.fail_next("p0", fault, times=FOREVER)
        with pytest.raises(MulticloudDbError):
            bench.page()
        assert bench.calls.fetches["p0"] == 1

    def test_observer_is_told_before_each_pause(self, bench):
        retries = Retries()
        bench.connect(observer=retries)
        bench.sim.fail_next("p0", ServerError("503 here"), times=2)
        bench.page()
        assert [(told[0], told[1], told[2], told[4]) for told in retries.told] == [
            (bench.sim.address, bench.sim.public_id("p0"), number, "503 here") for number in (1, 2)
        ]

    @pytest.mark.parametrize("operation", ["open_feed", "start", "survey"])
    def test_calls_on_the_feed_are_retried_too(self, bench, ids, operation):
        bench.fill(3)
        bench.sim.split("p0")
        bench.sim.delay_children("p0", 1)
        bench.sim.fail_next(None, ServerError("503"), times=3, operation=operation)
        assert ids(bench.drain()[0]) == bench.written()

    @pytest.mark.parametrize("operation", ["open_feed", "start", "survey"])
    def test_call_on_the_feed_that_fails_for_good_is_raised(self, bench, operation):
        bench.sim.fail_next(None, DeniedError("not yours"), times=FOREVER, operation=operation)
        with pytest.raises(MulticloudDbError, match="not yours") as caught:
            bench.partitions() if operation == "survey" else bench.page()
        assert caught.value.category == ErrorCategory.AUTHORIZATION_FAILED


class TestPartialTrouble:
    def test_others_are_delivered_and_the_failure_is_told(self, make_bench, ids):
        bench = make_bench(partitions=3)
        bench.connect()
        one, two = bench.fill_partition("p0", 2), bench.fill_partition("p2", 2)
        late = bench.fill_partition("p1", 2)
        bench.sim.fail_next("p1", ServerError("p1 is down"), times=FOREVER)
        page = bench.page()
        assert sorted(ids(page)) == sorted(one + two)
        assert not page.idle
        assert page.diagnostics.partition_errors == {bench.sim.public_id("p1"): "p1 is down"}
        bench.sim.forgive()
        page = bench.page(page.continuation_token)
        assert ids(page) == late
        assert not page.diagnostics.partition_errors

    def test_empty_page_with_one_failure_is_no_error_and_not_idle(self, make_bench):
        bench = make_bench(partitions=2)
        bench.connect()
        bench.sim.fail_next("p1", ServerError("503"), times=FOREVER)
        page = bench.page(Now())
        assert not page.idle
        assert list(page.diagnostics.partition_errors) == [bench.sim.public_id("p1")]

    def test_error_is_raised_when_every_partition_fails(self, make_bench):
        bench = make_bench(partitions=2)
        bench.connect()
        bench.fill(4)
        bench.sim.fail_next(None, ServerError("all down"), times=FOREVER)
        error = bench.refused(ErrorCategory.TRANSIENT_FAILURE, match="all down")
        assert error.retryable
        assert error.detail.operation == "read_changes"

    def test_failure_of_a_call_for_children_does_not_fail_the_page(self, make_bench, ids):
        bench = make_bench(partitions=2)
        bench.connect()
        token = bench.page(Now()).continuation_token
        bench.sim.delay_children("p0", 1)
        bench.sim.split("p0")
        token = bench.page(token).continuation_token
        late = bench.fill_partition("p1", 2)
        bench.sim.fail_next(None, ServerError("503"), times=FOREVER, operation="survey")
        page = bench.page(token)
        assert ids(page) == late
        assert bench.sim.public_id("p0") in page.diagnostics.partition_errors
        bench.sim.forgive()
        assert bench.drain(page.continuation_token)[0] == []

    def test_partition_that_recovers_while_the_call_waits_is_no_longer_an_error(self, make_bench):
        bench = make_bench(partitions=2)
        bench.connect(attempts=1)
        token = bench.page(Now()).continuation_token
        bench.sim.fail_next("p1", ServerError("503"), times=1)
        page = bench.page(token, wait=0.1)
        assert page.idle
        assert page.diagnostics.partition_errors == {}

    def test_permanent_failure_comes_behind_what_others_have(self, make_bench, ids):
        bench = make_bench(partitions=2)
        bench.connect()
        bench.fill(10)
        others = [item.event_id for item in bench.sim.truth if item.partition_id == "p0"]
        bench.sim.fail_next("p1", CorruptError("p1 is broken"), times=FOREVER)
        page = bench.page(size=50)
        assert ids(page) == others
        assert not page.idle
        error = bench.refused(ErrorCategory.PERMANENT_FAILURE, page.continuation_token, match="p1 is broken")
        assert bench.sim.public_id("p1") in error.message
        assert not error.retryable

    @pytest.mark.parametrize("restart", [False, True], ids=["one engine", "an engine a page"])
    def test_permanent_failure_is_raised_though_others_are_always_busy(self, make_bench, restart):
        bench = make_bench(partitions=8)
        bench.connect()
        bench.sim.fail_next("p5", CorruptError("broken"), times=FOREVER)
        error = stopped(bench, pages=20, restart=restart)
        assert "broken" in error.message

    def test_partition_that_is_mended_is_read_like_the_others(self, make_bench, ids):
        bench = make_bench(partitions=3)
        bench.connect()
        bench.fill(30, keys=30)
        bench.sim.fail_next("p1", CorruptError("broken"), times=5)
        place, came, errors = BEGINNING, [], 0
        for _ in range(200):
            try:
                page = bench.page(place, size=2)
            except MulticloudDbError:
                errors += 1
                continue
            came += ids(page)
            place = page.continuation_token
            if page.idle:
                break
        assert errors
        assert sorted(came) == sorted(bench.written())

    def test_notices_are_handed_out_before_what_stops_the_feed(self, make_bench):
        bench = make_bench(partitions=2)
        bench.connect()
        bench.sim.announce("p0", Renamed("a", "b"))
        bench.sim.fail_next("p1", CorruptError("broken"), times=FOREVER)
        page = bench.page()
        assert page.notices == (Renamed("a", "b"),)
        bench.refused(ErrorCategory.PERMANENT_FAILURE, page.continuation_token)


@pytest.fixture(params=[False, True], ids=["found when mapped", "found when fetched"])
def poisoned(request, make_bench):
    """Make a bench whose provider fails at a poison record, either when it fetches the record or when it maps
    it.
    """

    def make(partitions=1, **settings):
        bench = make_bench(partitions, behaviour=ServiceBehaviour(poison_at_fetch=request.param), **settings)
        bench.connect()
        return bench

    return make


class TestPoison:
    def test_one_directly_behind_another_needs_two_skips(self, poisoned, ids):
        bench = poisoned()
        for number in range(3):
            bench.sim.write(f"bad-{number}", {"n": 0}, poison=True)
        bench.fill(2)
        place, positions = BEGINNING, []
        for _ in range(3):
            error = bench.refused(ErrorCategory.PROVIDER_ERROR, place)
            page = bench.page(error.detail.skip_token)
            place = page.continuation_token
            positions += [notice.position for notice in page.notices]
            assert positions[-1] in error.message
        assert len(set(positions)) == 3
        assert ids(bench.page(place)) == bench.written()[3:]

    @pytest.mark.parametrize("restart", [False, True], ids=["one engine", "an engine a page"])
    def test_it_is_raised_though_others_are_always_busy(self, poisoned, restart):
        bench = poisoned(partitions=8)
        bench.fill(20)
        bench.sim.write("bad", {"n": 0}, poison=True)
        error = stopped(bench, pages=150, restart=restart)
        assert error.category == ErrorCategory.PROVIDER_ERROR

    def test_error_names_the_native_cause_and_not_our_own_class(self, poisoned):
        bench = poisoned()
        bench.sim.write("bad", {"n": 0}, poison=True)
        detail = bench.refused(ErrorCategory.PROVIDER_ERROR).detail
        assert detail.native_class is None or "multiclouddb_spi" not in detail.native_class


class TestExpiry:
    def expired(self, make_bench, partitions=1, **settings):
        bench = make_bench(partitions, **settings)
        bench.connect()
        bench.fill(40, keys=40)
        token = bench.page(size=1).continuation_token
        bench.sim.trim(upto=20)
        bench.connect()
        return bench, token

    def test_is_raised_without_a_position_where_the_service_does_not_tell(self, make_bench):
        bench, token = self.expired(make_bench)
        bench.sim.fail_next(None, DeniedError("not yours"), times=FOREVER, operation="survey")
        assert bench.refused(ErrorCategory.CHECKPOINT_EXPIRED, token).detail.oldest_position is None

    def test_skipping_names_the_gap_to_the_observer(self, make_bench):
        told = []

        class Gaps(Observer):
            def gap(self, address, gap):
                told.append((address, gap))

        bench, token = self.expired(make_bench)
        bench.connect(observer=Gaps())
        page = bench.page(token, on_expired=SkipToOldest())
        assert told == [(bench.sim.address, page.notices[0])]

    def test_everything_lost_is_the_end(self, bench, ended, monkeypatch):
        bench.fill(5)
        token = bench.page(size=1).continuation_token
        bench.sim.trim()
        gone = Survey(gone={"p0": None})
        monkeypatch.setattr(SimulationFeed, "survey", lambda *_, **__: gone)
        page = bench.page(token, on_expired=SkipToOldest())
        assert "lost" in ended(page)
        assert page.notices[0].resumed_at == "nothing left"

    @pytest.mark.parametrize("fault", [ServerError("503"), DeniedError("not yours")], ids=repr)
    def test_trouble_with_finding_the_oldest_does_not_cost_what_others_delivered(
        self, make_bench, ids, fault
    ):
        bench = make_bench(partitions=2)
        bench.connect()
        bench.fill_partition("p1", 5)
        token = bench.page(Beginning(), size=1).continuation_token
        bench.sim.trim("p1")
        events = bench.fill_partition("p0", 3)
        bench.sim.fail_next(None, fault, times=FOREVER, operation="survey")
        page = bench.page(token, on_expired=SkipToOldest())
        assert ids(page) == events
        assert bench.sim.public_id("p1") in page.diagnostics.partition_errors

    def test_oldest_that_is_always_too_old_ends_in_the_error(self, bench, monkeypatch):
        bench.fill(5)
        token = bench.page(size=1).continuation_token
        bench.sim.trim()
        old = Survey((Partition("p0", (), PartitionState.OPEN, 1),))
        monkeypatch.setattr(SimulationFeed, "survey", lambda *_, **__: old)
        place, errors = token, []
        for _ in range(5):
            try:
                place = bench.page(place, on_expired=SkipToOldest()).continuation_token
            except MulticloudDbError as error:
                errors.append(error.category)
        assert ErrorCategory.CHECKPOINT_EXPIRED in errors


class TestErrors:
    def test_native_cause_and_its_facts_are_there(self, bench):
        native = ServerError("the vendor's own words")
        bench.sim.fail_next("p0", native, times=FOREVER)
        error = bench.refused(ErrorCategory.TRANSIENT_FAILURE)
        assert error.__cause__ is native
        detail = error.detail
        assert detail.native_class == "multiclouddb_conformance.simulation.errors.ServerError"
        assert detail.native_code == "ServerError"
        assert detail.native_text == "the vendor's own words"
        assert detail.provider == "simulation"

    def test_error_pickles_with_its_detail(self, bench):
        bench.sim.fail_next("p0", ServerError("503"), times=FOREVER)
        error = bench.refused(ErrorCategory.TRANSIENT_FAILURE)
        again = pickle.loads(pickle.dumps(error))
        assert (again.message, again.detail) == (error.message, error.detail)

    def test_fault_of_the_provider_itself_keeps_its_category_and_words(self, bench):
        fault = Fault(ErrorCategory.PERMANENT_FAILURE, "turn on the stream", code="E7")
        bench.sim.fail_next(None, fault, times=FOREVER, operation="open_feed")
        error = bench.refused(ErrorCategory.PERMANENT_FAILURE)
        assert error.message == "turn on the stream"
        assert error.detail.native_code == "E7"
        assert error.detail.native_class is None

    def test_exception_that_nobody_knows_is_a_permanent_failure(self, bench):
        bench.sim.fail_next("p0", ZeroDivisionError("oops"), times=FOREVER)
        error = bench.refused(ErrorCategory.PERMANENT_FAILURE, match="oops")
        assert error.detail.native_class == "builtins.ZeroDivisionError"

    def test_provider_whose_classify_fails_does_not_hide_the_failure(self, bench):
        class Clueless(SimulationProvider):
            def classify(self, error):
                raise RuntimeError("what is that?")

        bench.connect(provider=Clueless(bench.sim))
        bench.sim.fail_next("p0", ServerError("the real one"), times=FOREVER)
        bench.refused(ErrorCategory.PERMANENT_FAILURE, match="the real one")


def broken(*args, **kwargs):
    raise ZeroDivisionError("a bug in the provider")


class TestProviderBugs:
    """Tests that exceptions that violate the contract are reported once, and that nothing is leaked or lost.

    The fixture checks after each test that every reader was closed and every byte released.
    """

    @pytest.mark.parametrize(
        ("owner", "method"),
        [
            (SimulationMapper, "events"),
            (SimulationMapper, "cursor_after"),
            (SimulationReader, "fetch"),
            (SimulationFeed, "open"),
            (SimulationFeed, "start"),
            (SimulationFeed, "survey"),
            (SimulationFeed, "join"),
            (SimulationProvider, "open_feed"),
        ],
        ids=lambda value: value if isinstance(value, str) else value.__name__,
    )
    @pytest.mark.parametrize("threads", [False, True], ids=["inline", "threads"])
    def test_bug_is_an_error_and_the_feed_goes_on_when_it_is_mended(
        self, make_bench, ids, monkeypatch, owner, method, threads
    ):
        bench = make_bench(partitions=3)
        bench.connect(threads=threads)
        bench.fill(20)
        bench.sim.merge("p0", "p1")
        bench.sim.delay_children("p2", 1)
        bench.sim.split("p2")
        bench.fill(20)
        place, came, errors = BEGINNING, [], []
        for _ in range(4):
            monkeypatch.setattr(owner, method, broken)
            try:
                page = bench.page(place, size=5)
            except MulticloudDbError as error:
                errors.append(error)
            else:
                came += ids(page)
                place = page.continuation_token
            monkeypatch.undo()
            page = bench.page(place, size=5)
            came += ids(page)
            place = page.continuation_token
        came += ids(bench.drain(place, size=5)[0])
        assert sorted(came) == sorted(bench.written())
        assert {error.category for error in errors} <= {ErrorCategory.PERMANENT_FAILURE}
        assert all("a bug in the provider" in error.message for error in errors)

    def test_bug_in_mapping_one_partition_does_not_cost_the_others(self, make_bench, ids, monkeypatch):
        bench = make_bench(partitions=2)
        bench.connect()
        good, bad = bench.fill_partition("p0", 3), bench.fill_partition("p1", 3)
        events = SimulationMapper.events

        def picky(self, records, start, stop):
            bad = records.records[0].partition_id == "p1"
            return broken() if bad else events(self, records, start, stop)

        monkeypatch.setattr(SimulationMapper, "events", picky)
        page = bench.page()
        assert ids(page) == good
        bench.refused(ErrorCategory.PERMANENT_FAILURE, page.continuation_token)
        monkeypatch.undo()
        assert ids(bench.page(page.continuation_token)) == bad

    @pytest.mark.parametrize("method", ["close", "cancel"])
    def test_reader_that_fails_to_close_breaks_nothing(self, bench, ids, monkeypatch, method):
        bench.fill(5)
        real = getattr(SimulationReader, method)

        def failing(self):
            real(self)
            broken()

        monkeypatch.setattr(SimulationReader, method, failing)
        bench.sim.fail_next("p0", ServerError("503"), times=2)
        assert ids(bench.page()) == bench.written()
        bench.engine.close()

    def test_feed_that_fails_to_close_breaks_nothing(self, bench, monkeypatch):
        monkeypatch.setattr(SimulationFeed, "close", broken)
        bench.fill(3)
        token = bench.page(size=1).continuation_token
        bench.sim.trim()
        bench.refused(ErrorCategory.CHECKPOINT_EXPIRED, token)
        bench.engine.close()

    def test_provider_that_fails_to_close_leaves_nothing_open(self, bench, monkeypatch):
        bench.fill(3)
        bench.page(size=1)
        monkeypatch.setattr(SimulationProvider, "close", broken)
        with pytest.raises(MulticloudDbError, match="a bug in the provider"):
            bench.engine.close()
        monkeypatch.undo()
        assert bench.calls.open_readers == 0
        bench.engine.close()


class Angry(Observer):
    """An observer that raises an error in every method."""

    page = retry = reader_opened = reader_closed = partition_retired = gap = retention_headroom_low = broken


class TestObserver:
    def test_exceptions_of_an_observer_end_in_the_log(self, make_bench, ids, caplog):
        bench = make_bench(partitions=2, retention_seconds=60)
        bench.connect(observer=Angry())
        bench.fill(10)
        bench.sim.split("p0")
        bench.fill(10)
        bench.sim.fail_next("p1", ServerError("503"))
        assert sorted(ids(bench.drain(size=3)[0])) == sorted(bench.written())
        assert "a bug in the provider" in caplog.text
        assert {record.name for record in caplog.records} >= {"multiclouddb.engine"}

    def test_partitions_have_their_public_ids_everywhere(self, make_bench):
        told = []

        class Names(Observer):
            def reader_opened(self, address, partition_id):
                told.append(partition_id)

            def reader_closed(self, address, partition_id):
                told.append(partition_id)

            def retry(self, address, partition_id, attempt, wait_seconds, reason):
                told.append(partition_id)

            def partition_retired(self, address, partition_id, children):
                told.extend([partition_id, *children])

        bench = make_bench(partitions=2)
        bench.connect(observer=Names())
        bench.fill(5)
        bench.sim.split("p0")
        bench.sim.fail_next("p1", ServerError("503"))
        bench.drain()
        bench.engine.close()
        assert set(told) == {bench.sim.public_id(name) for name in bench.sim.partitions}

    def test_openings_and_closings_are_paired(self, make_bench):
        opened, closed = [], []

        class Pairs(Observer):
            def reader_opened(self, address, partition_id):
                opened.append(partition_id)

            def reader_closed(self, address, partition_id):
                closed.append(partition_id)

        bench = make_bench(partitions=2)
        bench.connect(observer=Pairs())
        bench.fill(20)
        bench.sim.split("p0")
        bench.sim.fail_next("p1", ServerError("503"), times=2)
        bench.drain(size=3)
        bench.engine.close()
        assert sorted(opened) == sorted(closed)
