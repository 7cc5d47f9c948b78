"""Tests that no event is lost, wherever a consumer is killed and whatever happens to the stream."""

from contextlib import contextmanager

import pytest

from multiclouddb_api import Beginning, ChangeFeedRequest, Now, connect
from multiclouddb_conformance.loss import (
    Act,
    Author,
    LossOracle,
    Read,
    ReadUntilIdle,
    iterator_consumer,
    page_consumer,
    public_lineage,
)
from multiclouddb_dynamo_emulator import Order

from .world import ADDRESS, TABLE, World

HOUR = 3600
KEYS = 12


pytestmark = pytest.mark.usefixtures("hasty", "no_pace")


class Living(World):
    """A world that a script changes. The world keeps a record of every shard that ever existed."""

    address = ADDRESS

    def __init__(self):
        super().__init__(shards=2)
        self.parents = {}
        self.note()

    def note(self):
        self.parents |= {shard.shard_id: above(shard.parent) for shard in self.script.shards(TABLE)}

    def write(self, writes):
        write(self.server.client(), TABLE, writes)

    def split(self):
        self.script.split(self.open()[0])
        self.note()

    def roll_over(self):
        super().roll_over()
        self.note()

    def pass_hours(self, hours):
        self.script.advance(hours * HOUR)

    def consumer_client(self):
        return connect(self.config())

    def lineage(self):
        with self.consumer_client() as client:
            return public_lineage(client, ADDRESS, self.parents)


def write(client, table, writes):
    for key, document in writes:
        if document is None:
            client.delete_item(TableName=table, Key={"id": {"S": key}})
        else:
            client.put_item(TableName=table, Item={"id": {"S": key}, "n": {"N": str(document["n"])}})


def above(parent):
    return () if parent is None else (parent,)


def habit(**values):
    """Change the server's settings for all later calls."""

    def change(world):
        for name, value in values.items():
            setattr(world.habits, name, value)

    return Act(f"habits {values}", change)


def cut_answers(world):
    world.troubles.drop("GetRecords", 2, mid_body=True, with_records=True)


def empty_pages(world):
    world.troubles.empty_pages(6)


ROLL_OVER = Act("roll over", lambda world: world.roll_over())
SPLIT = Act("split", lambda world: world.split())


def day_passes():
    """Simulate the passing of a day: shards roll over every four hours, and old records are trimmed."""
    hours = Act("four hours pass", lambda world: world.pass_hours(4), forgets=True)
    return [ROLL_OVER, hours, ReadUntilIdle()] * 7


def scripted_life():
    """Return a random script that uses everything that the scripted server can do."""
    write = Author(keys=KEYS).write
    return [
        # If the iterator of `Now` has expired, the events of the last two minutes may be repeated.
        write(4), Act("minutes pass", lambda world: world.script.advance(300)), Read(1),
        ROLL_OVER, write(3), Read(1), write(2),
        # Children may be listed late, or before their parents.
        habit(late_children=2, order=Order.CHILDREN_FIRST), SPLIT, write(5), Read(2), write(1),
        Act("iterators expire", lambda world: world.script.expire_iterators()), write(2), Read(1),
        # Open shards may have empty pages, answers may be truncated, and the end of a shard may have its own
        # page.
        Act("empty pages", empty_pages), write(3), Read(2),
        Act("no more empty pages", lambda world: world.troubles.end()),
        Act("cut answers", cut_answers),
        write(4), Read(1), habit(separate_end=True, null_iterator=True), ROLL_OVER, ROLL_OVER, write(3),
        Read(1),
        # Between two reads, three generations of shards are made. The listings have small pages.
        habit(late_children=0, shards_per_page=2, order=Order.SHUFFLED), SPLIT, write(4), ROLL_OVER, write(4),
        SPLIT, write(4), ReadUntilIdle(),
        *day_passes(), write(3), Read(1), ROLL_OVER, habit(separate_end=False), write(3), SPLIT, write(2),
    ]  # fmt: skip


@contextmanager
def scripted_world():
    with Living() as world:
        yield world
        world.troubles.end()


def assert_kept(report):
    """Check that nothing is lost and no promise is broken.

    Idle pages are not checked, because the script makes the service send wrong answers.
    """
    report.assert_nothing_lost()
    for run in report.runs:
        assert not [text for text in run.broken_promises() if not text.startswith("hasty")], str(report)


def oracle_of(world, living, life, start, consumer, size):
    return LossOracle(
        world=world,
        client=living.consumer_client,
        request=lambda world: ChangeFeedRequest(world.address, start, max_page_size=size),
        life=life,
        consumer=consumer,
        lineage=living.lineage,
    )


@pytest.mark.parametrize(
    ("start", "consumer", "size"),
    [
        pytest.param(Beginning(), page_consumer, 0, marks=pytest.mark.soak),
        pytest.param(Beginning(), iterator_consumer(), 3, marks=pytest.mark.soak),
        pytest.param(Now(), page_consumer, 1, marks=pytest.mark.soak),
        (Now(), iterator_consumer(), 0),
    ],
    ids=["pages", "iterator", "single events from now", "iterator from now"],
)
def test_a_consumer_that_is_killed_loses_nothing(start, consumer, size):
    report = oracle_of(scripted_world, Living, scripted_life(), start, consumer, size).run(max_kills=1)
    assert_kept(report)
    assert report.kills > 3
