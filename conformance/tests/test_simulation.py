"""Tests the simulated log, and how its readers implement the provider contract."""

import itertools
import threading
from datetime import timedelta

import attrs
import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    Capability,
    ChangeType,
    Dropped,
    ErrorCategory,
    LogicalPartition,
    MulticloudDbKey,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    Renamed,
    ResourceAddress,
)
from multiclouddb_conformance.simulation import (
    ALL_CAPABILITIES,
    BadPositionError,
    CancelledError,
    CaughtUp,
    ConnectionDroppedError,
    CorruptError,
    DeniedError,
    IteratorExpiredError,
    Listing,
    MissingError,
    ServerError,
    ServiceBehaviour,
    Simulation,
    SimulationError,
    SimulationOptions,
    SimulationProvider,
    ThrottledError,
    TrimmedError,
    capabilities_without,
)
from multiclouddb_spi import (
    Awaiting,
    Continue,
    Deadline,
    Drained,
    Ended,
    Fault,
    FeedSpec,
    InvalidCursor,
    PartitionState,
    ProviderFault,
    Reached,
    RecordFault,
    SupportsHeads,
)

SOON = Deadline.after(3600)


@pytest.fixture
def sim():
    return Simulation(partitions=1)


def opened(sim, **spec):
    return SimulationProvider(sim).open_feed(FeedSpec(sim.address, **spec), SOON)


def seeds(feed, position=None, partition_id=None):
    return {seed.partition_id: seed for seed in feed.start(position or Beginning(), partition_id, SOON)}


def fetch(reader, most=1000, size=10**9, wait=0.0):
    return reader.fetch(most, size, wait, SOON)


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


class TestLog:
    def test_records_create_update_and_delete(self, sim):
        kinds = [sim.write("a", document).type for document in ({"n": 1}, {"n": 2}, None, {"n": 3})]
        assert kinds == [ChangeType.CREATE, ChangeType.UPDATE, ChangeType.DELETE, ChangeType.CREATE]

    def test_keeps_the_document_before_a_change(self, sim):
        sim.write("a", {"n": 1})
        assert sim.write("a", {"n": 2}).previous == {"n": 1}
        assert sim.write("a", None).previous == {"n": 2}
        assert sim.document("a") is None

    def test_records_nothing_for_a_delete_of_what_is_not_there(self, sim):
        assert sim.write("a", None) is None
        assert sim.head == 0

    def test_a_written_document_is_a_copy(self, sim):
        document = {"n": 1}
        sim.write("a", document)
        document["n"] = 2
        assert sim.document("a") == {"n": 1}

    def test_a_transaction_is_one_commit_over_several_partitions(self):
        sim = Simulation(partitions=4)
        written = sim.transaction([(f"k{number}", {"n": number}) for number in range(20)])
        assert {record.commit for record in written} == {1}
        assert len({record.timestamp for record in written}) == 1
        assert {record.partition_id for record in written} == set(sim.open_partitions)
        assert len({record.event_id for record in written}) == 20

    def test_a_key_stays_in_the_partition_that_owns_its_hash(self):
        sim = Simulation(partitions=3)
        for number in range(50):
            for partition in sim.partitions.values():
                owns = partition.owns(sim.hash_of(sim.key(number)))
                assert owns == (sim.write(number, {}).partition_id == partition.id)

    def test_a_split_gives_the_hashes_to_two_children(self, sim):
        fill(sim)
        left, right = sim.split("p0")
        assert sim.open_partitions == (left, right)
        assert sim.children("p0") == (left, right)
        assert sim.lineage == {"p0": (), left: ("p0",), right: ("p0",)}
        assert {record.partition_id for record in fill(sim, 100, 50)} == {left, right}

    def test_a_merge_gives_the_hashes_to_one_child(self):
        sim = Simulation(partitions=3)
        child = sim.merge("p0", "p2")
        assert sim.lineage[child] == ("p0", "p2")
        assert {record.partition_id for record in fill(sim, 100, 50)} == {"p1", child}

    def test_a_roll_has_one_child(self, sim):
        child = sim.roll("p0")
        assert sim.children("p0") == (child,)
        assert sim.write("a", {}).partition_id == child

    def test_children_may_have_several_parents_each(self):
        sim = Simulation(partitions=2)
        children = sim.reshape(["p0", "p1"], 3)
        assert all(sim.lineage[child] == ("p0", "p1") for child in children)

    @pytest.mark.parametrize("parents", [[], ["p0", "p0"], ["p0", "p1"], ["p9"]])
    def test_refuses_to_reshape_what_is_not_open(self, parents):
        sim = Simulation(partitions=2)
        sim.split("p1")
        with pytest.raises(ValueError, match=r"open|twice"):
            sim.reshape(parents, 1)

    def test_the_clock_never_goes_back(self, sim):
        before = sim.now
        first = sim.write("a", {})
        sim.advance(60)
        sim.advance(-60)
        second = sim.write("a", {})
        assert before < first.timestamp
        assert second.timestamp == sim.now == before + timedelta(seconds=60, milliseconds=2)

    def test_without_a_tick_commits_share_a_timestamp(self):
        sim = Simulation(tick=timedelta(0))
        assert sim.write("a", {}).timestamp == sim.write("b", {}).timestamp

    def test_a_recreated_collection_is_another_incarnation(self, sim):
        fill(sim, 3)
        before = sim.incarnation
        sim.drop()
        assert sim.incarnation is None
        with pytest.raises(ValueError, match="dropped"):
            sim.write("a", {})
        sim.recreate(partitions=2)
        assert sim.incarnation not in (None, before)
        sim.write("a", {"n": 9})
        assert [record.document for record in sim.truth] == [{"n": 9}]
        assert len(sim.history) == 4

    def test_lineage_in_public_ids_matches_the_events(self, sim):
        sim.split("p0")
        written = sim.write("a", {})
        feed = opened(sim)
        (event,) = drain(feed, written.partition_id, 0)[0]
        assert sim.public_lineage()[event.partition_id] == (sim.public_id("p0"),)


