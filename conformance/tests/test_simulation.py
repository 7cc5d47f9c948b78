"""Tests the simulated log, and how its readers implement the provider contract."""

from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest

from multiclouddb_api import Beginning, ErrorCategory
from multiclouddb_conformance.simulation import (
    CancelledError,
    ConnectionDroppedError,
    IteratorExpiredError,
    Listing,
    ServerError,
    ServiceBehaviour,
    Simulation,
    SimulationError,
    SimulationProvider,
    ThrottledError,
)
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_spi import Continue, Deadline, Drained, Fault, FeedSpec, ProviderFault, Seed


def soon():
    """Return a deadline that no test reaches, however long the tests before it have taken."""
    return Deadline.after(3600)


@pytest.fixture
def sim():
    return Simulation(partitions=1)


def opened(sim, **spec):
    return SimulationProvider(sim).open_feed(FeedSpec(sim.address, **spec), soon())


def seeds(feed, position=None, partition_id=None):
    return {seed.partition_id: seed for seed in feed.start(position or Beginning(), partition_id, soon())}


def fetch(reader, most=1000, size=10**9, wait=0.0):
    return reader.fetch(most, size, wait, soon())


def ids(batch):
    return [event.event_id for event in batch.events(0, len(batch))]


def drain(feed, partition_id, cursor, most=1000, until=None):
    """Return events and batches up to the first empty batch. If a fetch fails, open a new reader."""
    events, batches = [], []
    reader = feed.open(partition_id, cursor, until)
    for _ in range(10_000):
        try:
            batch = fetch(reader, most)
        except SimulationError:
            reader.close()
            reader = feed.open(partition_id, cursor, until)
            continue
        events += batch.events(0, len(batch))
        batches.append(batch)
        cursor = batch.cursor_after(len(batch))
        nothing = batch.caught_up or (batch.caught_up is None and not len(batch))
        if nothing or not isinstance(batch.outcome, Continue):
            reader.close()
            return events, batches
    raise AssertionError("never caught up")


def fill(sim, count=20, keys=7):
    return [sim.write(f"k{number % keys}", {"n": number}) for number in range(count)]


