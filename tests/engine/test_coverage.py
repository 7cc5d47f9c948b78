"""Tests children that a service names late: how their parent is watched, and how an audit finds them."""

from datetime import UTC, datetime, timedelta

import attrs
import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    MulticloudDbError,
    Now,
    Observer,
    PartitionFoundLate,
    PhysicalPartition,
)
from multiclouddb_conformance.delegating import WrappedProvider
from multiclouddb_conformance.simulation import ServerError, SimulationFeed, SimulationProvider
from multiclouddb_conformance.simulation.position import place_after, to_cursor
from multiclouddb_spi import (
    Awaiting,
    Child,
    Deadline,
    Drained,
    FeedSpec,
    InvalidCursor,
    Lineage,
    Planner,
    Seed,
)
from multiclouddb_spi.continuation import coverage, watching
from multiclouddb_spi.continuation.coverage import missed_by_parents
from multiclouddb_spi.continuation.entry import Active, Audited
from multiclouddb_spi.continuation.entry import AwaitingChildren as Ending
from multiclouddb_spi.continuation.state import FeedOver, Retired, state_from_json, state_to_json
from multiclouddb_spi.continuation.token import decode_token, encode_token
from multiclouddb_spi.contract import Partition, PartitionState, Tracked
from multiclouddb_spi.reading.diagnostics import open_watches


class Shy(WrappedProvider):
    """A service that names and lists some partitions late, and cannot prove that a listing is complete.

    Attributes:
        hidden: The partitions that the service does not show yet.
        proves: True if the service proves that it has named all children.
        looks: The number of times that the service was asked for children.
    """

    def __init__(self, sim, *hidden):
        super().__init__(SimulationProvider(sim))
        self.hidden, self.proves, self.looks, self.audits = set(hidden), False, 0, 0
        self.trouble, self.ended = None, []

    @property
    def calls(self):
        return self.inner.calls

    def shown(self, outcome):
        if not isinstance(outcome, Drained):
            return outcome
        children = tuple(child for child in outcome.children if child.partition_id not in self.hidden)
        return Drained(children, complete=self.proves) if children else Awaiting()

    def fetch(self, reader, max_records, max_bytes, wait, deadline):
        batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
        return attrs.evolve(batch, outcome=self.shown(batch.outcome))

    def find_heads(self, feed, cursors, max_records, deadline):
        heads = super().find_heads(feed, cursors, max_records, deadline)
        return {name: attrs.evolve(head, outcome=self.shown(head.outcome)) for name, head in heads.items()}

    def discover(self, feed, awaiting, deadline):
        self.looks += 1
        if self.trouble is not None:
            raise self.trouble
        named = super().discover(feed, awaiting, deadline)
        return {name: self.shown(outcome) for name, outcome in named.items()}

    def start(self, feed, position, partition_id, deadline):
        seeds = super().start(feed, position, partition_id, deadline)
        return [seed for seed in seeds if seed.partition_id not in self.hidden] + self.ended

    def partitions(self, feed, deadline):
        return [item for item in super().partitions(feed, deadline) if item.partition_id not in self.hidden]

    def uncovered(self, feed, tracked, since, deadline):
        self.audits += 1
        if self.trouble is not None:
            raise self.trouble
        inner = feed.inner
        listed = self.partitions(feed, deadline)
        sim = inner.sim
        missed = missed_by_parents(tracked, listed, lambda name: sim.partitions[name].gone)
        whole = {seed.partition_id: seed for seed in super().uncovered(feed, {}, since, deadline)}
        return missed and [attrs.evolve(whole[name], parents=above) for name, above in missed.items()]


class Clock:
    """The clocks of the machine; only the test moves them."""

    def __init__(self):
        self.passed = 0.0

    def monotonic(self):
        return 1000 + self.passed

    def time(self):
        return 1_800_000_000 + self.passed


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(watching, "time", made)
    monkeypatch.setattr(coverage, "time", made)
    return made


@pytest.fixture
def split(make_bench, clock):
    """Split one partition into halves with five changes each, and hide the second half."""

    def make(*hidden, connect=True, **config):
        bench = make_bench(1)
        bench.fill(5)
        bench.sim.split("p0")
        for name in bench.sim.open_partitions:
            bench.fill_partition(name, 5)
        bench.provider_of = Shy(bench.sim, *hidden)
        if connect:
            bench.connect(provider=bench.provider_of, **config)
        return bench

    return make