class TestEvents:
    def test_are_built_from_the_records(self, sim):
        sim.write("a", {"n": 1})
        sim.write("a", {"n": 2})
        sim.write("a", None, by_expiry=True)
        create, update, delete = drain(opened(sim), "p0", 0)[0]
        assert (create.type, update.type, delete.type) == tuple(ChangeType)
        assert create.key == MulticloudDbKey({"id": "a"})
        assert (create.new_item_state, update.new_item_state, delete.new_item_state) == (
            {"n": 1},
            {"n": 2},
            None,
        )
        assert (update.by_expiry, delete.by_expiry) == (False, True)
        assert create.order_key < update.order_key < delete.order_key
        assert create.address == sim.address
        assert create.timestamp == sim.history[0].timestamp
        assert create.native is create.old_item_state is None

    def test_have_the_old_document_on_request(self, sim):
        sim.write("a", {"n": 1})
        sim.write("a", {"n": 2})
        feed = opened(sim, old_item_state_mode=OldItemStateMode.REQUIRE)
        assert [event.old_item_state for event in drain(feed, "p0", 0)[0]] == [None, {"n": 1}]

    def test_omit_the_new_document_on_request(self, sim):
        sim.write("a", {"n": 1})
        feed = opened(sim, new_item_state_mode=NewItemStateMode.OMIT)
        assert drain(feed, "p0", 0)[0][0].new_item_state is None

    def test_carry_the_record_on_request(self, sim):
        written = sim.write("a", {"n": 1})
        assert drain(opened(sim, include_native=True), "p0", 0)[0][0].native is written


class TestPositions:
    @pytest.mark.parametrize("most", [1, 2, 3, 1000])
    def test_every_cursor_resumes_exactly_also_inside_a_transaction(self, sim, most):
        fill(sim, 3)
        sim.transaction([(f"k{number}", {"n": number}) for number in range(4)])
        fill(sim, 2)
        feed = opened(sim)
        everything = [event.event_id for event in drain(feed, "p0", 0)[0]]
        assert everything == [record.event_id for record in sim.history]
        seen = 0
        for batch in drain(feed, "p0", 0, most)[1]:
            assert len(batch) <= most
            for count in range(len(batch) + 1):
                cursor = batch.cursor_after(count)
                rest = [event.event_id for event in drain(feed, "p0", cursor)[0]]
                assert rest == everything[seen + count :]
                assert feed.compare(batch.cursor_after(0), cursor) in (0, -1)
            seen += len(batch)

    def test_a_cursor_inside_a_transaction_names_what_is_done_of_it(self, sim):
        sim.transaction([("a", {}), ("b", {}), ("c", {})])
        batch = fetch(opened(sim).open("p0", 0))
        assert [batch.cursor_after(count) for count in range(4)] == [0, [1, 1], [1, 2], 1]

    def test_an_empty_batch_moves_an_idle_partition(self):
        sim = Simulation(partitions=2)
        key = next(f"k{n}" for n in range(99) if sim.write(f"k{n}", {}).partition_id == "p1")
        batch = fetch(opened(sim).open("p0", sim.head - 1))
        sim.write(key, {})
        again = fetch(opened(sim).open("p0", batch.cursor_after(0)))
        assert len(batch) == len(again) == 0
        assert (batch.cursor_after(0), again.cursor_after(0)) == (sim.head - 1, sim.head)

    def test_without_heartbeats_it_stays(self):
        sim = Simulation(partitions=2, behaviour=ServiceBehaviour(heartbeats=False))
        fill(sim)
        last = [record.commit for record in sim.history if record.partition_id == "p0"][-1]
        batch = fetch(opened(sim).open("p0", 0))
        assert batch.cursor_after(len(batch)) == last
        assert fetch(opened(sim).open("p0", last)).cursor_after(0) == last

    @pytest.mark.parametrize(
        "cursor", [None, -1, True, 1.0, "1", [1], [1, 0], [0, 1], [1, True], {}, [1, 2, 3]]
    )
    def test_a_cursor_that_was_never_made_is_refused(self, sim, cursor):
        feed = opened(sim)
        with pytest.raises(InvalidCursor):
            feed.open("p0", cursor)
        with pytest.raises(InvalidCursor):
            feed.describe(cursor)
        with pytest.raises(InvalidCursor):
            feed.open("p0", 0, until=cursor if cursor is not None else "")

    def test_a_position_that_was_not_reached_is_refused(self, sim):
        with pytest.raises(BadPositionError):
            fetch(opened(sim).open("p0", 7))

    def test_positions_compare_in_the_order_of_the_log(self, sim):
        feed = opened(sim)
        order = [0, [1, 1], [1, 2], 1, [2, 1], 2]
        assert [feed.compare(a, b) for a, b in itertools.pairwise(order)] == [-1] * 5
        assert [feed.compare(a, a) for a in order] == [0] * 6
        assert feed.compare(2, 1) == 1

    def test_a_child_begins_behind_the_last_of_its_parents(self, sim):
        assert opened(sim).join("p1", [[4, 1], 7, 3]) == 7

    def test_a_cursor_is_described(self, sim):
        written = sim.write("a", {})
        feed = opened(sim)
        assert feed.describe(1).text == "commit 1"
        assert feed.describe(1).time == written.timestamp
        assert feed.describe(0).time is None
        assert feed.describe([1, 2]).text == "commit 1, record 2"

    def test_bytes_bound_a_batch_but_one_record_always_comes(self, sim):
        fill(sim, 6)
        reader = opened(sim).open("p0", 0)
        assert len(fetch(reader, size=1)) == 1
        size = sim.history[0].size
        batch = fetch(reader, size=2 * size)
        assert (len(batch), batch.nbytes) == (2, 2 * size)

    def test_bytes_may_be_ignored(self, sim):
        sim.behaviour = ServiceBehaviour(ignore_max_bytes=True)
        fill(sim, 6)
        assert len(fetch(opened(sim).open("p0", 0), size=1)) == 6


