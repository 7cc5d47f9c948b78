"""Tests bounded reads up to now. The service sends hardly more rows than are delivered."""

import pytest

from multiclouddb_api import Beginning, ClientConfig
from multiclouddb_spanner.provider import PLUGIN
from multiclouddb_spi import Deadline, FeedSpec

from .test_scripted_attacks import feed
from .test_scripted_edges import bounded

SOON = 60.0
COUNT = 6000


def planned(items):
    """Return the ids of the events in a batch, by partition, and the number of rows that the service has
    sent."""
    provider = PLUGIN.connect(ClientConfig("spanner", {"url": items.scripted.url}), None)
    soon = Deadline.after(SOON)
    try:
        opened = provider.open_feed(FeedSpec(items.address), soon)
        starts = {seed.partition_id: seed.cursor for seed in opened.start(Beginning(), None, soon)}
        items.server.journal.clear()
        heads = opened.heads(starts, None, soon)
        ids = {
            name: bounded(opened, name, starts[name], heads[name].cursor, 1000)
            for name in starts
            if heads[name].records != 0
        }
        asked = items.server.journal.queries()
        return heads, ids, sum(call.rows for call in asked)
    finally:
        provider.close()


@pytest.mark.parametrize("partitions", [1, 4, 16])
def test_a_batch_is_served_little_more_than_it_delivers(partitions):
    with feed(initial_partitions=partitions, mods_per_record=1) as items:
        for first in range(0, COUNT, 100):
            items.put(*((f"k{number}", number) for number in range(first, first + 100)))
            items.server.advance(60)
        _, ids, served = planned(items)
        delivered = sum(map(len, ids.values()))
        assert delivered == len({each for found in ids.values() for each in found}) == COUNT
        assert served <= 1.2 * delivered


def test_without_a_change_every_head_says_so():
    with feed(initial_partitions=4) as items:
        heads, ids, _ = planned(items)
        assert {head.records for head in heads.values()} == {0}
        assert ids == {}


def test_a_change_in_the_partition_asked_last_is_seen():
    for number in range(8):
        with feed(initial_partitions=4) as items:
            items.put((f"k{number}", number))
            heads, ids, _ = planned(items)
            assert None in {head.records for head in heads.values()}
            assert [len(found) for found in ids.values() if found] == [1]