def restart(bench, **config):
    """Continue in another process, with a client that does not know when the last search took place."""
    shy = Shy(bench.sim, *bench.provider_of.hidden)
    bench.provider_of = shy
    watching._looks.clear()
    bench.connect(provider=shy, **config)


class TestWatch:
    def test_a_known_child_is_read_at_once_and_the_feed_is_idle_with_the_watch_open(self, bench, split, ids):
        bench = split("p2")
        events, token = bench.drain()
        assert {event.partition_id.rpartition(":")[2] for event in events} == {"p0", "p1"}
        page = bench.page(token)
        assert page.idle
        assert page.diagnostics.open_watches == 1

    @pytest.mark.parametrize("again", [False, True], ids=["same process", "restart"])
    @pytest.mark.parametrize("seconds", [0.2, 5, 90, 599])
    def test_a_child_that_is_named_late_is_read_whole_and_once(self, split, clock, seconds, again):
        bench = split("p2")
        events, token = bench.drain()
        if again:
            restart(bench)
        while clock.passed < seconds / 1.3:
            clock.passed += 0.1 + clock.passed / 4
            more, token = bench.drain(token)
            assert not more
        bench.provider_of.hidden.clear()
        clock.passed += 120
        more, token = bench.drain(token)
        assert sorted(event.event_id for event in [*events, *more]) == sorted(bench.written())
        notices = [notice for page in bench.walk(token) for notice in page.notices]
        assert notices == [], "a late child is read like any other"

    def test_a_late_child_goes_on_through_its_own_descendants(self, split, clock):
        bench = split("p2")
        events, token = bench.drain()
        bench.sim.split("p2")
        for name in bench.sim.open_partitions:
            bench.fill_partition(name, 3)
        bench.provider_of.hidden.clear()
        clock.passed += 1
        more, _ = bench.drain(token)
        came = [event.event_id for event in [*events, *more]]
        assert sorted(came) == sorted(bench.written())

    def test_looks_become_rare(self, split, clock):
        bench = split("p2")
        _, token = bench.drain()
        before, steps = bench.provider_of.looks, 0
        while decode_token(token).state["p"][0][0] == "p0" or "p0" in str(decode_token(token).state):
            clock.passed += 0.5
            token = bench.page(token).continuation_token
            steps += 1
        assert 600 <= clock.passed < 800
        assert 8 <= bench.provider_of.looks - before <= 20 < steps

    def test_no_restart_makes_a_watch_shorter(self, split, clock):
        bench = split("p2")
        _, token = bench.drain()
        for _ in range(30):
            restart(bench)
            clock.passed += 3600
            page = bench.page(token)
            token = page.continuation_token
        assert page.diagnostics.open_watches == 1, "nothing shows that anybody looked in between"

    def test_time_of_one_process_adds_up_over_restarts(self, split, clock):
        bench = split("p2")
        _, token = bench.drain()
        lives = 0
        while "p0" in str(decode_token(token).state["p"]):
            restart(bench)
            lives += 1
            for _ in range(4):
                token = bench.page(token).continuation_token
                clock.passed += 40
        assert 4 < lives < 9

    def test_it_ends_when_the_service_proves_that_all_children_are_known(self, split, clock):
        bench = split("p2")
        _, token = bench.drain()
        bench.provider_of.hidden.clear()
        bench.provider_of.proves = True
        clock.passed += 1
        _, token = bench.drain(token)
        assert {entry[0] for entry in decode_token(token).state["p"]} == {"p1", "p2"}

    def test_a_service_that_does_not_answer_takes_nothing_back(self, split, clock):
        bench = split("p2")
        events, token = bench.drain()
        bench.provider_of.trouble = ServerError("503")
        clock.passed += 1
        bench.fill_partition("p1", 2)
        more, token = bench.drain(token)
        assert len(more) == 2
        bench.provider_of.trouble = None
        bench.provider_of.hidden.clear()
        clock.passed += 1
        rest, _ = bench.drain(token)
        assert sorted(event.event_id for event in [*events, *more, *rest]) == sorted(bench.written())

    def test_a_look_that_finds_nothing_hides_no_failure(self, split, clock):
        bench = split("p2")
        _, token = bench.drain()
        clock.passed += 1
        bench.sim.fail_next("p1", ServerError("503"), times=50)
        looks = bench.provider_of.looks
        with pytest.raises(MulticloudDbError, match="503"):
            bench.page(token)
        assert bench.provider_of.looks > looks

    def test_a_seed_that_has_ended_is_not_read_and_its_late_children_are(self, split, clock):
        """The feed starts after a split. At first, the service lists only one half and the closed partition;
        later, it also lists the other half.
        """
        bench = split("p2")
        ended = bench.sim.partitions["p0"].closed
        bench.provider_of.ended = [Seed("p0", (), to_cursor(place_after(ended)), ("p1", "p2"))]
        page = bench.page(Now())
        after = bench.fill_partition("p1", 2)
        assert page.diagnostics.open_watches == 1
        events, token = bench.drain(page.continuation_token)
        assert [event.event_id for event in events] == after
        bench.provider_of.hidden.clear()
        clock.passed += 1
        late = bench.fill_partition("p2", 3)
        more, token = bench.drain(token)
        assert [event.event_id for event in more][-3:] == late
        assert {event.partition_id for event in more} == {bench.sim.public_id("p2")}
        assert bench.calls.opens["p0"] == 0

    def test_a_child_that_is_drained_is_not_started_by_a_later_look(self, split, clock):
        bench = split("p2")
        events, token = bench.drain()
        bench.sim.split("p1")
        more, token = bench.drain(token)
        bench.provider_of.hidden.clear()
        clock.passed += 1
        rest, _ = bench.drain(token)
        came = [event.event_id for event in [*events, *more, *rest]]
        assert sorted(came) == sorted(bench.written())

    def test_merged_child_waits_no_longer_than_the_watch_of_a_parent_that_never_names_it(
        self, make_bench, clock
    ):
        bench = make_bench(3)
        bench.sim.merge("p0", "p1")
        shy = Shy(bench.sim, "p3")
        bench.connect(provider=shy)
        token = bench.page().continuation_token
        shy.hidden.clear()
        clock.passed += 1
        bench.fill_partition("p3", 2)
        events, _ = bench.drain(token)
        assert len(events) == 2