class TestUntil:
    def test_rereads_the_same_whatever_happens_later(self):
        sim = Simulation(partitions=2)
        fill(sim)
        sim.transaction([(f"k{number}", {"n": number}) for number in range(7)])
        feed = opened(sim)
        for until in [*range(sim.head + 1), *([sim.head, done] for done in range(1, 3))]:
            before = [event.event_id for event in drain(feed, "p0", 3, until=until)[0]]
            later = Simulation(partitions=2)
            fill(later)
            later.transaction([(f"k{number}", {"n": number}) for number in range(7)])
            fill(later)
            later.split("p0")
            later.behaviour = ServiceBehaviour.rough(1, redeliver=5)
            events, batches = drain(opened(later), "p0", 3, until=until)
            assert [event.event_id for event in events] == before
            assert isinstance(batches[-1].outcome, Reached)

    def test_it_ends_on_the_very_position(self, sim):
        fill(sim, 9)
        events, batches = drain(opened(sim), "p0", 2, most=2, until=7)
        assert [event.event_id for event in events] == [f"{number}.0" for number in range(3, 8)]
        assert batches[-1].cursor_after(len(batches[-1])) == 7
        assert isinstance(batches[-1].outcome, Reached)

    def test_a_reader_that_reached_it_says_so_again(self, sim):
        fill(sim, 3)
        reader = opened(sim).open("p0", 0, until=2)
        assert [(len(batch), batch.outcome) for batch in (fetch(reader), fetch(reader))] == [
            (2, Reached()),
            (0, Reached()),
        ]

    def test_the_end_of_a_closed_partition_is_reached_not_drained(self, sim):
        fill(sim, 3)
        (head,) = opened(sim).heads({"p0": 0}, None, SOON).values()
        sim.split("p0")
        (closed,) = opened(sim).heads({"p0": 0}, None, SOON).values()
        assert isinstance(head.outcome, Continue)
        assert isinstance(closed.outcome, Drained)
        assert isinstance(drain(opened(sim), "p0", 0, until=closed.cursor)[1][-1].outcome, Reached)

    def test_behind_the_present_end_it_goes_on(self, sim):
        fill(sim, 3)
        batch = fetch(opened(sim).open("p0", 0, until=99))
        assert (len(batch), batch.outcome, batch.caught_up) == (3, Continue(), True)


class TestHeads:
    def test_a_feed_finds_heads(self, sim):
        assert isinstance(opened(sim), SupportsHeads)

    @pytest.mark.parametrize("most", [1, 2, 3, 5, 8, 9, None])
    def test_bounded_reads_cover_everything_once(self, sim, most):
        fill(sim, 3)
        sim.transaction([(f"k{number}", {"n": number}) for number in range(4)])
        fill(sim, 2)
        sim.split("p0")
        feed, cursor, events = opened(sim), 0, []
        for _ in range(20):
            head = feed.heads({"p0": cursor}, most, SOON)["p0"]
            found = drain(feed, "p0", cursor, until=head.cursor)[0]
            assert len(found) == head.records
            events += found
            cursor = head.cursor
            if isinstance(head.outcome, Drained):
                break
        assert [event.event_id for event in events] == [record.event_id for record in sim.history]

    def test_expired_positions_are_refused(self, sim):
        fill(sim, 3)
        sim.trim()
        with pytest.raises(TrimmedError):
            opened(sim).heads({"p0": 1}, None, SOON)


class TestStart:
    def test_the_beginning_gives_closed_partitions_and_their_children(self, sim):
        fill(sim)
        left, right = sim.split("p0")
        found = seeds(opened(sim))
        assert {name: (seed.parents, seed.cursor) for name, seed in found.items()} == {
            "p0": ((), 0),
            left: (("p0",), 21),
            right: (("p0",), 21),
        }

    def test_it_may_leave_the_children_to_their_parents(self):
        sim = Simulation(partitions=2, behaviour=ServiceBehaviour(seed_descendants=False))
        sim.merge(*sim.split("p0"))
        assert set(seeds(opened(sim))) == {"p0", "p1"}

    def test_it_begins_behind_what_was_trimmed(self, sim):
        fill(sim, 5)
        sim.trim(upto=3)
        assert seeds(opened(sim))["p0"].cursor == 3

    def test_it_leaves_out_partitions_of_which_nothing_is_kept(self, sim):
        fill(sim, 5)
        children = sim.split("p0")
        sim.trim()
        assert set(seeds(opened(sim))) == set(children)

    def test_now_gives_the_open_partitions_and_is_durable(self):
        sim = Simulation(partitions=2)
        fill(sim)
        sim.split("p0")
        found = seeds(opened(sim), Now())
        assert set(found) == set(sim.open_partitions)
        later = fill(sim)
        got = [event for name, seed in found.items() for event in drain(opened(sim), name, seed.cursor)[0]]
        assert {event.event_id for event in got} == {record.event_id for record in later}

    def test_a_time_is_inclusive(self, sim):
        records = fill(sim, 5)
        seed = seeds(opened(sim), AtTime(records[2].timestamp))["p0"]
        assert [event.event_id for event in drain(opened(sim), "p0", seed.cursor)[0]] == [
            record.event_id for record in records[2:]
        ]

    def test_a_time_gives_what_was_alive_then_and_what_follows(self):
        sim = Simulation(partitions=2)
        fill(sim)
        early = sim.split("p0")
        (moment,) = [fill(sim, 1)[0].timestamp]
        late = sim.merge(*early)
        assert set(seeds(opened(sim), AtTime(moment))) == {"p1", *early, late}
        sim.behaviour = ServiceBehaviour(seed_descendants=False)
        assert set(seeds(opened(sim), AtTime(moment))) == {"p1", *early}

    def test_a_time_before_the_collection_is_its_beginning(self, sim):
        sim.recreate(partitions=2)
        found = seeds(opened(sim), AtTime(sim.now - timedelta(days=1)))
        assert {seed.cursor for seed in found.values()} == {sim.created}

    def test_a_time_older_than_retention_is_refused(self, sim):
        records = fill(sim, 5)
        sim.trim(upto=3)
        opened(sim).start(AtTime(records[3].timestamp), None, SOON)
        with pytest.raises(ProviderFault) as caught:
            opened(sim).start(AtTime(records[2].timestamp), None, SOON)
        assert caught.value.fault.category == ErrorCategory.CHECKPOINT_EXPIRED

    @pytest.mark.parametrize("position", [Beginning(), Now()])
    def test_one_partition_only(self, sim, position):
        fill(sim)
        left, _ = sim.split("p0")
        feed = opened(sim)
        assert set(seeds(feed, position, left)) == {left}
        assert set(seeds(feed, position, "p0")) == {"p0"}
        assert seeds(feed, position, "p99") == {}

    def test_a_closed_partition_read_from_now_is_drained(self, sim):
        fill(sim)
        sim.split("p0")
        seed = seeds(opened(sim), Now(), "p0")["p0"]
        assert isinstance(fetch(opened(sim).open("p0", seed.cursor)).outcome, Drained)


