"""Tests hundreds of shards: the calls for a page, the size of a token, and what the service sends."""

import time

import orjson
import pytest

from multiclouddb_api import Beginning, ErrorCategory
from multiclouddb_conformance.refusals import refused
from multiclouddb_dynamo import client as client_module
from multiclouddb_spi.continuation.token import decode_token

from .world import ADDRESS, TABLE, WINDOWS, World, seconds

ACTIVE = 300
PAGES = 50
SHARD_BYTES = 28 + 9  # shard ids of the service have 37 characters
SEQUENCE_BYTES = 40
OUR_BYTES = 24
LONG = seconds(300)
# One sixteenth of the real sizes, which are a megabyte for pages and 64 megabytes for the buffer.
SCALE = 16


def until_all(consumer, count):
    """Read pages until the given number of events has arrived."""
    while len(consumer.events) < count:
        consumer.read(LONG)


@pytest.mark.usefixtures("no_pace")
def test_a_page_call_is_linear_in_active_shards():
    """A page call needs one listing and, for each shard, one iterator and a few answers."""
    with World(shards=ACTIVE) as world:
        for shard in world.open():
            world.script.fill(shard, 1)
        world.journal.clear()
        consumer = world.consumer()
        until_all(consumer, ACTIVE)
        assert world.journal.count("GetShardIterator") <= ACTIVE + 10
        assert world.journal.count("DescribeStream") == ACTIVE / 100
        assert world.journal.count("DescribeTable") <= 3
        assert world.journal.most_readers == 1
        nbytes = len(orjson.dumps(decode_token(consumer.token).state))
        assert nbytes <= ACTIVE * (SHARD_BYTES + SEQUENCE_BYTES + OUR_BYTES)

        for shard in world.open()[:5]:
            world.script.fill(shard, 1)
        world.journal.clear()
        until_all(consumer, ACTIVE + 5)
        assert world.journal.count("GetRecords") <= 4 * ACTIVE + 10
        assert world.journal.count("DescribeStream") == 0


@pytest.mark.soak
@pytest.mark.usefixtures("no_pace")
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


def test_listing_keeps_to_ten_calls_a_second_and_says_so(monkeypatch):
    """If a busy machine delays a call, the call comes close to the next call and is throttled."""
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
    with World() as world:
        world.script.grow(TABLE, 2500, 5)
        with refused(ErrorCategory.THROTTLED, "timeout_seconds") as caught:
            world.consumer(Beginning()).read(seconds(1))
        assert caught.value.retryable


@pytest.mark.parametrize(
    ("shards", "size"),
    [(16, 100), (16, 1000), *(pytest.param(64, n, marks=pytest.mark.soak) for n in (100, 1000))],
)
def test_each_record_is_sent_about_once(shards, size):
    records = 150
    with World(shards=shards, page_bytes=2**20 // SCALE) as world:
        for shard in world.open():
            world.script.fill(shard, records, 1000)
        consumer = world.consumer(client=world.client(max_buffered_bytes=2**26 // SCALE), max_page_size=size)
        while len(consumer.events) < shards * records:
            consumer.read()
        sent = sum(call.records for call in world.journal.calls("GetRecords"))
        assert len(consumer.events) == shards * records
        assert sent <= 1.2 * shards * records
        assert world.journal.count("GetShardIterator") == shards