class TestOnePartition:
    def retired(self, bench):
        scope = PhysicalPartition(bench.sim.public_id("p0"))
        *_, page = bench.walk(scope=scope)
        assert page.partition_retired
        return scope, page

    def children(self, page):
        return {child.partition_id.rpartition(":")[2] for child in page.child_partitions}

    def test_its_token_names_late_children_when_it_is_asked_again(self, split, clock):
        bench = split("p2")
        scope, page = self.retired(bench)
        assert self.children(page) == {"p1"}
        assert page.diagnostics.open_watches == 1
        bench.provider_of.hidden.clear()
        clock.passed += 1
        again = bench.page(page.continuation_token, scope=scope)
        assert again.partition_retired
        assert self.children(again) == {"p1", "p2"}
        child = next(one for one in again.child_partitions if one.partition_id.endswith("p2"))
        events, _ = bench.drain(child.continuation_token, scope=PhysicalPartition(child.partition_id))
        assert len(events) == 5

    @pytest.mark.parametrize("again", [False, True], ids=["same process", "restart"])
    def test_it_says_at_least_what_it_has_said(self, split, clock, again):
        bench = split()
        scope, page = self.retired(bench)
        bench.provider_of.hidden.update({"p1", "p2"})
        if again:
            restart(bench)
        for trouble in (None, ServerError("503")):
            bench.provider_of.trouble = trouble
            clock.passed += 1
            page = bench.page(page.continuation_token, scope=scope)
            assert self.children(page) == {"p1", "p2"}

    def test_nothing_is_asked_behind_the_end_of_the_watch(self, split, clock):
        bench = split("p2")
        scope, page = self.retired(bench)
        while page.diagnostics.open_watches:
            clock.passed += 60
            page = bench.page(page.continuation_token, scope=scope)
        asked = bench.provider_of.looks
        for _ in range(5):
            clock.passed += 600
            page = bench.page(page.continuation_token, scope=scope)
            assert self.children(page) == {"p1"}
        assert bench.provider_of.looks == asked

    def test_a_token_of_a_plan_names_only_what_the_plan_has_not(self, split, clock):
        bench = split("p2")
        _, token = bench.drain()
        plan = dict(bench.plan(token))
        assert {name.rpartition(":")[2] for name in plan} == {"p0", "p1"}
        bench.provider_of.hidden.clear()
        clock.passed += 1
        name = bench.sim.public_id("p0")
        page = bench.page(plan[name], scope=PhysicalPartition(name))
        assert self.children(page) == {"p2"}