class TestLineage:
    def test_the_last_batch_names_the_children(self, sim):
        fill(sim, 4)
        left, right = sim.split("p0")
        feed = opened(sim)
        batch = fetch(feed.open("p0", 0))
        assert isinstance(batch.outcome, Drained)
        assert [(child.partition_id, child.parents, child.cursor) for child in batch.outcome.children] == [
            (left, ("p0",), 5),
            (right, ("p0",), 5),
        ]

    def test_reading_at_the_final_cursor_says_the_same_again(self, sim):
        sim.behaviour = ServiceBehaviour(jumble=True, repeat_children=True)
        fill(sim, 4)
        sim.split("p0", into=5)
        reader = opened(sim).open("p0", 0)
        batches = [fetch(reader), fetch(reader)]
        batches += [fetch(opened(sim).open("p0", batches[0].cursor_after(4))) for _ in range(2)]
        assert [len(batch) for batch in batches] == [4, 0, 0, 0]
        assert len({batch.outcome for batch in batches}) == 1

    def test_a_child_of_a_merge_is_named_by_each_parent(self):
        sim = Simulation(partitions=2)
        child = sim.merge("p0", "p1")
        for parent in ("p0", "p1"):
            (named,) = fetch(opened(sim).open(parent, 0)).outcome.children
            assert (named.partition_id, named.parents) == (child, ("p0", "p1"))

    def test_a_partition_that_was_never_written_ends_empty(self, sim):
        sim.split(sim.split("p0")[0])
        for name in sim.lineage:
            batch = fetch(opened(sim).open(name, seeds(opened(sim))[name].cursor))
            assert len(batch) == 0
            assert isinstance(batch.outcome, Continue if name in sim.open_partitions else Drained)

    def test_its_end_may_come_on_a_batch_of_its_own(self, sim):
        sim.behaviour = ServiceBehaviour(separate_end=1.0)
        fill(sim, 4)
        sim.split("p0")
        reader = opened(sim).open("p0", 0)
        first, second = fetch(reader), fetch(reader)
        assert (len(first), first.outcome, first.caught_up) == (4, Continue(), False)
        assert len(second) == 0
        assert isinstance(second.outcome, Drained)

    def test_children_may_be_named_late(self, sim):
        fill(sim, 4)
        sim.split("p0")
        sim.delay_children("p0", 2)
        feed = opened(sim)
        batch = fetch(feed.open("p0", 0))
        assert (len(batch), batch.outcome) == (4, Awaiting())
        assert fetch(feed.open("p0", batch.cursor_after(4))).outcome == Awaiting()
        answers = [feed.survey({"p0": 5}, SOON, whole=False) for _ in range(4)]
        assert [len(answer.present) for answer in answers] == [0, 0, 2, 2]
        assert [answer.final for answer in answers] == [{}, {}, {"p0": None}, {"p0": None}]
        named = {part.partition_id: (part.parents, part.oldest) for part in answers[-1].present}
        children = fetch(feed.open("p0", 5)).outcome.children
        assert named == {child.partition_id: (child.parents, child.cursor) for child in children}

    def test_weather_decides_how_late(self):
        sim = Simulation(partitions=40, behaviour=ServiceBehaviour(late_children=3))
        for name in sim.open_partitions:
            sim.roll(name)
        feed = opened(sim)
        left, asked = {f"p{number}": 40 for number in range(40)}, 0
        waits = {}
        while left:
            waits.update(dict.fromkeys(feed.survey(left, SOON, whole=False).final, asked))
            left = {name: 40 for name in left if name not in waits}
            asked += 1
        assert set(waits.values()) == {0, 1, 2, 3}

    def test_children_may_be_jumbled_and_repeated(self, sim):
        sim.split("p0", into=8)
        plain = fetch(opened(sim).open("p0", 0)).outcome.children
        sim.behaviour = ServiceBehaviour(jumble=True, repeat_children=True)
        jumbled = fetch(opened(sim).open("p0", 0)).outcome.children
        assert (len(plain), len(jumbled)) == (8, 9)
        assert set(jumbled) == set(plain)
        assert jumbled[:8] != plain

    def test_children_are_listed_before_their_parent_is_drained(self, sim):
        fill(sim)
        children = sim.split("p0")
        listed = {partition.partition_id: partition for partition in opened(sim).survey({}, SOON).present}
        assert {name: partition.state for name, partition in listed.items()} == {
            "p0": PartitionState.CLOSED,
            **dict.fromkeys(children, PartitionState.OPEN),
        }
        assert all(listed[child].parents == ("p0",) for child in children)

    def test_lists_and_seeds_may_come_in_any_order(self):
        sim = Simulation(partitions=9, behaviour=ServiceBehaviour(jumble=True))
        names = [f"p{number}" for number in range(9)]
        feed = opened(sim)
        assert [partition.partition_id for partition in feed.survey({}, SOON).present] != names
        assert list(seeds(feed)) != names
        assert set(seeds(feed)) == set(names)


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

    def survey(self, sim, listing, *asked, **more):
        sim.behaviour = attrs.evolve(sim.behaviour, listing=listing)
        return opened(sim).survey(dict.fromkeys(asked, 0), SOON, expired=asked, **more)

    def test_parents_are_listed_and_what_is_gone_is_told_with_its_parents(self, sim):
        survey = self.survey(sim, Listing.ALL, "p0")
        assert {part.partition_id: (part.parents, part.oldest) for part in survey.present} == {
            "p2": (("p0",), 3),
            "p4": (("p3", "p1"), 3),
            "p5": (("p2",), 5),
        }
        assert survey.gone == {"p0": (), "p1": (), "p3": ("p0",)}
        assert survey.heirs is None

    def test_a_service_that_lists_late_does_not_tell_the_parents_of_what_is_gone(self, sim):
        sim.hide("p5", 1)
        survey = self.survey(sim, Listing.ALL, "p0")
        assert {part.partition_id for part in survey.present} == {"p2", "p4"}
        assert survey.gone == {"p0": None, "p1": None, "p3": None}
        assert opened(sim).names_late

    def test_without_parents_heirs_are_what_existed_at_the_oldest_moment(self, sim):
        survey = self.survey(sim, Listing.OPEN, "p0", "p4")
        assert [(part.partition_id, part.parents) for part in survey.present] == [("p4", ())]
        assert survey.gone == {"p0": None}
        assert [(seed.partition_id, seed.parents, seed.cursor) for seed in survey.heirs] == [
            ("p2", (), 3),
            ("p4", (), 3),
        ]
        assert self.survey(sim, Listing.OPEN, "p4").heirs is None

    def test_ranges_tell_what_follows_a_partition_that_is_gone(self, sim):
        survey = self.survey(sim, Listing.OPEN_WITH_RANGES, "p0")
        assert {part.partition_id: part.parents for part in survey.present} == {
            "p2": ("p0",),
            "p4": ("p0",),
            "p5": ("p2",),
        }
        assert survey.gone == {"p0": None}

    @pytest.mark.parametrize("listing", [Listing.OPEN, Listing.OPEN_WITH_RANGES])
    def test_a_listing_of_open_partitions(self, sim, listing):
        assert {part.partition_id for part in self.survey(sim, listing).present} == {"p4", "p5"}

    def test_what_can_still_be_read_is_not_moved(self, sim):
        feed = opened(sim)
        oldest = {part.partition_id: part.oldest for part in feed.survey({"p2": 3, "p5": 5}, SOON).present}
        assert oldest == {"p2": None, "p4": 3, "p5": None}

    def test_what_was_not_asked_for_begins_at_the_wanted_time(self, sim):
        since = sim.history[-1].timestamp
        survey = opened(sim).survey({"p2": 3}, SOON, since=since)
        assert {part.partition_id: part.oldest for part in survey.present} == {"p2": None, "p4": 6, "p5": 6}

    def test_a_partition_that_never_existed_is_not_gone(self, sim):
        survey = self.survey(sim, Listing.ALL, "p99")
        assert "p99" not in survey.gone
        assert "p99" not in {part.partition_id for part in survey.present}

    @pytest.mark.parametrize("late", ["late_children", "late_siblings", "late_listing", "incomplete_listing"])
    def test_a_child_with_several_parents_is_never_late(self, late):
        sim = Simulation(partitions=2, behaviour=ServiceBehaviour(**{late: 1.0 if "inc" in late else 9}))
        sim.reshape(["p0", "p1"], 2)
        feed = opened(sim)
        assert feed.names_late
        outcome = fetch(feed.open("p0", 0)).outcome
        assert (len(outcome.children), outcome.complete) == (2, True)
        assert {"p2", "p3"} <= {part.partition_id for part in feed.survey({}, SOON).present}

    def test_a_service_that_lists_no_parents_is_never_late(self):
        behaviour = ServiceBehaviour(late_children=9, late_listing=9, listing=Listing.OPEN)
        sim = Simulation(behaviour=behaviour)
        children = sim.split("p0")
        feed = opened(sim)
        assert not feed.names_late
        assert len(fetch(feed.open("p0", 0)).outcome.children) == 2
        assert {part.partition_id for part in feed.survey({}, SOON).present} == set(children)

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


