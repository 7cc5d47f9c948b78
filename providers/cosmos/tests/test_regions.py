"""Tests accounts with several regions.

If an account has per-partition failover, azure-cosmos sends reads in other threads. If it has several write
regions, a change can get its LSN up to a minute after its time.
"""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest

from multiclouddb_api import Beginning, ChangeFeedRequest, Now, Snapshot, connect
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_cosmos import client as client_room
from multiclouddb_cosmos.config import CosmosConfig
from multiclouddb_cosmos.transport import SameThread
from multiclouddb_cosmos_emulator.message import Reply

from .test_reports import LATEST, everything, ids
from .world import ADDRESS, DATABASE, NAME, soon

pytestmark = pytest.mark.usefixtures("hasty")
LATE = b'{"_rid":"","Documents":[{"id":"c","pk":"c","_lsn":1,"_lsn":2,"_lsn":3,"_lsn":4,"_lsn":5}]}'


@pytest.fixture
def account(monkeypatch):
    """Return a function that changes what the account says of itself from now on."""
    reply, change = Reply.of, [lambda body: None]

    def of(body, *args, **kwargs):
        if isinstance(body, dict) and "userConsistencyPolicy" in body:
            change[0](body)
        return reply(body, *args, **kwargs)

    def says(changed):
        change[0] = changed

    monkeypatch.setattr(Reply, "of", staticmethod(of))
    return says


def second(body, name):
    """Add a second region to one of the account's lists of regions."""
    url = body[name][0]["databaseAccountEndpoint"].replace("127.0.0.1", "localhost")
    body[name] = [*body[name], {"name": "Second", "databaseAccountEndpoint": url}]


def several(body):
    body["enableMultipleWriteLocations"] = True
    second(body, "writableLocations")


@pytest.fixture(params=["one region", "two regions"])
def failing_over(request, account, world, monkeypatch):
    """Provide a world whose account has per-partition failover."""

    def says(body):
        body["enablePerPartitionFailoverBehavior"] = True
        if request.param == "two regions":
            second(body, "readableLocations")

    account(says)
    monkeypatch.setattr(CosmosConfig, "is_local", property(lambda self: False))
    return world


class TestFailover:
    @pytest.mark.parametrize("apart", [False, True], ids=["our executor", "another thread"])
    def test_every_change_comes(self, failing_over, monkeypatch, apart):
        if apart:  # simulates a version of azure-cosmos that does not accept an executor
            pool = ThreadPoolExecutor(2)
            monkeypatch.setattr(SameThread, "submit", lambda self, fn, /, *a, **k: pool.submit(fn, *a, **k))
        consumer = failing_over.consumer()
        written = failing_over.fill(5)
        consumer.until_idle()
        assert sorted(consumer.markers) == written

    def test_every_item_of_a_backfill_comes(self, failing_over):
        written = failing_over.fill(5)
        consumer = failing_over.consumer(Beginning(), provider_options=CosmosOptions(backfill=True))
        assert sorted(consumer.until_idle()) == written


class TestWriteRegions:
    """A change of another write region gets its LSN fifty seconds after its time."""

    def late(self, world):
        """Write a change fifty seconds late."""
        marker = world.fill(1)
        with world.server._lock:
            world.server._container(DATABASE, NAME).partitions[0].changes[-1].seconds -= 50
        return marker

    @pytest.mark.parametrize("start", [None, Snapshot()], ids=["now", "snapshot"])
    @pytest.mark.parametrize("known", [0, 3])
    def test_no_later_change_is_older_than_what_was_read(self, make_world, account, start, known):
        account(several)
        world = make_world(1)
        world.fill(known)
        consumer = world.consumer(start)
        world.fill(known)
        consumer.until_idle()
        told = consumer.pages[-1].diagnostics
        late = self.late(world)
        assert consumer.until_idle() == late
        for moment in (told.read_until, told.watermark):
            assert moment is None or moment <= consumer.events[-1].timestamp
        assert told.read_until > consumer.events[-1].timestamp - timedelta(minutes=2)

    def test_an_account_that_gets_a_second_one_is_asked_again(self, make_world, account, monkeypatch):
        monkeypatch.setattr("multiclouddb_cosmos.source._RENEW_SECONDS", 0.0)
        _, feed = make_world(1).feed()
        assert feed.visible_after() == 10
        account(several)
        feed.clock(soon())
        assert feed.visible_after() == 70
        account(lambda body: None)  # changes of the other region may still be on their way
        feed.clock(soon())
        assert feed.visible_after() == 70

    def test_an_expired_position_skips_no_change_that_is_wanted(self, make_world, account):
        account(several)
        world = make_world(1)
        _, feed = world.feed()
        (seed,) = feed.start(Now(), None, soon())
        world.server.advance(3600)
        since = world.server.clock.now()
        world.server.advance(30)
        written = world.fill(2)
        world.server.advance(10)
        written += self.late(world)  # its time is before `since`, and its place between the wanted changes
        written += world.fill(2)
        asked = {seed.partition_id: seed.cursor}
        (part,) = feed.survey(asked, soon(), expired=set(asked), since=since).present
        batch = feed.open(part.partition_id, part.oldest).fetch(100, 1 << 20, 0.0, soon())
        assert [event.new_item_state["n"] for event in batch.events(0, len(batch))] == written


@pytest.mark.parametrize("version", [1, 2])
def test_the_circuit_breaker_of_partitions_changes_nothing(
    make_world, put_text, account, monkeypatch, version
):
    """azure-cosmos, AZURE_COSMOS_ENABLE_CIRCUIT_BREAKER: it then computes the place of each key itself."""
    monkeypatch.setenv("AZURE_COSMOS_ENABLE_CIRCUIT_BREAKER", "True")
    monkeypatch.setattr(CosmosConfig, "is_local", property(lambda self: False))

    def says(body):
        several(body)
        second(body, "readableLocations")

    account(says)
    world = make_world(2, version=version)
    values = ["null", '""', "0", "-5", "5000000000", "true", '"x"', "{}"]
    for number, value in enumerate(values):
        for suffix in ("", "#"):
            put_text(world, f'{{"id": "i{number}{suffix}", "pk": {value}}}')
    keys = [event.key for event in everything(world)]
    assert len(keys) == 2 * len(values)
    rows = world.client().lookup(ADDRESS, keys, provider_options=LATEST)
    assert {asked: row.key for asked, row in rows.items()} == {key: key for key in keys}


def test_of_several_answers_to_one_page_the_one_that_was_taken_is_read(lone, monkeypatch):
    """The availability strategy of azure-cosmos sends a request to a second region if the first is slow."""
    lone.put("a", "b", _lsn=7)
    made = client_room.end_if_throttled

    def hedging(deadline, seen=None):
        hook = made(deadline, seen)

        def call(response):
            hook(response)
            late = SimpleNamespace(status_code=200, headers={"etag": '"99"'}, body=lambda: LATE)
            if response.http_request.url.endswith("/docs/"):
                hook(SimpleNamespace(http_request=response.http_request, http_response=late))

        return call

    monkeypatch.setattr(client_room, "end_if_throttled", hedging)
    with connect(lone.config(), native_client=lone.native) as client:
        request = ChangeFeedRequest(ADDRESS, Beginning(), provider_options=LATEST)
        events = list(client.iterate_changes(request, until_idle=True))
    assert ids(events) == ["a", "b"]
    assert {event.new_item_state["_lsn"] for event in events} == {7}