class Told(Observer):
    def __init__(self):
        self.found = []

    def partition_found_late(self, address, found):
        self.found.append(found)


def without(token, *names):
    """Return the token of a reader that has never seen these partitions."""
    envelope = decode_token(token)
    state = {**envelope.state, "p": [entry for entry in envelope.state["p"] if entry[0] not in names]}
    return encode_token(attrs.evolve(envelope, state=state))


class TestAudit:
    @pytest.mark.parametrize("again", [False, True], ids=["same process", "restart"])
    def test_finds_what_was_listed_after_the_watch_had_ended(self, split, clock, again):
        told = Told()
        bench = split("p2", observer=told)
        events, token = bench.drain()
        while "p0" in str(decode_token(token).state["p"]):
            clock.passed += 50
            _, token = bench.drain(token)
        clock.passed += 5000
        bench.provider_of.hidden.clear()
        if again:
            restart(bench, observer=told)
        page = bench.page(token)
        assert page.notices == (PartitionFoundLate(bench.sim.public_id("p2"), "commit 6"),)
        assert page.diagnostics.found_late == 1
        assert told.found == list(page.notices)
        assert not page.events, "the notice comes before the partition's first event"
        more, token = bench.drain(page.continuation_token)
        assert sorted(event.event_id for event in [*events, *more]) == sorted(bench.written())
        clock.passed += 10_000
        assert not [notice for page in bench.walk(token) for notice in page.notices]

    def test_the_notice_comes_again_from_the_token_before_it(self, split, clock):
        bench = split()
        _, token = bench.drain()
        token = without(token, "p0", "p2")
        clock.passed += 10_000
        first, second = bench.page(token), bench.page(token)
        assert first.notices == second.notices != ()

    def test_a_long_poll_ends_with_what_was_found(self, split, clock):
        bench = split()
        _, token = bench.drain()
        clock.passed += 10_000
        page = bench.page(without(token, "p0", "p2"), wait=20)
        assert page.diagnostics.found_late == 1
        assert not page.events

    def test_brings_nothing_from_before_the_start_of_the_feed(self, split, clock):
        bench = split()
        bench.sim.advance(1)  # a change that is committed at exactly this time may be delivered or not
        token = bench.page(Now()).continuation_token
        written = bench.fill_partition("p2", 2)
        clock.passed += 10_000
        found = bench.page(without(token, "p2"))
        assert found.diagnostics.found_late == 1
        events, _ = bench.drain(found.continuation_token)
        assert [event.event_id for event in events] == written

    def test_never_reads_a_drained_partition_again(self, split, clock):
        bench = split()
        bench.sim.split("p1")
        for name in bench.sim.open_partitions:
            bench.fill_partition(name, 2)
        events, token = bench.drain()
        clock.passed += 10_000
        found = bench.page(without(token, "p0", "p2"))
        assert [notice.partition_id for notice in found.notices] == [bench.sim.public_id("p2")]
        more, _ = bench.drain(found.continuation_token)
        assert {event.partition_id.rpartition(":")[2] for event in more} == {"p2"}
        assert len(events) + len(more) > len(bench.written()), "it was read, and the token was edited"

    def test_starts_the_oldest_that_was_missed_and_its_children_after_it(self, split, clock):
        bench = split("p2")
        events, token = bench.drain()
        bench.sim.split("p2")
        for name in bench.sim.open_partitions:
            bench.fill_partition(name, 2)
        bench.provider_of.hidden.clear()
        clock.passed += 10_000
        found = bench.page(without(token, "p0"))
        assert {notice.partition_id.rpartition(":")[2] for notice in found.notices} == {"p2", "p3", "p4"}
        more, _ = bench.drain(found.continuation_token, size=1)
        order = [event.partition_id.rpartition(":")[2] for event in more]
        assert order.index("p3") > max(place for place, name in enumerate(order) if name == "p2")
        assert sorted(event.event_id for event in [*events, *found.events, *more]) == sorted(bench.written())

    def test_is_made_every_ten_minutes_and_soon_after_a_retirement(self, split, clock):
        bench = split(connect=False)
        shy = bench.provider_of
        shy.proves = True
        bench.connect(provider=shy)
        _, token = bench.drain()

        def audits(seconds):
            nonlocal token
            before = shy.audits
            until = clock.passed + seconds
            while clock.passed < until:
                clock.passed += 1
                token = bench.page(token).continuation_token
            return shy.audits - before

        assert audits(59) == 0
        assert audits(2) == 1, "the start counts like a retirement"
        assert audits(595) == 0
        assert audits(10) == 1
        bench.sim.split("p1")
        assert audits(50) == 0
        assert audits(12) == 1
        assert audits(590) == 0

    def test_a_clock_that_was_set_back_does_not_put_it_off(self, split, clock):
        bench = split()
        _, token = bench.drain()
        clock.passed -= 10_000
        before = bench.provider_of.audits
        for _ in range(20):
            token = bench.page(token).continuation_token
        assert bench.provider_of.audits == before + 1

    def test_that_fails_costs_no_page_and_is_made_again(self, split, clock, caplog):
        bench = split()
        _, token = bench.drain()
        token = without(token, "p0", "p2")
        bench.provider_of.trouble = ServerError("503")
        clock.passed += 10_000
        bench.fill_partition("p1", 1)
        page = bench.page(token)
        assert len(page.events) == 1
        assert "the audit of coverage failed (503)" in caplog.text
        asked = bench.provider_of.audits
        clock.passed += 50
        page = bench.page(page.continuation_token)
        assert bench.provider_of.audits == asked, "never twice a minute, also while it fails"
        bench.provider_of.trouble = None
        clock.passed += 61
        assert bench.page(page.continuation_token).diagnostics.found_late == 1

    def test_a_service_that_cannot_tell_starts_nothing(self, split, clock):
        bench = split()
        _, token = bench.drain()
        bench.provider_of.uncovered = lambda *_: None
        clock.passed += 10_000
        page = bench.page(without(token, "p0", "p2"))
        assert page.idle
        assert page.notices == ()

    @pytest.mark.parametrize("start", ["now", "moment"])
    def test_the_token_keeps_the_start_as_microseconds_since_1970(self, split, clock, monkeypatch, start):
        """Other releases read the token too, so the unit and the epoch of its times must not change."""
        bench = split()
        moment = bench.sim.now
        token = bench.page(Now() if start == "now" else AtTime(moment)).continuation_token
        since = decode_token(token).state["a"][0]
        assert since == (moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)
        asked = []
        noted = lambda _feed, _tracked, since, _until: asked.append(since)  # noqa: E731
        monkeypatch.setattr(SimulationFeed, "uncovered", noted)
        bench.connect()
        clock.passed += 10_000
        bench.page(token)
        assert asked == [moment]

    def test_one_partition_is_not_audited(self, split, clock):
        bench = split()
        clock.passed += 10_000
        scope = PhysicalPartition(bench.sim.public_id("p1"))
        bench.drain(scope=scope)
        assert bench.provider_of.audits == 0


