"""Tests a split of which one child is listed late. This child is still read, whatever was known before."""

import time

import pytest

from multiclouddb_api import Beginning, Now
from multiclouddb_dynamo_emulator import ChildFilter

from .world import World

EACH = 10
OLD = 600  # in seconds; longer than the period of which `Now` may repeat events
# The late half is listed after one call, or after so many seconds; the same process or another one reads it.
ALL = [(late, restart) for late in (None, 0.3, 5, 90) for restart in (False, True)]
FEW = (None, True), (90, False)
LATE = pytest.mark.parametrize(
    ("late", "restart"),
    [each if each in FEW else pytest.param(*each, marks=pytest.mark.soak) for each in ALL],
)


pytestmark = pytest.mark.usefixtures("hasty_readers")


def check(world, consumer, early, hidden, old, late, restart):
    """Read what is listed first, then what a later listing adds; nothing is lost or delivered twice."""
    consumer.until_found(early)
    if restart:
        consumer.restart()
    world.script.advance(late or 0)
    consumer.until_found(hidden)
    assert sorted(consumer.markers) == sorted(set(consumer.markers))
    assert not set(consumer.markers) & set(old)


def hide(world, shard, late):
    world.script.hide(shard, calls=0 if late else 1, seconds=late or 0.0)


def halve(world, late):
    """Split every shard, and list the second half of each late; return what each half contains."""
    pairs = [world.script.split(shard) for shard in world.open()]
    for _, second in pairs:
        hide(world, second, late)
    early = [mark for first, _ in pairs for mark in world.put_in(first, EACH)]
    return pairs[0], early, [mark for _, second in pairs for mark in world.put_in(second, EACH)]


def begun(world, start=None):
    consumer = world.consumer(start or Beginning())
    consumer.until_found(world.put_everywhere())
    return consumer


def active(world, late):
    consumer = begun(world)
    _, early, hidden = halve(world, late)
    return consumer, early, hidden, []


def quiet(world, late):
    consumer = begun(world)
    world.script.advance(120)
    _, early, hidden = halve(world, late)
    return consumer, early, hidden, []


def unread(world, late):
    consumer = world.consumer(Now())
    consumer.read()
    _, early, hidden = halve(world, late)
    return consumer, early, hidden, []


def first_half_closed(world, late):
    consumer = begun(world)
    (first, second), early, hidden = halve(world, late)
    world.script.roll_over(first)
    (child,) = (shard for shard in world.open() if shard != second)
    return consumer, early + world.put_in(child), hidden, []


def no_child_at_first(world, late):
    consumer = begun(world)
    (first, _), early, hidden = halve(world, late)
    world.script.hide(first, calls=1)
    return consumer, early, hidden, []


def refused(world, late):
    world.habits.child_filter = ChildFilter.REFUSED
    return no_child_at_first(world, late)


def ignored(world, late):
    world.habits.child_filter = ChildFilter.IGNORED
    return no_child_at_first(world, late)


def between_the_halves(world, late):
    """A read starts at `Now` while only one half is listed; what was in the other before does not come."""
    old = world.put("a")
    first, second = world.script.split(world.chain())
    old += world.put_in(second, 2)
    world.script.advance(OLD)
    hide(world, second, late)
    consumer = world.consumer(Now())
    consumer.read()
    return consumer, world.put_in(first, EACH), world.put_in(second, EACH), old


def between_the_halves_on_three_pages(world, late):
    world.habits.shards_per_page = 2
    for _ in range(3):
        world.roll_over()
    return between_the_halves(world, late)


ROWS = [
    active, quiet, unread, first_half_closed, no_child_at_first, refused, ignored, between_the_halves,
    between_the_halves_on_three_pages,
]  # fmt: skip


@LATE
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_nothing_of_the_late_half_is_lost(row, late, restart):
    with World() as world:
        check(world, *row(world, late), late, restart)


@pytest.mark.parametrize(("generations", "restart"), [(1, True), (2, False)])
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
        began = time.monotonic()
        check(world, consumer, world.put_in(first, EACH), world.put_in(second, EACH), old, 90, restart)
        assert time.monotonic() - began < 30
        assert not consumer.notices


@LATE
def test_more_drained_shards_than_the_list_has_pages(late, restart):
    with World(shards=5) as world:
        consumer, *marks = active(world, late)
        check(world, consumer, *marks, late, restart)