class TestSurvey:
    """No form of the listing says more than the services for which it stands."""

    @pytest.fixture
    def sim(self):
        """A collection whose first partitions are gone: p0 → p2 and p3; p1 and p3 → p4, p2 → p5."""
        sim = Simulation(partitions=2)
        sim.merge(sim.split("p0")[1], "p1")
        fill(sim, 2)
        sim.roll("p2")
        fill(sim, 2)
        sim.trim(upto=3)
        return sim

    @pytest.mark.parametrize(
        ("listing", "asked", "present", "gone", "heirs"),
        [
            (
                Listing.ALL,
                ["p0"],
                {"p2": ("p0",), "p4": ("p3", "p1"), "p5": ("p2",)},
                {"p0": (), "p1": (), "p3": ("p0",)},
                None,
            ),
            # Without parents, heirs are what existed at the oldest moment.
            (Listing.OPEN, ["p0", "p4"], {"p4": ()}, {"p0": None}, ["p2", "p4"]),
            (Listing.OPEN, ["p4"], {"p4": ()}, {}, None),
            (Listing.OPEN, [], {"p4": (), "p5": ()}, {}, None),
            # Ranges tell what follows a partition that is gone.
            (
                Listing.OPEN_WITH_RANGES,
                ["p0"],
                {"p2": ("p0",), "p4": ("p0",), "p5": ("p2",)},
                {"p0": None},
                None,
            ),
            (Listing.OPEN_WITH_RANGES, [], {"p4": ("p3", "p1"), "p5": ("p2",)}, {}, None),
            # What never existed is not gone.
            (Listing.OPEN, ["p99"], {}, {}, None),
        ],
    )
    def test_each_listing_tells(self, sim, listing, asked, present, gone, heirs):
        sim.behaviour = attrs.evolve(sim.behaviour, listing=listing)
        survey = opened(sim).survey(dict.fromkeys(asked, 0), soon(), expired=asked)
        found = {part.partition_id: part.parents for part in survey.present}
        assert (found if asked != ["p99"] else {}) == present
        assert survey.gone == gone
        assert survey.heirs == (heirs and tuple(Seed(name, (), 3) for name in heirs))

    def test_a_service_that_lists_late_does_not_tell_the_parents_of_what_is_gone(self):
        sim = Simulation(partitions=1)
        sim.roll("p0")
        fill(sim, 2)
        sim.split("p1")
        fill(sim, 2)
        sim.trim(upto=4)
        sim.hide("p3", 1)
        survey = opened(sim).survey({"p0": 0}, soon(), expired=["p0"])
        assert {part.partition_id for part in survey.present} == {"p2"}
        assert survey.gone == {"p0": None, "p1": None}
        assert opened(sim).names_late

    @pytest.mark.parametrize(
        ("asked", "expired", "since", "oldest"),
        [
            ({"p0": 0}, ["p0"], None, {"p2": 3, "p4": 3, "p5": 5}),
            # What can still be read is not moved, and what was not asked for begins at the wanted time.
            ({"p2": 3, "p5": 5}, [], None, {"p2": None, "p4": 3, "p5": None}),
            ({"p2": 3}, [], -1, {"p2": None, "p4": 6, "p5": 6}),
        ],
    )
    def test_where_a_partition_can_be_read(self, sim, asked, expired, since, oldest):
        since = since and sim.history[since].timestamp
        survey = opened(sim).survey(asked, soon(), expired=expired, since=since)
        assert {part.partition_id: part.oldest for part in survey.present} == oldest

    @pytest.mark.parametrize("late", ["late_children", "late_siblings", "late_listing", "incomplete_listing"])
    def test_a_service_merges_partitions_or_names_them_late(self, late):
        behaviour = ServiceBehaviour(**{late: 1.0 if "inc" in late else 9})
        sim = Simulation(partitions=2, behaviour=behaviour)
        with pytest.raises(ValueError, match=r"does not merge them \(C1\)"):
            sim.reshape(["p0", "p1"], 2)
        sim = Simulation(partitions=2)
        sim.reshape(["p0", "p1"], 2)
        sim.behaviour, feed = behaviour, opened(sim)
        assert not feed.names_late
        outcome = fetch(feed.open("p0", 0)).outcome
        assert (len(outcome.children), outcome.complete) == (2, True)
        assert {"p2", "p3"} <= {part.partition_id for part in feed.survey({}, soon()).present}

    def test_a_service_that_lists_no_parents_is_never_late(self):
        behaviour = ServiceBehaviour(late_children=9, late_listing=9, listing=Listing.OPEN)
        sim = Simulation(behaviour=behaviour)
        children = sim.split("p0")
        feed = opened(sim)
        assert not feed.names_late
        assert len(fetch(feed.open("p0", 0)).outcome.children) == 2
        assert {part.partition_id for part in feed.survey({}, soon()).present} == set(children)

    def test_an_idle_position_moves_where_partitions_merge(self):
        sim = Simulation(partitions=3, behaviour=ServiceBehaviour(heartbeats=False, strict_retention=False))
        fill(sim)
        feed = opened(sim)
        before = [feed.moment(fetch(feed.open(name, 20)).cursor_after(0)) for name in sim.open_partitions]
        assert before == [20, 20, 20]
        sim.split("p0")
        assert feed.moment(fetch(feed.open("p1", 20)).cursor_after(0)) == 20
        sim.merge("p1", "p2")
        assert feed.moment(fetch(feed.open("p3", 21)).cursor_after(0)) == 22