class TestPlanner:
    def planner(self, bench, **settings):
        deadline = Deadline.after(60)
        feed = bench.provider_of.open_feed(FeedSpec(bench.sim.address), deadline)
        return Planner(bench.provider_of, feed, **settings), deadline

    def run(self, planner, lineage, deadline):
        """Read up to the current end; return the ids of the partitions read, and the end position."""
        read = []
        for step in planner.steps(lineage, deadline):
            read += [part.partition_id for part in step.ranges()]
            lineage = step.after
        return read, lineage

    def test_reads_a_late_child_that_a_look_names(self, split, clock):
        bench = split("p2", connect=False)
        planner, deadline = self.planner(bench)
        read, lineage = self.run(planner, planner.start(Beginning(), deadline), deadline)
        assert read == ["p0", "p1"]
        assert not planner.advance(lineage, None, deadline, allow_empty=True).moved, (
            "a look for children is no step"
        )
        bench.provider_of.hidden.clear()
        clock.passed += 1
        read, lineage = self.run(planner, planner.restore(lineage.to_json()), deadline)
        assert read == ["p2"]

    def test_reads_what_an_audit_finds(self, split, clock):
        bench = split("p2", connect=False)
        planner, deadline = self.planner(bench, watch_seconds=0)
        read, lineage = self.run(planner, planner.start(Beginning(), deadline), deadline)
        clock.passed += 1
        read, lineage = self.run(planner, lineage, deadline)
        assert [entry.partition_id for entry in lineage] == ["p1"], "the watch has ended"
        bench.provider_of.hidden.clear()
        clock.passed += 10_000
        step = planner.advance(lineage, None, deadline)
        assert [late.partition_id for late in step.found_late] == [bench.sim.public_id("p2")]
        assert step.moved
        read, lineage = self.run(planner, step.after, deadline)
        assert read == ["p2"]

    def test_an_audit_that_fails_costs_no_step(self, split, clock, caplog):
        bench = split(connect=False)
        planner, deadline = self.planner(bench)
        lineage = planner.start(Beginning(), deadline)
        bench.provider_of.trouble = ServerError("503")
        clock.passed += 10_000
        assert planner.advance(lineage, None, deadline).moved
        assert "audit of coverage failed" in caplog.text

    def test_an_audit_gets_ten_seconds_of_the_time_of_a_plan(self, split, clock):
        """If the service does not answer the audit, the audit ends early, and the plan gets the remaining
        time."""
        bench = split(connect=False)
        planner, deadline = self.planner(bench)
        lineage = planner.start(Beginning(), deadline)
        left = []

        def uncovered(feed, tracked, since, until):
            left.append(until.remaining())

        bench.provider_of.uncovered = uncovered
        clock.passed += 10_000
        assert planner.advance(lineage, None, deadline).moved
        assert len(left) == 1
        assert left[0] <= 10 < deadline.remaining()


