"""Tests that every partition is read, even if its service named it late or omitted it."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

from typing import Any

import attrs
import pytest

from multiclouddb_api import MulticloudDbClient, PartitionFoundLate
from multiclouddb_conformance.collection import Collection, ids
from multiclouddb_conformance.faults import FaultScript, FaultyPlugin, LateSiblings, LeavesOut
from multiclouddb_conformance.open_client import open_client

__all__ = ["TestLateSiblings", "TestUncovered"]


def _troubled(collection: Collection, script: FaultScript, **settings: Any) -> MulticloudDbClient:
    """Return a client with a fault script, because no real service causes these faults on request."""
    harness = collection.harness
    return open_client(FaultyPlugin(harness.plugin, script), attrs.evolve(harness.config(), **settings))


@pytest.mark.shows("Promise 1")
@pytest.mark.needs("split", "late_children")
class TestLateSiblings:
    """A service names some children of a closed partition at once, and others later."""

    def test_a_sibling_named_late_is_read_after_a_restart(self, collection: Collection) -> None:
        before = collection.page(collection.begin).diagnostics.open_watches
        collection.fill(20)
        collection.split()
        collection.fill(40, start=20)
        with _troubled(collection, LateSiblings()) as client:
            pages = list(collection.pages(collection.begin, client=client))
        assert pages[-1].diagnostics.open_watches == before + 1
        events = [event for page in pages for event in page.events]
        assert 20 < len(events) < 60
        events += collection.drain(pages[-1].continuation_token)
        assert len(events) == len(set(ids(events))) == 60


@pytest.mark.shows("Promise 1")
@pytest.mark.needs("several", "audit", "alone", "still")
class TestUncovered:
    """Tests the search for partitions that the feed does not cover."""

    def test_a_partition_that_a_start_left_out_is_found_late(self, collection: Collection) -> None:
        with _troubled(collection, LeavesOut()) as client:
            token = collection.now(client=client)
        collection.fill(40)
        late, events, counted = list[str](), list[str](), 0
        with _troubled(collection, LeavesOut(), coverage_audit_seconds=0) as client:
            for _ in range(2):  # a partition that was found late is read by the next call
                pages = list(collection.pages(token, client=client))
                token = pages[-1].continuation_token
                for page in pages:
                    notices = [each for each in page.notices if isinstance(each, PartitionFoundLate)]
                    found = [each.partition_id for each in notices]
                    assert {event.partition_id for event in page.events}.isdisjoint(found)
                    late += found
                    events += ids(page.events)
                    counted += page.diagnostics.found_late
        assert len(late) == counted == 1
        assert late[0] in collection.partitions()
        assert len(events) == len(set(events)) == 40
