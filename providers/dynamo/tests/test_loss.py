"""Tests that no event is lost, wherever a consumer is killed and whatever happens to the stream."""

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

from .world import ADDRESS, HOUR, TABLE, World

pytestmark = pytest.mark.usefixtures("hasty", "no_pace")


class Living(World):
    """A world that a script changes. The world keeps a record of every shard that ever existed."""

    address = ADDRESS

    def __init__(self):
        super().__init__(shards=2)
        self.parents = {}
        self.note()

    def __exit__(self, *raised):
        self.troubles.end()
        super().__exit__(*raised)

    def note(self):
        for shard in self.script.shards(TABLE):
            self.parents[shard.shard_id] = () if shard.parent is None else (shard.parent,)

    def write(self, writes):
        client = self.server.client()
        for key, document in writes:
            if document is None:
                client.delete_item(TableName=TABLE, Key={"id": {"S": key}})
            else:
                client.put_item(TableName=TABLE, Item={"id": {"S": key}, "n": {"N": str(document["n"])}})

    def split(self):
        self.script.split(self.open()[0])
        self.note()

    def roll_over(self):
        super().roll_over()
        self.note()

    def consumer_client(self):
        return connect(self.config())

    def lineage(self):
        with self.consumer_client() as client:
            return public_lineage(client, ADDRESS, self.parents)


def act(name, do, **settings):
    def run(world):
        do(world)

    return Act(name, run, **settings)


def habit(**values):
    """Change the server's settings for all later calls."""
    return act(f"habits {values}", lambda world: [setattr(world.habits, *each) for each in values.items()])


def scripted_life():
    """Return a random script that uses everything that the scripted server can do."""
    write = Author(keys=12).write
    roll_over = act("roll over", lambda world: world.roll_over())
    split = act("split", lambda world: world.split())
    # Shards roll over every four hours, and old records are trimmed.
    hours = act("four hours pass", lambda world: world.script.advance(4 * HOUR), forgets=True)
    cut = act(
        "cut answers", lambda world: world.troubles.drop("GetRecords", 2, mid_body=True, with_records=True)
    )
    return [
        # If the iterator of `Now` has expired, the events of the last two minutes may be repeated.
        write(4), act("minutes pass", lambda world: world.script.advance(300)), Read(1),
        roll_over, write(3), Read(1), write(2),
        # Children may be listed late, or before their parents.
        habit(late_children=2, order=Order.CHILDREN_FIRST), split, write(5), Read(2), write(1),
        act("iterators expire", lambda world: world.script.expire_iterators()), write(2), Read(1),
        # Open shards may have empty pages, answers may be truncated, and the end of a shard may have its own
        # page.
        act("empty pages", lambda world: world.troubles.empty_pages(6)), write(3), Read(2),
        act("no more empty pages", lambda world: world.troubles.end()), cut,
        write(4), Read(1), habit(separate_end=True, null_iterator=True), roll_over, roll_over, write(3),
        Read(1),
        # Between two reads, three generations of shards are made. The listings have small pages.
        habit(late_children=0, shards_per_page=2, order=Order.SHUFFLED), split, write(4), roll_over, write(4),
        split, write(4), ReadUntilIdle(),
        *[roll_over, hours, ReadUntilIdle()] * 7,
        write(3), Read(1), roll_over, habit(separate_end=False), write(3), split, write(2),
    ]  # fmt: skip


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
    """Idle pages are not checked, because the script makes the service send wrong answers."""
    report = LossOracle(
        world=Living,
        client=Living.consumer_client,
        request=lambda world: ChangeFeedRequest(world.address, start, max_page_size=size),
        life=scripted_life(),
        consumer=consumer,
        lineage=Living.lineage,
    ).run(max_kills=1)
    report.assert_nothing_lost()
    for run in report.runs:
        assert not [text for text in run.broken_promises() if not text.startswith("hasty")], str(report)
    assert report.kills > 3
