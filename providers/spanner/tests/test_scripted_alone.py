"""Tests reads of one partition, and partitions of an earlier change stream."""

import pytest

from multiclouddb_api import (
    Beginning,
    ClientConfig,
    ErrorCategory,
    MulticloudDbError,
    Now,
    PhysicalPartition,
)
from multiclouddb_spanner.provider import PLUGIN
from multiclouddb_spi import Deadline, FeedSpec, ProviderFault

from .test_scripted_attacks import feed, in_order, once

TOLD = pytest.mark.parametrize("told", [True, False], ids=["told", "searched"])


def fill(items, part):
    """Write one of three equal parts of the changes: one change for each of ten keys."""
    for number in range(part * 10, part * 10 + 10):
        items.put((f"k{number % 10}", number))


class TestAlone:
    @TOLD
    def test_a_partition_that_began_after_the_start_is_read_from_its_beginning(self, told):
        with feed(initial_partitions=1, names_lifetime=told) as items:
            fill(items, 0)
            children = items.server.split(items.open_partitions()[0])
            fill(items, 1)
            names = items.client.list_physical_partitions(items.address)
            assert all(any(child in name for name in names) for child in children)
            events = []
            for name in names:
                events += items.drain(Beginning(), scope=PhysicalPartition(name))
            once(events, 10)
            in_order(events)

    def test_a_partition_of_an_earlier_stream_is_refused(self):
        with feed(initial_partitions=1) as items:
            (name,) = items.client.list_physical_partitions(items.address)
            items.server.split(items.open_partitions()[0])
            other = name[:-4] + "AAAA"
            with pytest.raises(MulticloudDbError) as caught:
                items.page(Beginning(), scope=PhysicalPartition(other))
            assert caught.value.category == ErrorCategory.INVALID_REQUEST
            assert "does not belong" in str(caught.value)


def test_a_stored_position_in_a_partition_of_another_stream_is_told():
    """The stream was recreated, but its oldest time does not show this."""
    with feed(initial_partitions=1) as items:
        provider = PLUGIN.connect(ClientConfig("spanner", {"url": items.scripted.url}), None)
        try:
            soon = Deadline.after(20)
            opened = provider.open_feed(FeedSpec(items.address), soon)
            (seed,) = opened.start(Now(), None, soon)
            with pytest.raises(ProviderFault, match="does not belong to change stream 'items_stream'"):
                opened.open("another", seed.cursor).fetch(10, 1 << 20, 0.0, soon)
        finally:
            provider.close()
