"""Tests that audits find all partitions that a service reported too late, and that nothing is read twice."""

import os
import random

import attrs
import pytest

from multiclouddb_api import AtTime, Beginning, MulticloudDbError, Now, PartitionFoundLate
from multiclouddb_conformance.simulation import Listing, ServiceBehaviour

FORESTS = int(os.environ.get("MULTICLOUDDB_FORESTS", "60"))
NEVER, ALWAYS = 1e9, 1e-9


class Forest:
    """A collection with random splits and merges, and a consumer that starts a new process for every page."""

    def __init__(self, make_bench, seed):
        self.dice = random.Random(seed)
        behaviour = ServiceBehaviour(
            seed=seed,
            listing=Listing.ALL,
            late_siblings=self.dice.choice([0, 1000, 1000]),
            proves_children=False,
            late_listing=self.dice.choice([0, 0, 4]),
            incomplete_listing=self.dice.choice([0.0, 0.0, 0.3]),
            seed_descendants=self.dice.random() < 0.5,
            jumble=self.dice.random() < 0.5,
            separate_end=self.dice.choice([0.0, 1.0]),
            late_children=self.dice.choice([0, 1]),
        )
        self.bench = make_bench(self.dice.randrange(1, 5), behaviour=behaviour)
        self.sim, self.came, self.late = self.bench.sim, [], []

    def live(self):
        for _ in range(self.dice.randrange(12)):
            self.act()
        self.begin()
        for _ in range(self.dice.randrange(40)):
            self.act()
            if self.dice.random() < 0.5:
                self.page(self.dice.choice([NEVER, NEVER, ALWAYS]))

    def begin(self):
        """Start the feed while some of the partitions are not listed."""
        for name in self.sim.partitions:
            if self.dice.random() < 0.3:
                self.sim.hide(name, self.dice.randrange(1, 9))
        moment = self.sim.now
        self.sim.advance(1)
        self.place = self.dice.choice([Beginning(), Now(), AtTime(moment)])
        while True:
            since = {Beginning: 0, Now: self.sim.head, AtTime: self.sim.commit_before(moment)}
            self.since = since[type(self.place)]
            try:
                return self.page(NEVER)
            except MulticloudDbError as error:
                if "names no partition to read" not in error.message:
                    raise

    def act(self):
        names = self.sim.open_partitions
        match self.dice.randrange(6):
            case 0 if len(names) < 10:
                self.hide(self.sim.split(self.dice.choice(names), self.dice.choice([2, 2, 3])))
            case 1 if len(names) > 1:
                self.hide([self.sim.merge(*self.dice.sample(names, 2))])
            case 2:
                self.hide([self.sim.roll(self.dice.choice(names))])
            case _:
                for _ in range(self.dice.randrange(1, 6)):
                    self.sim.write(f"k{self.dice.randrange(20)}", {"n": self.sim.head})

    def hide(self, names):
        for name in names:
            if self.dice.random() < 0.3:
                self.sim.hide(name, self.dice.randrange(1, 9))

    def page(self, audits):
        """Read one page in a new process, which asks for more children of ended partitions only once."""
        self.bench.connect(child_watch_seconds=0, coverage_audit_seconds=audits)
        try:
            page = self.bench.page(self.place, self.dice.choice([0, 1, 3]))
        finally:
            self.bench.opened.pop().close()
        for notice in page.notices:
            assert isinstance(notice, PartitionFoundLate), notice
            assert notice.partition_id not in self.late, "told twice"
            assert notice.partition_id not in {event.partition_id for event in self.came}, "told too late"
            self.late.append(notice.partition_id)
        found = {notice.partition_id for notice in page.notices}
        assert found.isdisjoint(event.partition_id for event in page.events), (
            "an event came before its notice"
        )
        self.came += page.events
        self.place = page.continuation_token
        return page

    def finish(self):
        """Read to the end, while the service lists all partitions but names no more children."""
        self.sim.behaviour = attrs.evolve(self.sim.behaviour, late_listing=0, incomplete_listing=0.0)
        for name in self.sim.partitions:
            self.sim.hide(name, 0)
        quiet = 0
        for _ in range(2000):
            page = self.page(ALWAYS)
            quiet = quiet + 1 if page.idle and not page.notices else 0
            if quiet == 3:
                return
        pytest.fail("the feed does not end")

    def check(self):
        items = {item.event_id: item for item in self.sim.truth}
        came = [event.event_id for event in self.came]
        assert len(came) == len(set(came)), "a drained partition was read again"
        assert all(items[name].commit > self.since for name in came), "an event from before the start"
        wanted = {name for name, item in items.items() if item.commit > self.since}
        assert wanted <= set(came), f"lost: {sorted(wanted - set(came))}"
        first, last = {}, {}
        for number, name in enumerate(came):
            first.setdefault(items[name].partition_id, number)
            last[items[name].partition_id] = number
        for name, number in first.items():
            for parent in self.sim.lineage[name]:
                assert last.get(parent, -1) < number, f"{name} came before its parent {parent} was drained"


def run(make_bench, seed):
    forest = Forest(make_bench, seed)
    try:
        forest.live()
        forest.finish()
        forest.check()
    except AssertionError as error:
        error.add_note(f"seed {seed}")
        raise
    return len(forest.late)


@pytest.mark.parametrize("block", range(6))
def test_audit_finds_all_that_was_missed_and_reads_nothing_again(make_bench, block):
    found = [run(make_bench, 1000 * block + number) for number in range(FORESTS // 6)]
    assert sum(found), "nothing was missed, so these forests prove nothing"
