"""Tests a split of which one child is listed late. This child is still read, whatever was known before."""

import time

import attrs
import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    FromContinuationToken,
    Now,
    OperationOptions,
    PhysicalPartition,
)
from multiclouddb_dynamo_emulator import ChildFilter

from .world import ADDRESS, World, markers

EACH = 10
PATIENT = OperationOptions(wait_seconds=0.05)
OLD = 600  # in seconds; longer than the period of which `Now` may repeat events
LATE = pytest.mark.parametrize("late", [None, 0.3, 5, 90], ids=["one call", "0.3 s", "5 s", "90 s"])
RESTART = pytest.mark.parametrize("restart", [False, True], ids=["one process", "restart"])


@pytest.fixture(autouse=True)
def hasty_readers(monkeypatch):
    """Make the reader poll shards often, but search for children at the normal rate."""
    monkeypatch.setattr("multiclouddb_dynamo.reader._FIRST_PAUSE", 0.005)
    monkeypatch.setattr("multiclouddb_dynamo.reader._MOST_PAUSE", 0.02)


@attrs.define
class Walker:
    """Reads a shard and each of its descendants separately, each with its own token.

    Attributes:
        world: The stream.
        client: The client.
        starts: Maps each partition to the start of its next read.
        events: The markers of everything that was delivered so far.
        named: The ids of all partitions that the feed has named.
    """

    world: World
    client: object
    starts: dict
    events: list = attrs.field(factory=list)
    named: set = attrs.field(factory=set)

    def read(self):
        """Read one page of each partition.

        An ended partition is read again as long as the feed may name more children.
        """
        for name, start in list(self.starts.items()):
            page = self.client.read_changes(
                ChangeFeedRequest(ADDRESS, start, PhysicalPartition(name)), PATIENT
            )
            self.events += page.events
            self.starts[name] = FromContinuationToken(page.continuation_token)
            if page.partition_retired and not page.diagnostics.open_watches:
                del self.starts[name]
            for child in page.child_partitions:
                if child.partition_id not in self.named:
                    self.named.add(child.partition_id)
                    self.starts[child.partition_id] = FromContinuationToken(child.continuation_token)
        time.sleep(0.01)

    def until_found(self, wanted):
        until = time.monotonic() + 30
        while not set(wanted) <= set(self.markers):
            assert time.monotonic() < until, f"{sorted(set(wanted) - set(self.markers))} are missing"
            self.read()

    def restart(self):
        self.client.close()
        self.client = self.world.client()

    @property
    def markers(self):
        return markers(self.events)


@attrs.define
class Split:
    """A split that is in progress.

    Attributes:
        world: The stream.
        reader: The reader.
        early: The markers of the records that must be found before the late shard is listed.
        late: The markers of the records in the shard that is listed late.
        old: The markers that are older than the start.
        half: The shard that is listed late.
    """

    world: World
    reader: object
    early: list
    late: list
    old: list
    half: str

    def check(self, late, restart):
        """Read the shards that are listed first, then the shard that a later listing adds.

        Check that no event is lost or delivered twice.
        """
        self.reader.until_found(self.early)
        if restart:
            self.reader.restart()
        self.world.script.advance(late or 0)
        self.reader.until_found(self.late)
        found = self.reader.markers
        assert sorted(found) == sorted(set(found))
        assert not set(found) & set(self.old)


def reader_of(world, scope, start):
    if scope == "collection":
        return world.consumer(start)
    (name,) = world.client().list_physical_partitions(ADDRESS)
    return Walker(world, world.client(), {name: start})


def halve(world, reader, late, *, before=lambda: None, halve_all=False):
    """Split the only shard, or every shard, and list the second half of each split late."""
    before()
    pairs = [world.script.split(shard) for shard in (world.open() if halve_all else [world.chain()])]
    for _, second in pairs:
        hide(world, second, late)
    first, second = pairs[0]
    early = world.put_in(first, EACH) + [mark for a, _ in pairs[1:] for mark in world.put_in(a)]
    hidden = world.put_in(second, EACH) + [mark for _, b in pairs[1:] for mark in world.put_in(b)]
    return Split(world, reader, early, hidden, [], second)


def hide(world, shard, late):
    world.script.hide(shard, calls=0 if late else 1, seconds=late or 0.0)


def active(world, scope, late):
    reader = reader_of(world, scope, Beginning())
    reader.until_found(world.put("a"))
    return halve(world, reader, late)


def quiet(world, scope, late):
    reader = reader_of(world, scope, Beginning())
    reader.until_found(world.put("a"))
    return halve(world, reader, late, before=lambda: world.script.advance(120))


def unread(world, scope, late):
    reader = reader_of(world, scope, Now())
    reader.read()
    return halve(world, reader, late)


def first_half_closed(world, scope, late):
    split = active(world, scope, late)
    (first,) = [shard for shard in world.open() if shard != split.half]
    world.script.roll_over(first)
    split.early += world.put_in(world.open()[0], 1) if world.open()[0] != split.half else []
    return split


def no_child_at_first(world, scope, late):
    split = active(world, scope, late)
    world.script.hide(world.open()[0], calls=1)
    return split


def refused(world, scope, late):
    world.habits.child_filter = ChildFilter.REFUSED
    return no_child_at_first(world, scope, late)


def ignored(world, scope, late):
    world.habits.child_filter = ChildFilter.IGNORED
    return no_child_at_first(world, scope, late)


def between_the_halves(world, scope, late):
    """A read starts at `Now` while only one of the two children of a split is listed.

    The changes that were written to the other child before the start must not be delivered.
    """
    old = world.put("a")
    (name,) = world.client().list_physical_partitions(ADDRESS)
    first, second = world.script.split(world.chain())
    old += world.put_in(second, 2)
    world.script.advance(OLD)
    hide(world, second, late)
    reader = world.consumer(Now()) if scope == "collection" else Walker(world, world.client(), {name: Now()})
    reader.read()
    return Split(world, reader, world.put_in(first, EACH), world.put_in(second, EACH), old, second)


def between_the_halves_on_three_pages(world, scope, late):
    world.habits.shards_per_page = 2
    for _ in range(3):
        world.roll_over()
    return between_the_halves(world, scope, late)


ROWS = [
    active, quiet, unread, first_half_closed, no_child_at_first, refused, ignored, between_the_halves,
    between_the_halves_on_three_pages,
]  # fmt: skip


@RESTART
@LATE
@pytest.mark.parametrize("scope", ["collection", "partition"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_nothing_of_the_late_half_is_lost(row, scope, late, restart):
    with World() as world:
        row(world, scope, late).check(late, restart)


@RESTART
@pytest.mark.parametrize("generations", [1, 2])
def test_a_start_between_the_halves_finds_the_second_although_the_first_has_ended(generations, restart):
    """An audit would find the second half too, but only after a minute."""
    with World() as world:
        old = world.put("a")
        first, second = world.script.split(world.chain())
        old += world.put_in(second, 2)
        world.script.advance(OLD)
        hide(world, second, 90)
        for _ in range(generations):
            first = world.script.roll_over(first)
        consumer = world.consumer(Now())
        consumer.read()
        split = Split(world, consumer, world.put_in(first, EACH), world.put_in(second, EACH), old, second)
        began = time.monotonic()
        split.check(90, restart)
        assert time.monotonic() - began < 30
        assert not consumer.notices


@RESTART
@LATE
def test_more_drained_shards_than_the_list_has_pages(late, restart):
    with World(shards=5) as world:
        consumer = world.consumer()
        consumer.until_found(world.put_everywhere())
        halve(world, consumer, late, halve_all=True).check(late, restart)