class TestRetention:
    def test_a_position_in_front_of_what_is_kept_is_refused(self, sim):
        fill(sim, 9)
        sim.trim(upto=4)
        feed = opened(sim)
        for cursor in (0, 3, [4, 1]):
            with pytest.raises(TrimmedError) as caught:
                fetch(feed.open("p0", cursor))
        assert SimulationProvider(sim).classify(caught.value).category == ErrorCategory.CHECKPOINT_EXPIRED
        assert [event.event_id for event in drain(feed, "p0", 4)[0]] == [
            f"{number}.0" for number in range(5, 10)
        ]

    def test_one_partition_may_be_trimmed_alone(self):
        sim = Simulation(partitions=2)
        fill(sim)
        sim.trim("p0")
        fetch(opened(sim).open("p1", 0))
        with pytest.raises(TrimmedError):
            fetch(opened(sim).open("p0", 0))

    def test_a_closed_partition_vanishes_but_its_end_is_remembered(self, sim):
        fill(sim, 4)
        children = sim.split("p0")
        fill(sim, 4)
        sim.trim(upto=5)
        feed = opened(sim)
        assert {partition.partition_id for partition in feed.survey({}, SOON).present} == set(children)
        assert isinstance(fetch(feed.open("p0", 5)).outcome, Drained)
        with pytest.raises(TrimmedError):
            fetch(feed.open("p0", 4))

    def test_what_is_gone_takes_its_ancestors(self, sim):
        (left, _) = sim.split("p0")
        sim.write("a", {})
        sim.roll(left)
        sim.trim(left)
        assert {name for name, part in sim.partitions.items() if part.gone} == {"p0", left}

    def test_older_than_some_time(self, sim):
        fill(sim, 3)
        sim.advance(100)
        kept = sim.write("a", {})
        sim.trim_older_than(50)
        assert seeds(opened(sim))["p0"].cursor == kept.commit - 1

    def test_headroom_tells_how_long_a_position_is_kept(self):
        sim = Simulation(retention_seconds=100)
        fill(sim, 3)
        sim.advance(30)
        batch = fetch(opened(sim).open("p0", 0), most=1)
        assert batch.headroom == pytest.approx(70, abs=0.1)
        assert fetch(opened(Simulation()).open("p0", 0)).headroom is None


class TestScope:
    def test_a_logical_partition_holds_one_partition_key(self, sim):
        keys = [MulticloudDbKey({"tenant": f"t{n % 3}", "id": n}) for n in range(9)]
        for key in keys:
            sim.write(key, {"n": 1})
        feed = opened(sim, scope=LogicalPartition(keys[1]))
        assert [event.key for event in drain(feed, "p0", 0)[0]] == [keys[1], keys[4], keys[7]]

    def test_it_follows_only_the_partitions_that_own_it(self):
        sim = Simulation(partitions=4)
        scope = LogicalPartition(MulticloudDbKey({"id": "a"}))
        first = sim.write("a", {}).partition_id
        other = next(name for name in sim.open_partitions if name != first)
        sim.split(sim.merge(first, other), into=5)
        last = sim.write("a", {}).partition_id
        feed = opened(sim, scope=scope)
        found = seeds(feed)
        assert last in found
        assert len(found) == 3
        path, name = [], first
        while True:
            events, batches = drain(feed, name, found[name].cursor)
            path += events
            if not isinstance(batches[-1].outcome, Drained):
                break
            (child,) = batches[-1].outcome.children
            assert child.parents == (name,)
            name = child.partition_id
        assert (name, len(path)) == (last, 2)

    def test_what_lies_between_moves_the_cursor(self, sim):
        sim.behaviour = ServiceBehaviour(scan_limit=2)
        sim.write("a", {})
        for number in range(5):
            sim.write("b", {"n": number})
        feed = opened(sim, scope=LogicalPartition(MulticloudDbKey({"id": "a"})))
        reader = feed.open("p0", 0)
        batches = [fetch(reader) for _ in range(3)]
        assert [len(batch) for batch in batches] == [1, 0, 0]
        assert [batch.caught_up for batch in batches] == [False, False, True]
        assert [batch.cursor_after(len(batch)) for batch in batches] == [2, 4, 6]


