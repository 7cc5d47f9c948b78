"""Tests that one more partition costs the same in a small lineage and in a large one.

The tests count how many partitions are visited, and never measure time. An operation on one partition
that visits all others takes seconds in a page with thousands of such operations.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from multiclouddb_api import Now
from multiclouddb_spi import Child, Deadline, Drained, Lineage, Partition, PartitionState, Position, Seed
from multiclouddb_spi.continuation import lineage as lineage_module
from multiclouddb_spi.continuation import retention as retention_module
from multiclouddb_spi.continuation.entry import Active, Audited, Waiting
from multiclouddb_spi.continuation.mover import Mover
from multiclouddb_spi.continuation.undiscovered_parents import UndiscoveredParents
from multiclouddb_spi.reading.turns import Turns
from multiclouddb_spi.retry import directly

MANY = 300
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLOSED, OPEN = PartitionState.CLOSED, PartitionState.OPEN
NAMES = [f"p{number:03}" for number in range(MANY)]


class Visited(Mapping):
    """The entries of a lineage; the mapping counts the visits of every loop over it."""

    def __init__(self, items):
        self.items_, self.visits = items, 0

    def __iter__(self):
        for name in self.items_:
            self.visits += 1
            yield name

    def __len__(self):
        return len(self.items_)

    def __getitem__(self, name):
        return self.items_[name]

    def __contains__(self, name):
        return name in self.items_

    def __setitem__(self, name, entry):
        self.items_[name] = entry

    def __delitem__(self, name):
        del self.items_[name]

    def pop(self, *args):
        return self.items_.pop(*args)


class Copied(set):
    """A set that counts the elements that are put into any new set of this class."""

    count = 0

    def __init__(self, items=()):
        super().__init__(items)
        Copied.count += len(self)


class Service:
    """A feed that lists some partitions; all partitions can be read from their oldest record."""

    def __init__(self, *listed):
        self.listed, self.described = listed, 0

    def for_one_call(self):
        return self

    def partitions(self, deadline):
        return list(self.listed)

    def oldest(self, names, deadline):
        return [Seed(name, (), "oldest") for name in names]

    def describe(self, cursor):
        self.described += 1
        return Position(cursor, NOW)

    def public_id(self, name):
        return name


def visited(*entries, audited=True):
    """Return a lineage, and the mapping that counts the visits of its entries."""
    found = Lineage(entries, lambda _, said: said[0], Audited(None, 0, retired=True) if audited else None)
    found._entries = Visited(found._entries)
    return found, found._entries


def mover_of(lineage, *listed):
    return Mover(Service(*listed), lineage, directly, Deadline.after(60), 600.0)


def active(names=NAMES):
    return [Active(name, "c") for name in names]


def end(mover, name, *children, complete=True):
    outcome = Drained(tuple(Child(child, parents, "c") for child, parents in children), complete=complete)
    return mover.end(name, outcome, mover.ask_waits(name, outcome))


@pytest.fixture
def copied(monkeypatch):
    monkeypatch.setattr(lineage_module, "set", Copied, raising=False)
    Copied.count = 0
    return Copied


def test_partitions_that_an_audit_finds_are_added_without_a_copy_of_all_others_for_each(copied):
    lineage, entries = visited(*active())
    seeds = [Seed(f"new {name}", (name,) if number % 2 else (), "c") for number, name in enumerate(NAMES)]
    assert len(lineage.add(seeds)) == MANY
    assert len(lineage.waiting()) == MANY // 2
    assert copied.count + entries.visits < 10 * MANY


@pytest.mark.parametrize("own", [True, False], ids=["itself", "descendants"])
def test_a_lost_partition_is_replaced_without_a_visit_of_all_others(own, copied):
    lineage, entries = visited(*active())
    for name in NAMES:
        seeds = [Seed(name, (), "oldest")] if own else [Seed(f"{name} {half}", (name,), "c") for half in "lr"]
        assert lineage.replace(name, seeds) == [seed.partition_id for seed in seeds]
    assert copied.count + entries.visits < 10 * MANY


@pytest.mark.parametrize("complete", [True, False])
def test_a_split_visits_no_other_partition(complete):
    lineage, entries = visited(*active())
    mover = mover_of(lineage)
    for name in NAMES:
        children = [(f"{name} l", (name,)), (f"{name} r", (name,))]
        assert len(end(mover, name, *children, complete=complete).started) == 2
    assert entries.visits < 10 * MANY


def test_a_merge_of_known_partitions_visits_no_other_partition():
    lineage, entries = visited(*active())
    mover, started = mover_of(lineage), []
    for one, other in zip(NAMES[::2], NAMES[1::2], strict=True):
        for name in (one, other):
            started += end(mover, name, (f"{one} {other}", (one, other))).started
    assert len(started) == MANY // 2
    assert entries.visits < 10 * MANY


class Reached:
    """Counts the searches of the graph of partitions, and the partitions that they reach."""

    def __init__(self, monkeypatch):
        self.searches, self.count, self._reach = 0, 0, retention_module.reach
        monkeypatch.setattr(retention_module, "reach", self)

    def __call__(self, *args):
        found = self._reach(*args)
        self.searches, self.count = self.searches + 1, self.count + len(found)
        return found


def test_an_undiscovered_parent_is_looked_for_among_its_own_ancestors_only(monkeypatch):
    lineage, _ = visited(*active())
    listed = [Partition(name, (), CLOSED) for name in NAMES]
    listed += [Partition(f"child of {name}", (name,), OPEN) for name in NAMES]
    mover, reached = mover_of(lineage, *listed), Reached(monkeypatch)
    moved = end(mover, "p000", ("merged", ("p000", "child of p001")))
    assert moved.started == ()
    assert lineage.waiting()[0].parents == ("child of p001",)
    assert reached.count < 10


def test_one_search_finds_what_all_descendants_of_lost_partitions_wait_for(monkeypatch):
    """Each of the descendants may follow the second lost partition, so it waits for this partition."""
    entries = [Active("lost 1", "c"), Active("lost 2", "c")]
    listed = [Partition(name, ("lost 1",), OPEN) for name in NAMES]
    reached = Reached(monkeypatch)
    retention = retention_module.Retention(lambda: listed, lambda _: [Seed(name, (), "c") for name in NAMES])
    lineage, _ = visited(*entries)
    _, holds = retention.after_loss(lineage, "lost 1", [Seed(name, (), "c") for name in NAMES])
    assert holds == dict.fromkeys(NAMES, "lost 2")
    assert reached.searches < 10


def test_children_of_undiscovered_parents_start_after_one_look_at_each_position():
    waiting = [Waiting(f"child of {name}", ("c",), (f"undiscovered {name}",), 0) for name in NAMES]
    lineage, entries = visited(*active(), *waiting, audited=False)
    feed = Service()
    UndiscoveredParents(feed, lineage)
    assert not lineage.waiting()
    assert feed.described < 10 * MANY
    assert entries.visits < 20 * MANY


def test_the_notices_of_an_audit_mark_each_late_partition_once(make_bench, monkeypatch):
    bench, marked = make_bench(60), []
    names = list(bench.sim.open_partitions)
    for name in names[1:]:
        bench.sim.hide(name, 1)
    bench.connect()
    token = bench.page(Now()).continuation_token
    of = Turns.of
    monkeypatch.setattr(Turns, "of", lambda turns, name: marked.append(name) or of(turns, name))
    bench.connect(coverage_audit_seconds=1e-9)
    page = bench.page(token)
    assert len(page.notices) == 59
    assert page.diagnostics.found_late == 59
    assert len(marked) < 20 * len(names)