def partition(name, *parents, closed=False):
    return Partition(name, parents, PartitionState.CLOSED if closed else PartitionState.OPEN)


def missed(tracked, *listed, gone=()):
    entries = {entry.partition_id: entry for entry in tracked}
    return missed_by_parents(entries, listed, set(gone).__contains__)


class TestMissedByParents:
    def test_nothing_is_missed_that_is_read_or_descends_from_it(self):
        listed = [partition("p", closed=True), partition("a", "p"), partition("b", "p")]
        assert missed([Tracked("p", (1,))], *listed) == {}

    def test_the_sibling_of_what_is_read_was_missed(self):
        listed = [partition("p", closed=True), partition("a", "p"), partition("b", "p")]
        assert missed([Tracked("a", (1,))], *listed) == {"b": ()}

    def test_the_sibling_of_a_descendant_was_missed_too(self):
        listed = [
            partition("p", closed=True),
            partition("a", "p", closed=True),
            partition("b", "p", closed=True),
            partition("c", "a"),
            partition("d", "b"),
        ]
        assert missed([Tracked("c", (1,))], *listed) == {"b": (), "d": ("b",)}

    def test_nothing_can_be_told_while_what_is_read_is_not_listed(self):
        assert missed([Tracked("a", (1,))], partition("b")) is None

    def test_what_descends_from_a_partition_that_is_not_listed_yet_is_not_judged(self):
        listed = [partition("a"), partition("d", "c")]
        assert missed([Tracked("a", (1,))], *listed) == {}
        assert missed([Tracked("a", (1,))], *listed, gone="c") == {"d": ()}

    def test_a_watched_parent_covers_what_comes_of_it(self):
        listed = [partition("a"), partition("b", "p")]
        tracked = [Tracked("a", (1,)), Tracked("p", (9,), drained=True, has_children=True)]
        assert missed(tracked, *listed, gone="p") == {}

    def test_a_parent_that_a_child_waits_for_in_vain_was_missed(self):
        listed = [partition("q", closed=True), partition("m", "p", "q"), partition("a")]
        tracked = [Tracked("a", (1,)), Tracked("m", (1,), parents=("q",))]
        assert missed(tracked, *listed, gone="p") == {"q": ()}

    def test_the_service_is_asked_once_for_a_parent_that_is_not_listed(self):
        asked = []
        listed = [partition("a"), partition("b", "p"), partition("c", "p")]
        found = missed_by_parents(
            {"a": Tracked("a", (1,))}, listed, lambda name: bool(asked.append(name)) or True
        )
        assert found == {"b": (), "c": ()}
        assert asked == ["p"]