class TestWhatABatchTells:
    def test_caught_up_exactly(self, sim):
        fill(sim, 3)
        reader = opened(sim).open("p0", 0)
        assert [fetch(reader, most=2).caught_up for _ in range(3)] == [False, True, True]

    def test_caught_up_on_an_empty_batch_only(self, sim):
        sim.behaviour = ServiceBehaviour(caught_up=CaughtUp.WHEN_EMPTY)
        fill(sim, 3)
        reader = opened(sim).open("p0", 0)
        assert [fetch(reader, most=2).caught_up for _ in range(3)] == [False, False, True]

    def test_not_knowing_whether_it_is_caught_up(self, sim):
        sim.behaviour = ServiceBehaviour(caught_up=CaughtUp.UNKNOWN)
        fill(sim, 3)
        reader = opened(sim).open("p0", 0)
        assert [fetch(reader, most=2).caught_up for _ in range(3)] == [None, None, None]

    def test_an_empty_batch_of_a_scan_is_never_caught_up(self, sim):
        fill(sim, 3)
        for mode in CaughtUp:
            sim.behaviour = ServiceBehaviour(caught_up=mode, empty_batch=1.0)
            batch = fetch(opened(sim).open("p0", 0))
            assert (len(batch), batch.caught_up, batch.cursor_after(0)) == (0, False, 0)

    def test_no_later_record_is_older_than_the_watermark(self, sim):
        fill(sim, 20)
        reader = opened(sim).open("p0", 0)
        batches = [fetch(reader, most=3) for _ in range(8)]
        sim.advance(100)
        batches.append(fetch(reader))
        records = fill(sim, 3)
        batches.append(fetch(reader))
        events = [batch.events(0, len(batch)) for batch in batches]
        for number, batch in enumerate(batches):
            assert all(
                event.timestamp >= batch.watermark for later in events[number + 1 :] for event in later
            )
        assert batches[-2].watermark == records[0].timestamp - timedelta(milliseconds=1)

    def test_it_may_tell_no_watermark(self, sim):
        sim.behaviour = ServiceBehaviour(watermarks=False)
        assert fetch(opened(sim).open("p0", 0)).watermark is None

    def test_an_idle_partition_asks_for_patience(self, sim):
        sim.behaviour = ServiceBehaviour(poll_after=7.0)
        fill(sim, 2)
        reader = opened(sim).open("p0", 0)
        assert [fetch(reader, most=1).poll_after for _ in range(2)] == [0, 7]

    def test_notices_come_once_where_they_were_announced(self, sim):
        for heartbeats in (True, False):
            sim.behaviour = ServiceBehaviour(heartbeats=heartbeats)
            begin = sim.head
            fill(sim, 2)
            sim.announce("p0", Renamed("a", "b"))
            reader = opened(sim).open("p0", begin)
            assert [fetch(reader, most=1).notices for _ in range(4)].count((Renamed("a", "b"),)) == 1

    def test_the_clock_is_the_services(self, sim):
        sim.advance(3600)
        assert opened(sim).clock(SOON) == sim.now


class TestIncarnations:
    def test_a_feed_of_a_dropped_collection_fails(self, sim):
        feed = opened(sim)
        reader = feed.open("p0", 0)
        sim.drop()
        for call in (
            lambda: fetch(reader),
            lambda: feed.start(Now(), None, SOON),
            lambda: feed.survey({}, SOON),
            lambda: opened(sim),
        ):
            with pytest.raises(MissingError):
                call()

    def test_it_may_end_with_a_notice(self, sim):
        sim.behaviour = ServiceBehaviour(drop_notice=True)
        reader = opened(sim).open("p0", 0)
        sim.recreate()
        assert fetch(reader).outcome == Ended(Dropped("sim/items"))

    def test_the_identity_tells_incarnations_apart(self, sim):
        before = opened(sim).identity
        sim.recreate()
        after = opened(sim).identity
        assert before.address == after.address
        assert before.incarnation != after.incarnation

    def test_there_is_no_other_collection(self, sim):
        provider = SimulationProvider(sim, Simulation(address=ResourceAddress("sim", "more")))
        provider.open_feed(FeedSpec(ResourceAddress("sim", "more")), SOON)
        with pytest.raises(MissingError, match="sim/none"):
            provider.open_feed(FeedSpec(ResourceAddress("sim", "none")), SOON)


