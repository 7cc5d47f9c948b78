"""Tests pages that are only a part of what the service has to search, and starts whose answers are late."""

from datetime import UTC, datetime
from functools import partial

import attrs
import pytest

from multiclouddb_api import Beginning, LogicalPartition, MulticloudDbKey, Now, Snapshot
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_cosmos.client import Calls
from multiclouddb_cosmos_emulator import documents
from multiclouddb_cosmos_emulator.feed import read_feed
from multiclouddb_spi import Reached
from testing.consumer import markers

from .world import soon

pytestmark = pytest.mark.usefixtures("hasty")

MINE = LogicalPartition(MulticloudDbKey({"pk": "mine"}))
BACKFILL = CosmosOptions(backfill=True)
LAG = 10  # a replica may lag so many seconds behind


@pytest.fixture
def searching(monkeypatch):
    """Make the service search only one transaction for each request.

    If the transaction contains nothing that was asked for, the answer has no items, but a later position.
    """

    def searched(container, request):
        partition = request.partition
        later = None if request.after is None else next(partition.after(request.after), None)
        return read_feed(container, request if later is None else attrs.evolve(request, newest=later.lsn))

    monkeypatch.setattr(documents, "read_feed", searched)


@pytest.mark.usefixtures("searching")
class TestPartialPages:
    """An answer without items says that nothing is left only if the position has not moved."""

    def test_a_page_is_not_idle_and_a_scan_does_not_end_while_the_position_moves(self, world):
        consumer = world.consumer(scope=MINE)
        others, mine = world.fill(30), world.put("mine")
        assert consumer.until_idle() == mine
        assert world.consumer(Beginning(), scope=MINE, provider_options=BACKFILL).until_idle() == mine
        whole = world.consumer(Beginning(), provider_options=BACKFILL)
        assert sorted(whole.until_idle()) == others + mine

    @pytest.mark.parametrize("start", [Beginning(), Now()])
    def test_latest_versions_are_read_to_their_end(self, world, start):
        consumer = world.consumer(start, scope=MINE, provider_options=CosmosOptions(mode="latest"))
        consumer.read()
        world.fill(30)
        written = world.put("mine")
        assert consumer.until_idle() == written

    def test_a_bounded_read_of_a_split_range_goes_on_behind_any_page(self, make_world):
        """A part of the range may be searched further than another one has delivered."""
        world = make_world(1, key=["/tenant", "/user"])
        place = partial(world.server.effective_key, kind="MultiHash")
        middle = place("t", "7")
        users = [f"u{number}" for number in range(100) if place("t", f"u{number}") < middle][:20]
        behind = next(f"v{number}" for number in range(100) if place(f"v{number}", "u") > middle)
        _, feed = world.feed(scope=LogicalPartition(MulticloudDbKey({"tenant": "t"})))
        (seed,) = feed.start(Now(), None, soon())
        name, cursor, found = seed.partition_id, seed.cursor, []
        for number, user in enumerate(users):
            world.container.upsert_item({"id": "x", "tenant": "t", "user": user, "n": number})
            if number % 5 == 0:
                world.container.upsert_item({"id": "x", "tenant": behind, "user": "u", "n": 0})
        bound = feed.heads({name: cursor}, None, soon())[name].cursor
        world.split("0", boundary=middle)
        reader = feed.open(name, cursor, bound)
        for _ in range(300):
            batch = reader.fetch(100, 1 << 20, 0.0, soon())
            found += markers(batch.events(0, len(batch)))
            if isinstance(batch.outcome, Reached):
                break
            if batch.end != cursor:
                cursor, reader = batch.end, feed.open(name, batch.end, bound)
        assert found == list(range(len(users)))


def test_an_item_that_is_changed_during_a_scan_is_no_row(make_world):
    world = make_world(1)
    world.put("a", "b", "c")
    consumer = world.consumer(Snapshot(), max_page_size=1)
    consumer.read()
    changed = world.put("a")
    consumer.until_idle()
    assert markers(event for event in consumer.events if event.backfilled) == [2, 3]
    assert markers(event for event in consumer.events if not event.backfilled) == changed


class TestLateAnswers:
    """The answer to a start may arrive long after the service has sent it."""

    @pytest.fixture
    def moments(self, monkeypatch):
        """Provide the times of the service's clock: each read takes a minute."""
        times = [1_700_000_000]
        read = Calls.read

        def late(self, *arguments):
            answer = read(self, *arguments)
            times.append(times[-1] + 60)
            return answer

        monkeypatch.setattr(Calls, "now", lambda self: datetime.fromtimestamp(times[-1], UTC))
        monkeypatch.setattr(Calls, "read", late)
        return times

    def test_no_later_change_is_older_than_a_start(self, make_world, moments):
        _, feed = make_world(1).feed()
        (seed,) = feed.start(Now(), None, soon())
        assert len(moments) == 2
        assert feed.describe(seed.cursor).time == datetime.fromtimestamp(moments[0] - LAG, UTC)

    def test_no_later_change_is_older_than_a_scan(self, make_world, moments):
        _, feed = make_world(1).feed()
        assert feed.snapshot(None, soon()).scan.moment == datetime.fromtimestamp(moments[0] - LAG, UTC)


class TestPaths:
    """The name of a property in the path of a partition key can be quoted, and then contain a slash."""

    def test_a_name_with_a_slash(self, make_world):
        world = make_world(2, key='/"a/b"')
        consumer = world.consumer(scope=LogicalPartition(MulticloudDbKey({"a/b": "v"})))
        world.container.upsert_item({"id": "x", "a/b": "v", "n": 1})
        world.container.delete_item("x", "v")
        consumer.until_idle()
        assert [event.key for event in consumer.events] == [MulticloudDbKey({"a/b": "v", "id": "x"}, 1)] * 2