class TestHeadroom:
    def test_of_a_child_that_waits_counts_too(self, make_bench, monkeypatch):
        bench = make_bench(2, retention_seconds=1000)
        bench.connect()
        bench.fill(20)
        token = bench.page().continuation_token
        bench.sim.merge("p0", "p1")
        monkeypatch.setattr(SimulationFeed, "headroom", lambda self, cursor, now: 42.0)
        bench.sim.fail_next("p1", ServerError("503"), times=None)
        page = bench.page(token)
        flags = [entry[2] for entry in decode_token(page.continuation_token).state["p"] if len(entry) > 2]
        assert flags == [4], "the child waits"
        assert page.diagnostics.retention_headroom_seconds == 42.0


class TestWhatTheAuditIsGiven:
    def noting(self, bench):
        """Record the arguments of each audit, and the number of fetches that had begun before the audit."""
        seen, ask = [], bench.provider_of.uncovered

        def uncovered(feed, tracked, since, deadline):
            seen.append((since, deadline.remaining(), bench.calls.total_fetches))
            return ask(feed, tracked, since, deadline)

        bench.provider_of.uncovered = uncovered
        return seen

    def test_the_start_of_the_feed_is_exact(self, split, clock):
        bench = split()
        seen, moment = self.noting(bench), bench.sim.now
        token = bench.page(AtTime(moment)).continuation_token
        clock.passed += 10_000
        bench.page(token)
        assert [since for since, _, _ in seen] == [moment]

    def test_it_takes_half_of_the_time_at_most_and_the_service_reads_meanwhile(self, split, clock):
        bench = split()
        seen = self.noting(bench)
        token = bench.page().continuation_token
        clock.passed += 10_000
        before = bench.calls.total_fetches
        bench.page(token, timeout=4)
        ((_, remaining, fetches),) = seen
        assert remaining <= 2
        assert fetches > before


class TestState:
    WATCHED = Retired("p", (Child("a", ("p",), 3),), Ending("p", 2, ("b", "a"), 17))

    def test_a_watch_comes_back(self):
        assert state_from_json(state_to_json(self.WATCHED), max) == self.WATCHED

    @pytest.mark.parametrize(
        "watch", [7, [1], [1, 2], [1, -1, []], [1, 2**53, []], [1, True, []], [1, 2, ["a", 5]], [1, 2, "a"]]
    )
    def test_any_other_watch_is_refused(self, watch):
        with pytest.raises(InvalidCursor):
            state_from_json({**state_to_json(self.WATCHED), "watch": watch}, max)

    def test_of_a_partition_whose_children_are_all_known_nothing_is_watched(self, split, clock):
        bench = split()
        bench.provider_of.proves = True
        scope = PhysicalPartition(bench.sim.public_id("p0"))
        *_, page = bench.walk(scope=scope)
        assert page.diagnostics.open_watches == 0
        assert "watch" not in decode_token(page.continuation_token).state

    def test_a_feed_that_is_over_has_no_watch(self):
        assert open_watches(FeedOver("dropped")) == 0

    def test_retention_makes_an_audit_due(self):
        lineage = Lineage([Active("p", 1), Active("q", 1)], max, Audited(retired=False))
        lineage.replace("p", [Seed("c", (), 5)])
        assert lineage.audited.retired

    def test_a_seed_does_not_wait_for_a_parent_that_is_only_watched_and_is_named_with_that(self):
        lineage = Lineage([Active("a", 1), Ending("p", 9, ("a",))], lambda _, said: said[0], Audited())
        assert lineage.add([Seed("b", ("p",), 5)]) == ["b"]
        assert {entry.partition_id for entry in lineage.active()} == {"a", "b"}
        assert lineage.fresh_children("p", [Child("b", ("p",), 5)]) == []