class TestPoison:
    def test_it_fails_the_mapping_and_can_be_stepped_over(self, sim):
        fill(sim, 2)
        sim.write("bad", {"n": 0}, poison=True)
        fill(sim, 2)
        batch = fetch(opened(sim).open("p0", 0))
        assert len(batch.events(0, 2)) == 2
        with pytest.raises(RecordFault) as caught:
            batch.events(0, 5)
        assert (caught.value.index, caught.value.skip_cursor) == (2, batch.cursor_after(3))
        assert len(batch.events(3, 5)) == 2

    def test_it_may_fail_the_fetch_behind_what_is_sound(self, sim):
        sim.behaviour = ServiceBehaviour(poison_at_fetch=True)
        fill(sim, 2)
        sim.transaction([("a", {}), ("b", {})])
        sim.write("bad", {"n": 0}, poison=True)
        fill(sim, 2)
        feed = opened(sim)
        batch = fetch(feed.open("p0", 0))
        assert (len(batch), batch.caught_up) == (4, False)
        with pytest.raises(RecordFault) as caught:
            fetch(feed.open("p0", batch.cursor_after(4)))
        assert (caught.value.index, caught.value.skip_cursor) == (0, 4)
        assert len(fetch(feed.open("p0", caught.value.skip_cursor))) == 2


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
        sim.behaviour = ServiceBehaviour(
            **{trouble: 1.0}, retry_after=3.0, vendor_retried=True, faults_in_row=2
        )
        feed = opened(sim)
        for _ in range(3):
            for _ in range(2):
                with pytest.raises(error) as caught:
                    fetch(feed.open("p0", 0))
                fault = SimulationProvider(sim).classify(caught.value)
                assert (fault.category, fault.retryable, fault.vendor_retried) == (category, True, True)
                assert fault.retry_after == (3.0 if trouble == "throttle" else None)
            assert fetch(feed.open("p0", 0)).caught_up

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

    def test_a_slow_answer_comes(self, sim):
        sim.behaviour = ServiceBehaviour(slow=1.0, latency=0.001)
        fill(sim, 2)
        assert len(fetch(opened(sim).open("p0", 0))) == 2

    def test_a_slow_answer_may_be_too_late(self, sim):
        sim.behaviour = ServiceBehaviour(slow=1.0, latency=60)
        with pytest.raises(SimulationError, match="60 s"):
            opened(sim).open("p0", 0).fetch(1, 1, 0, Deadline.after(0.001))

    def test_redelivery_repeats_earlier_records_and_keeps_the_cursor(self, sim):
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
            assert len(fetch(feed.open("p0", cursor))) == 9 - cursor
        assert max(again) in (2, 3)
        assert len(again) > 1

    def test_redelivery_respects_the_bound(self, sim):
        sim.behaviour = ServiceBehaviour(redeliver=3, seed=5)
        fill(sim, 9)
        feed = opened(sim)
        for cursor in range(1, 9):
            for most in (1, 2):
                assert len(fetch(feed.open("p0", cursor), most=most)) <= most

    def test_short_batches_and_page_limits(self, sim):
        fill(sim, 40)
        sim.behaviour = ServiceBehaviour(short_batch=1.0)
        sizes = [len(batch) for batch in drain(opened(sim), "p0", 0, most=10)[1]]
        assert sum(sizes) == 40
        assert len(set(sizes)) > 3
        sim.behaviour = ServiceBehaviour(page_limit=7)
        assert len(fetch(opened(sim).open("p0", 0))) == 7

    def test_calls_on_the_feed_fail_too(self, sim):
        sim.behaviour = ServiceBehaviour(control=1.0, faults_in_row=1)
        feed = SimulationProvider(sim)
        with pytest.raises(ServerError):
            feed.open_feed(FeedSpec(sim.address), SOON)
        feed = feed.open_feed(FeedSpec(sim.address), SOON)
        with pytest.raises(ServerError):
            feed.start(Now(), None, SOON)
        assert len(feed.start(Now(), None, SOON)) == 1

    def test_a_course_is_fixed_by_its_seed(self):
        def course(seed):
            sim = Simulation(
                partitions=3, behaviour=ServiceBehaviour.rough(seed, throttle=0.3, drop=0.2, control=0.0)
            )
            fill(sim)
            sim.split("p0")
            feed, pages = opened(sim), []
            for name, seed_ in sorted(seeds(feed).items()):
                events, batches = drain(feed, name, seed_.cursor, most=3)
                pages.append([[event.event_id for event in events], [batch.outcome for batch in batches]])
            return pages, feed.calls.fetches

        assert course(1) == course(1)
        assert course(1)[1] != course(2)[1]

    def test_a_course_does_not_depend_on_the_order_of_partitions(self):
        def course(names):
            sim = Simulation(partitions=3, behaviour=ServiceBehaviour(throttle=0.5, short_batch=0.5))
            fill(sim, 60, 60)
            feed = opened(sim)
            for name in names:
                drain(feed, name, 0)
            return feed.calls.fetches

        assert course(["p0", "p1", "p2"]) == course(["p2", "p0", "p1"])

    @pytest.mark.parametrize("seed", range(50))
    def test_nothing_is_lost_in_rough_weather(self, seed):
        sim = Simulation(partitions=2, behaviour=ServiceBehaviour.rough(seed, control=0.0))
        fill(sim, 15)
        sim.transaction([(f"k{number}", {"n": number}) for number in range(7)])
        sim.merge(*sim.split("p0"))
        fill(sim, 15)
        feed = opened(sim)
        order, pending = [], {"p0": 0, "p1": 0}
        while pending:
            name, cursor = pending.popitem()
            events, batches = drain(feed, name, cursor, most=4)
            order += events
            outcome, named = batches[-1].outcome, ()
            while isinstance(outcome, Awaiting) and not named:
                named = feed.survey({name: 0}, SOON, whole=False).present
            pending.update({part.partition_id: part.oldest for part in named})
            if isinstance(outcome, Drained):
                pending.update({child.partition_id: child.cursor for child in outcome.children})
        got = {event.event_id for event in order}
        assert got == {record.event_id for record in sim.history}
        assert feed.calls.violations == []