class TestTroubles:
    @pytest.mark.parametrize(
        ("trouble", "error", "category"),
        [
            ("throttle", ThrottledError, ErrorCategory.THROTTLED),
            ("drop", ConnectionDroppedError, ErrorCategory.TRANSIENT_FAILURE),
            ("server_error", ServerError, ErrorCategory.TRANSIENT_FAILURE),
        ],
    )
    def test_each_happens_so_many_times_in_a_row(self, sim, trouble, error, category):
        behaviour = {trouble: 1.0, "retry_after": 3.0, "vendor_retried": True, "faults_in_row": 2}
        sim.behaviour = ServiceBehaviour(**behaviour)
        feed = opened(sim)
        for number in range(9):
            if number % 3 == 2:
                assert fetch(feed.open("p0", 0)).caught_up
                continue
            with pytest.raises(error) as caught:
                fetch(feed.open("p0", 0))
            fault = SimulationProvider(sim).classify(caught.value)
            assert (fault.category, fault.retryable, fault.vendor_retried) == (category, True, True)
            assert fault.retry_after == (3.0 if trouble == "throttle" else None)

    def test_a_dropped_answer_is_lost_to_the_reader_that_goes_on(self, sim):
        fill(sim, 4)
        sim.fail_next("p0", ConnectionDroppedError("cut"))
        feed = opened(sim)
        reader = feed.open("p0", 0)
        with pytest.raises(ConnectionDroppedError):
            fetch(reader, most=3)
        assert ids(fetch(reader)) == ["4.0"]
        assert ids(fetch(feed.open("p0", 0))) == ["1.0", "2.0", "3.0", "4.0"]
        assert feed.calls.violations == ["p0: fetch after a failed fetch"]

    def test_an_iterator_expires_in_use_and_a_new_one_works(self, sim):
        sim.behaviour = ServiceBehaviour(expired_iterator=1.0)
        fill(sim, 4)
        feed = opened(sim)
        reader = feed.open("p0", 0)
        batch = fetch(reader, most=2)
        with pytest.raises(IteratorExpiredError):
            fetch(reader)
        assert ids(fetch(feed.open("p0", batch.cursor_after(2)))) == ["3.0", "4.0"]

    def test_redelivery_repeats_earlier_records_within_the_bound(self, sim):
        sim.behaviour = ServiceBehaviour(redeliver=3, seed=5)
        fill(sim, 9)
        feed = opened(sim)
        again = set()
        for cursor in range(1, 9):
            reader = feed.open("p0", cursor)
            batch = fetch(reader)
            repeated = len(batch) - (9 - cursor)
            again.add(repeated)
            assert ids(batch) == [f"{number}.0" for number in range(cursor + 1 - repeated, 10)]
            assert {batch.cursor_after(count) for count in range(repeated + 1)} == {cursor}
            for most in (1, 2):
                assert len(fetch(feed.open("p0", cursor), most=most)) <= most
        assert max(again) in (2, 3)
        assert len(again) > 1

    def test_a_course_is_fixed_by_its_seed_whatever_the_order_of_partitions(self):
        def course(seed, names):
            behaviour = ServiceBehaviour.rough(seed, throttle=0.3, drop=0.2, control=0.0)
            sim = Simulation(partitions=3, behaviour=behaviour)
            fill(sim, 60, 60)
            feed = opened(sim)
            pages = {name: [[each.event_id for each in drain(feed, name, 0)[0]]] for name in names}
            return pages, feed.calls.fetches

        names = ["p0", "p1", "p2"]
        assert course(1, names) == course(1, names[::-1])
        assert course(1, names)[1] != course(2, names)[1]


class TestScript:
    def test_the_next_fetches_of_one_partition_fail(self):
        sim = Simulation(partitions=2)
        fault = Fault(ErrorCategory.AUTHENTICATION_FAILED, "who?")
        sim.fail_next("p1", fault, times=2)
        feed = opened(sim)
        fetch(feed.open("p0", 0))
        for _ in range(2):
            with pytest.raises(ProviderFault) as caught:
                fetch(feed.open("p1", 0))
            assert caught.value.fault is fault
        fetch(feed.open("p1", 0))

    def test_a_held_fetch_goes_on_when_released(self, sim):
        fill(sim, 2)
        sim.hold("p0")
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(fetch, opened(sim).open("p0", 0))
            assert sim.wait_until_held("p0")
            assert (sim.waiting(), held.done()) == ({"p0": 1}, False)
            sim.release("p0")
            assert len(held.result(60)) == 2
        assert sim.waiting() == {}

    @pytest.mark.parametrize("trouble", ["hold", "silent", "slow", "wait"])
    def test_whatever_blocks_ends_when_cancelled_or_closed(self, sim, trouble):
        if trouble == "hold":
            sim.hold()
        if trouble in ("silent", "slow"):
            sim.behaviour = ServiceBehaviour(**{trouble: 1.0}, latency=1000)
        for stop in ("cancel", "close"):
            provider = SimulationProvider(sim)
            reader = provider.open_feed(FeedSpec(sim.address), soon()).open("p0", 0)
            with ThreadPoolExecutor(1) as pool:
                fetching = pool.submit(fetch, reader, wait=1000)
                (reader.cancel if stop == "cancel" else provider.close)()
                with pytest.raises(CancelledError) as caught:
                    fetching.result(60)
            assert provider.classify(caught.value).retryable

    def test_a_waiting_fetch_sees_what_is_written_and_the_end_of_its_partition(self, sim):
        feed = opened(sim)
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(fetch, feed.open("p0", 0), wait=1000)
            written = sim.write("a", {})
            batch = first.result(60)
            assert ids(batch) == [written.event_id]
            second = pool.submit(fetch, feed.open("p0", batch.cursor_after(1)), wait=1000)
            sim.split("p0")
            assert isinstance(second.result(60).outcome, Drained)


