"""Tests a feed whose partitions end one by one without children, like a stream that was disabled."""

import attrs
import pytest

from multiclouddb_api import FeedEnded
from multiclouddb_conformance.delegating import WrappedProvider
from multiclouddb_conformance.simulation import SimulationProvider
from multiclouddb_spi import Ended


class SwitchedOff(WrappedProvider):
    """A feed in which each partition ends after its last record."""

    def fetch(self, reader, max_records, max_bytes, wait, deadline):
        batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
        if not len(batch):
            return attrs.evolve(batch, outcome=Ended(FeedEnded("switched off")))
        return batch


@pytest.mark.parametrize("size", [1, 3, 0])
def test_the_feed_ends_with_its_last_partition_and_says_so_once(make_bench, ended, size):
    bench = make_bench(partitions=3)
    bench.connect(provider=SwitchedOff(SimulationProvider(bench.sim)))
    for partition, count in (("p0", 0), ("p1", 2), ("p2", 9)):
        if count:
            bench.fill_partition(partition, count)
    pages, token = [], None
    while not pages or not ended(pages[-1]):
        pages.append(bench.page(token, size) if token else bench.page(size=size))
        token = pages[-1].continuation_token
    assert sum(len(page.events) for page in pages) == 11
    assert [notice for page in pages for notice in page.notices] == [FeedEnded("switched off")]
    assert ended(bench.page(token)) == "switched off"