class TestScript:
    def test_the_next_fetches_of_one_partition_fail(self):
        sim = Simulation(partitions=2)
        sim.fail_next("p1", ServerError("boom"), times=2)
        feed = opened(sim)
        fetch(feed.open("p0", 0))
        for _ in range(2):
            with pytest.raises(ServerError, match="boom"):
                fetch(feed.open("p1", 0))
        fetch(feed.open("p1", 0))

    def test_for_ever_until_forgiven(self, sim):
        sim.fail_next(None, DeniedError("no"), times=None)
        for _ in range(3):
            with pytest.raises(DeniedError):
                fetch(opened(sim).open("p0", 0))
        sim.forgive()
        fetch(opened(sim).open("p0", 0))

    def test_a_fault_is_raised_as_it_is(self, sim):
        fault = Fault(ErrorCategory.AUTHENTICATION_FAILED, "who?")
        sim.fail_next("p0", fault)
        with pytest.raises(ProviderFault) as caught:
            fetch(opened(sim).open("p0", 0))
        assert caught.value.fault is fault

    @pytest.mark.parametrize(
        ("operation", "call"),
        [
            ("start", lambda feed: feed.start(Now(), None, SOON)),
            ("survey", lambda feed: feed.survey({}, SOON)),
            ("heads", lambda feed: feed.heads({"p0": 0}, None, SOON)),
            ("clock", lambda feed: feed.clock(SOON)),
        ],
    )
    def test_calls_on_the_feed(self, sim, operation, call):
        feed = opened(sim)
        sim.fail_next(None, CorruptError("broken"), operation=operation)
        with pytest.raises(CorruptError):
            call(feed)
        call(feed)

    def test_a_held_fetch_goes_on_when_released(self, sim):
        fill(sim, 2)
        sim.hold("p0")
        got = []
        thread = threading.Thread(target=lambda: got.append(len(fetch(opened(sim).open("p0", 0)))))
        thread.start()
        assert sim.wait_until_held("p0")
        assert sim.waiting() == {"p0": 1}
        assert got == []
        sim.release("p0")
        thread.join(60)
        assert got == [2]
        assert sim.waiting() == {}

    @pytest.mark.parametrize("stop", ["cancel", "close"])
    @pytest.mark.parametrize("trouble", ["hold", "silent", "slow", "wait"])
    def test_whatever_blocks_ends_when_cancelled(self, sim, trouble, stop):
        provider = SimulationProvider(sim)
        reader = provider.open_feed(FeedSpec(sim.address), SOON).open("p0", 0)
        blocked = threading.Event()
        if trouble == "hold":
            sim.hold()
        if trouble in ("silent", "slow"):
            sim.behaviour = ServiceBehaviour(**{trouble: 1.0}, latency=1000)
        caught = []

        def run():
            blocked.set()
            with pytest.raises(CancelledError) as error:
                fetch(reader, wait=1000)
            caught.append(error.value)

        thread = threading.Thread(target=run)
        thread.start()
        blocked.wait(10)
        if stop == "cancel":
            reader.cancel()
        else:
            provider.close()
        thread.join(60)
        assert provider.classify(caught[0]).retryable

    def test_a_waiting_fetch_sees_what_is_written(self, sim):
        got = []
        feed = opened(sim)
        thread = threading.Thread(target=lambda: got.append(ids(fetch(feed.open("p0", 0), wait=1000))))
        thread.start()
        written = sim.write("a", {})
        thread.join(60)
        assert got == [[written.event_id]]

    def test_a_waiting_fetch_sees_the_end_of_its_partition(self, sim):
        got = []
        feed = opened(sim)
        thread = threading.Thread(target=lambda: got.append(fetch(feed.open("p0", 0), wait=1000).outcome))
        thread.start()
        sim.split("p0")
        thread.join(60)
        assert isinstance(got[0], Drained)


class TestProvider:
    def test_says_what_it_was_told_to_say(self, sim):
        provider = SimulationProvider(
            sim, capabilities=capabilities_without(Capability.CHANGE_FEED_POINT_IN_TIME, note="use Now()")
        )
        assert not provider.capabilities().is_supported(Capability.CHANGE_FEED_POINT_IN_TIME)
        assert provider.capabilities()[Capability.CHANGE_FEED_POINT_IN_TIME].note == "use Now()"
        assert SimulationProvider(sim).capabilities() is ALL_CAPABILITIES

    def test_classifies_every_exception_of_its_vendor(self, sim):
        provider = SimulationProvider(sim)
        for kind in SimulationError.__subclasses__():
            fault = provider.classify(kind("text"))
            assert fault.code == kind.__name__
            assert fault.retryable == (
                fault.category in (ErrorCategory.THROTTLED, ErrorCategory.TRANSIENT_FAILURE)
            )
        assert provider.classify(KeyError("?")).category == ErrorCategory.PERMANENT_FAILURE

    def test_one_option_changes_positions_and_one_does_not(self):
        assert SimulationOptions(hint="x").position_digest() == ""
        assert SimulationOptions(view="x").position_digest() != ""

    def test_counts_what_a_client_does(self, sim):
        fill(sim, 3)
        provider = SimulationProvider(sim)
        feed = provider.open_feed(FeedSpec(sim.address), SOON)
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
        feed = opened(sim)
        reader = feed.open("p0", 0)
        fetch(reader, most=0)
        reader.close()
        fetch(reader)
        assert feed.calls.violations == ["p0: fetch of 0 records", "p0: fetch after close"]

    def test_notes_two_fetches_at_a_time(self, sim):
        sim.hold("p0")
        feed = opened(sim)
        reader = feed.open("p0", 0)
        threads = [threading.Thread(target=lambda: fetch(reader)) for _ in range(2)]
        threads[0].start()
        assert sim.wait_until_held("p0")
        threads[1].start()
        while not feed.calls.violations:
            pass
        sim.release("p0")
        for thread in threads:
            thread.join(60)
        assert feed.calls.violations == ["p0: two fetches at a time"]


class TestWeather:
    def test_refuses_what_is_no_chance(self):
        with pytest.raises(ValueError, match="throttle"):
            ServiceBehaviour(throttle=1.5)

    def test_rough_weather_is_fixed_by_its_seed_and_can_be_changed(self):
        assert ServiceBehaviour.rough(4) == ServiceBehaviour.rough(4) != ServiceBehaviour.rough(5)
        assert ServiceBehaviour.rough(4, throttle=1.0).throttle == 1.0

    def test_rough_weather_never_stops_a_client(self):
        for seed in range(200):
            behaviour = ServiceBehaviour.rough(seed)
            assert (behaviour.silent, behaviour.poll_after, behaviour.vendor_retried) == (0, 0, False)
            assert attrs.evolve(behaviour, seed=0) is not behaviour


class TestScale:
    def test_a_thousand_partitions_over_ten_thousand_splits_and_merges(self):
        sim = Simulation(partitions=1000)
        names = list(sim.open_partitions)
        for number in range(5000):
            left, right = sim.split(names[number % 1000])
            names[number % 1000] = left
            other = names[(number * 7 + 1) % 1000]
            names[(number * 7 + 1) % 1000] = sim.merge(right, other) if other != left else right
            sim.write(number, {"n": number})
        assert len(sim.lineage) > 10_000
        feed = opened(sim)
        open_ids = sim.open_partitions
        batches = [fetch(feed.open(name, seed.cursor)) for name, seed in seeds(feed).items()]
        assert sum(len(batch) for batch in batches) == 5000
        assert len(open_ids) == sum(isinstance(batch.outcome, Continue) for batch in batches)

    def test_ten_thousand_partitions_open(self):
        sim = Simulation(partitions=10_000)
        for number in range(10_000):
            sim.write(number, {"n": number})
        feed = opened(sim)
        found = seeds(feed)
        assert len(found) == 10_000
        assert sum(len(fetch(feed.open(name, seed.cursor))) for name, seed in found.items()) == 10_000