class TestCalls:
    def test_counts_what_a_client_does(self, sim):
        fill(sim, 3)
        provider = SimulationProvider(sim)
        feed = provider.open_feed(FeedSpec(sim.address), soon())
        seeds(feed)
        readers = [feed.open("p0", 0) for _ in range(3)]
        batch = fetch(readers[0])
        batch.events(0, 3)
        readers[0].cancel()
        for reader in readers[:2]:
            reader.close()
            reader.close()
        calls = provider.calls
        assert (calls.feeds, calls.starts, calls.opens["p0"], calls.fetches["p0"]) == (1, 1, 3, 1)
        assert (calls.open_readers, calls.most_open_readers, calls.closes) == (1, 3, 2)
        assert (calls.mapped, calls.cancels, calls.total_fetches) == (3, 1, 1)

    def test_notes_what_a_client_must_not_do(self, sim):
        sim.hold("p0")
        feed = opened(sim)
        reader = feed.open("p0", 0)
        with ThreadPoolExecutor(2) as pool:
            pool.submit(fetch, reader)
            assert sim.wait_until_held("p0")
            pool.submit(fetch, reader)
            wait_until(lambda: feed.calls.violations)
            sim.release("p0")
        fetch(reader, most=0)
        reader.close()
        fetch(reader)
        assert feed.calls.violations == [
            "p0: two fetches at a time", "p0: fetch of 0 records", "p0: fetch after close"
        ]  # fmt: skip


class TestWeather:
    def test_is_a_chance_that_a_seed_fixes_and_that_never_stops_a_client(self):
        with pytest.raises(ValueError, match="throttle"):
            ServiceBehaviour(throttle=1.5)
        assert ServiceBehaviour.rough(4) == ServiceBehaviour.rough(4) != ServiceBehaviour.rough(5)
        assert ServiceBehaviour.rough(4, throttle=1.0).throttle == 1.0
        for behaviour in map(ServiceBehaviour.rough, range(200)):
            assert (behaviour.silent, behaviour.poll_after, behaviour.vendor_retried) == (0, 0, False)

    def test_a_split_may_move_keys_to_partitions_that_do_not_descend_from_theirs(self):
        sim = Simulation(partitions=4, behaviour=ServiceBehaviour(moves_keys=True))
        names = [f"k{number}" for number in range(50)]
        before, again = ({name: sim.write(name, {}).partition_id for name in names} for _ in range(2))
        assert again == before
        sim.split("p0")
        after = {name: sim.write(name, {}).partition_id for name in names}
        assert [name for name in names if before[name] not in (after[name], *sim.lineage[after[name]])]

    def test_a_service_splits_merges_and_rolls_by_itself(self):
        sim = Simulation(partitions=2, behaviour=ServiceBehaviour(splits_itself=3))
        fill(sim, 2)
        assert sim.open_partitions == ("p0", "p1")
        fill(sim, 100)
        assert {1, 2} <= {len(above) for above in sim.lineage.values()}
        assert {1, 2} <= {len(partition.children) for partition in sim.partitions.values()}
        assert len(sim.open_partitions) <= 5
