"""Tests how many times the service sends each delivered record if answers are larger than requested."""

import pytest

from multiclouddb_api import Beginning, ChangeFeedRequest, FromContinuationToken, connect

from .world import ADDRESS, TABLE, World

RECORDS = 150
# One sixteenth of the real sizes, which are a megabyte for pages and 64 megabytes for the buffer.
SCALE = 16


@pytest.mark.parametrize("size", [100, 1000])
@pytest.mark.parametrize("shards", [16, pytest.param(64, marks=pytest.mark.soak)])
def test_each_record_is_sent_about_once(shards, size):
    with World(shards=shards, page_bytes=2**20 // SCALE) as world:
        for shard in world.script.open_shards(TABLE):
            world.script.fill(shard, RECORDS, 1000)
        config = world.config(max_buffered_bytes=2**26 // SCALE)
        place, delivered = Beginning(), 0
        with connect(config) as client:
            while delivered < shards * RECORDS:
                page = client.read_changes(ChangeFeedRequest(ADDRESS, place, max_page_size=size))
                place = FromContinuationToken(page.continuation_token)
                delivered += len(page.events)
        sent = sum(call.records for call in world.journal.calls("GetRecords"))
        assert delivered == shards * RECORDS
        assert sent <= 1.2 * delivered
        assert world.journal.count("GetShardIterator") == shards
