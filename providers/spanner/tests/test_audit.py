"""Tests that an audit finds a partition that a start has omitted, even after the partition has ended."""

import attrs
import pytest

from multiclouddb_api import (
    ChangeFeedRequest,
    ClientConfig,
    FromContinuationToken,
    Now,
    PartitionFoundLate,
    ResourceAddress,
)
from multiclouddb_conformance.faults import FaultyPlugin, LeavesOut
from multiclouddb_conformance.open_client import open_client
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_spanner.provider import PLUGIN

from .servers.emulator import HASTY, STILL, shared
from .table import Table

pytestmark = pytest.mark.emulator(*HASTY)


@pytest.mark.parametrize("flags", [STILL, HASTY], ids=["still", "hasty"])
def test_what_a_start_left_out_is_read_late_and_whole(flags):
    table = Table(shared(flags))
    here = ResourceAddress(table.database.database_id, table.name)
    config = ClientConfig("spanner", {"url": table.emulator.url})
    with open_client(FaultyPlugin(PLUGIN, LeavesOut()), config) as client:
        token = client.read_changes(ChangeFeedRequest(here, Now())).continuation_token
    keys = {f"k{number}" for number in range(40)}
    for key in sorted(keys):
        table.put([key, 1, ""])
    if flags is HASTY:  # until the partition that was omitted has ended
        with open_client(PLUGIN, config) as client:
            before = set(client.list_physical_partitions(here))
            wait_until(lambda: before.isdisjoint(client.list_physical_partitions(here)), 30)
    seen, late = set(), []
    with open_client(PLUGIN, attrs.evolve(config, coverage_audit_seconds=0)) as client:

        def is_found():
            nonlocal token
            page = client.read_changes(ChangeFeedRequest(here, FromContinuationToken(token)))
            token = page.continuation_token
            seen.update(event.key.components["id"] for event in page.events)
            late.extend(notice for notice in page.notices if isinstance(notice, PartitionFoundLate))
            return seen == keys

        wait_until(is_found, 60)
    assert late
    table.drop()
