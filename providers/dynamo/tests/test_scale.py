"""Tests thousands of shards: the calls for a page, the size of a token, and the memory in use."""

import time
import tracemalloc

import orjson
import pytest

from multiclouddb_api import Beginning, MulticloudDbError
from multiclouddb_dynamo import client as client_module
from multiclouddb_spi.continuation.token import decode_token

from .world import ADDRESS, TABLE, WINDOWS, World, seconds

ACTIVE = 300
TRACED = 100
PAGES = 50
SHARD_BYTES = 28 + 9  # shard ids of the service have 37 characters
SEQUENCE_BYTES = 40
OUR_BYTES = 24
LONG = 300


@pytest.fixture(autouse=True)
def no_pace(monkeypatch):
    """Disables pauses, except in tests of the rate."""
    monkeypatch.setattr(client_module, "_DESCRIBES_A_SECOND", 1000)


def json_bytes(token):
    """Return the size of a token's lineage before compression."""
    return len(orjson.dumps(decode_token(token).state))


def until_all(consumer, count):
    """Read pages until the given number of events has arrived."""
    while len(consumer.events) < count:
        consumer.read(seconds(LONG))


@pytest.fixture(scope="module")
def thousand():
    """Provide one world to all tests, because making a world takes long and no test changes it."""
    with World(shards=ACTIVE) as made:
        yield made


class TestActiveShards:
    """Tests a feed with a thousand shards that accept records."""

    def test_a_page_call_is_linear_in_them(self, thousand):
        """A page call needs one listing and, for each shard, one iterator and a few answers."""
        for shard in thousand.open():
            thousand.script.fill(shard, 1)
        thousand.journal.clear()
        consumer = thousand.consumer()
        until_all(consumer, ACTIVE)
        assert thousand.journal.count("GetShardIterator") <= ACTIVE + 10
        assert thousand.journal.count("DescribeStream") == ACTIVE / 100
        assert thousand.journal.count("DescribeTable") <= 3
        assert thousand.journal.most_readers == 1
        assert json_bytes(consumer.token) <= ACTIVE * (SHARD_BYTES + SEQUENCE_BYTES + OUR_BYTES)

        for shard in thousand.open()[:5]:
            thousand.script.fill(shard, 1)
        thousand.journal.clear()
        until_all(consumer, ACTIVE + 5)
        assert thousand.journal.count("GetRecords") <= 4 * ACTIVE + 10
        assert thousand.journal.count("DescribeStream") == 0

    @pytest.mark.soak
    def test_memory_is_bounded(self):
        """The memory in use is bounded. This test reads fewer shards, because tracing memory is slow."""
        with World(shards=TRACED) as world:
            world.consumer().read(seconds(LONG))
            tracemalloc.start()
            try:
                fresh = world.consumer()
                fresh.read(seconds(LONG))
                size, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
        assert size < TRACED * 40_000


@pytest.mark.soak
def test_a_long_history_is_read_parents_first():
    """The history has fifteen hundred shards on fifty pages, and sixty of the shards are open."""
    with World(shards_per_page=1500 // PAGES) as world:
        world.script.grow(TABLE, 1500, 60, records=1)
        world.script.advance(600)
        shards = {shard.shard_id: shard for shard in world.script.shards(TABLE)}
        total = sum(shard.records for shard in shards.values())
        world.journal.clear()
        consumer = world.consumer()
        until_all(consumer, total)
        assert len({event.event_id for event in consumer.events}) == total == len(consumer.events)
        seen = set()
        for event in consumer.events:
            name = event.partition_id.rpartition(":")[2]
            parent = shards[name].parent
            assert parent is None or parent in seen or not shards[parent].records
            seen.add(name)
        # One more listing is needed for the children of the last closed shards, because half of a split may
        # be missing.
        assert world.journal.count("DescribeStream") <= 3 * PAGES


def test_listing_keeps_to_ten_calls_a_second(monkeypatch):
    """If a busy machine delays a call, the call comes close to the next call and is throttled."""
    monkeypatch.setattr(client_module, "_DESCRIBES_A_SECOND", 10)
    for window in WINDOWS:
        monkeypatch.setattr(client_module, "_WINDOW_SECONDS", window)
        with World(enforce_limits=True) as world:
            world.script.grow(TABLE, 2500, 5)
            begin = time.monotonic()
            world.client().list_physical_partitions(ADDRESS)
            assert time.monotonic() - begin < 20
            found = world.journal.count("DescribeStream"), world.journal.violations
            if found == (25, []):
                break
    assert found == (25, [])
    assert world.journal.most_describes <= 10


def test_a_call_that_is_too_short_for_the_listing_says_so(monkeypatch):
    monkeypatch.setattr(client_module, "_DESCRIBES_A_SECOND", 10)
    with World() as world:
        world.script.grow(TABLE, 2500, 5)
        with pytest.raises(MulticloudDbError) as caught:
            world.consumer(Beginning()).read(seconds(1))
        assert caught.value.retryable
        assert "timeout_seconds" in str(caught.value)
