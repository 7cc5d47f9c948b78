"""Tests that an audit finds the partitions that a start has omitted, including those that have since
ended."""

import attrs
import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    OperationOptions,
    PartitionFoundLate,
    PhysicalPartition,
)
from multiclouddb_conformance.faults import FaultyPlugin, LeavesOut
from multiclouddb_conformance.open_client import open_client
from multiclouddb_spanner.partitions import oldest_left
from multiclouddb_spanner.position import Place, cursor_of
from multiclouddb_spanner.provider import PLUGIN
from multiclouddb_spi import Deadline, FeedSpec, ProviderFault, Seed

from .fake import ORIGIN
from .test_scripted_attacks import feed, in_order, numbers, once

COUNT = 30
TOLD = pytest.mark.parametrize("told", [True, False], ids=["told", "searched"])


def left_out(items):
    """Return the token of a start that misses the last partition."""
    config = ClientConfig("spanner", {"url": items.scripted.url})
    with open_client(FaultyPlugin(PLUGIN, LeavesOut()), config) as client:
        return items.page(Now(), client=client).continuation_token


def audited(items, token, count=COUNT):
    """Read all changes, with an audit at each page. Return the events, and the notices about
    partitions that were found late."""
    config = attrs.evolve(ClientConfig("spanner", {"url": items.scripted.url}), coverage_audit_seconds=0)
    events, late = [], []
    with open_client(PLUGIN, config) as client:
        for _ in range(100):
            request = ChangeFeedRequest(items.address, FromContinuationToken(token))
            page = client.read_changes(request, OperationOptions(20))
            events += page.events
            late += [notice for notice in page.notices if isinstance(notice, PartitionFoundLate)]
            token = page.continuation_token
            if len(events) >= count and page.idle:
                break
    return events, late


def fill(items, part):
    """Write one of three equal parts of the changes: one change for each of ten keys."""
    for number in range(part * 10, part * 10 + 10):
        items.put((f"k{number % 10}", number))


class TestAudit:
    @TOLD
    @pytest.mark.parametrize("shape", ["open", "split", "split again", "merged"])
    def test_what_a_start_left_out_is_read_late_and_whole(self, shape, told):
        with feed(initial_partitions=3, names_lifetime=told, names_horizon=told) as items:
            token = left_out(items)
            missed = items.open_partitions()[-1]
            fill(items, 0)
            if shape != "open":
                first, second = items.server.split(missed)
            fill(items, 1)
            if shape == "split again":
                items.server.split(first)
            if shape == "merged":
                items.server.merge(first, second)
            fill(items, 2)
            events, late = audited(items, token)
            once(events, COUNT)
            assert late

    @TOLD
    @pytest.mark.parametrize("shape", ["split", "split again", "merged"])
    def test_what_was_missed_is_found_through_its_ancestors(self, shape, told):
        """The partition that was missed has ended before the audit, so only its descendants are listed."""
        with feed(initial_partitions=3, names_lifetime=told, names_horizon=told) as items:
            items.server.advance(3600)  # changes that were written before the start are not needed
            fill(items, 5)
            token = left_out(items)
            missed = items.open_partitions()[-1]
            fill(items, 0)
            first, second = items.server.split(missed)
            fill(items, 1)
            if shape == "split again":
                items.server.split(first)
            if shape == "merged":
                items.server.merge(first, second)
            fill(items, 2)
            early, late = [], []
            for _ in range(50):
                page = items.page(token)
                early += page.events
                token = page.continuation_token
                if page.idle:
                    break
            assert len(early) < COUNT
            events, late = audited(items, token, COUNT - len(early))
            once([*early, *events], COUNT)
            assert sorted(numbers([*early, *events])) == list(range(COUNT))
            assert late


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


class FakeSource:
    """A source of partitions with given lifetimes. The oldest readable time is ORIGIN."""

    def __init__(self, **lives):
        self.lives = lives

    def oldest(self, now, deadline, scope):
        return ORIGIN, [name for name, (begin, end) in self.lives.items() if begin <= ORIGIN < end]

    def interval(self, name, now, deadline, scope):
        return self.lives.get(name)


class Searched(list):
    """Partitions; counts how often the list is searched for a partition."""

    searches = 0

    def __contains__(self, name):
        self.searches += 1
        return super().__contains__(name)


class TestOldest:
    def test_the_list_of_living_partitions_is_not_searched_for_each_name(self):
        names = [f"p{number}" for number in range(300)]
        source = FakeSource()
        alive = Searched(names)
        source.oldest = lambda now, deadline, scope: (ORIGIN, alive)
        found = oldest_left(source, names, ORIGIN + 100, Deadline.after(5), None)
        assert [seed.partition_id for seed in found] == names
        assert alive.searches == 0

    def left(self, names, **lives):
        found = oldest_left(FakeSource(**lives), names, ORIGIN + 100, Deadline.after(5), None)
        return {seed.partition_id: seed for seed in found}

    def test_a_partition_that_ends_at_the_oldest_time_has_changes_of_that_time(self):
        """The last changes of a partition may have the commit timestamp at which the partition ends."""
        found = self.left(["a"], a=(ORIGIN - 5, ORIGIN), b=(ORIGIN, ORIGIN + 9))
        assert found == {"a": Seed("a", (), cursor_of(Place.at(ORIGIN)))}

    def test_a_partition_that_begins_later_is_read_from_its_beginning(self):
        found = self.left(["a"], a=(ORIGIN + 3, ORIGIN + 9), b=(ORIGIN - 4, ORIGIN + 3))
        assert found == {"a": Seed("a", (), cursor_of(Place.at(ORIGIN + 3)))}

    @pytest.mark.parametrize("name", ["a", "unknown"])
    def test_for_one_that_is_gone_all_that_are_alive_are_read(self, name):
        lives = {"a": (ORIGIN - 5, ORIGIN - 1), "b": (ORIGIN - 1, ORIGIN + 9), "c": (0, ORIGIN + 1)}
        found = self.left([name, "b"], **lives)
        start = cursor_of(Place.at(ORIGIN))
        assert found == {"b": Seed("b", (), start), "c": Seed("c", (), start)}
