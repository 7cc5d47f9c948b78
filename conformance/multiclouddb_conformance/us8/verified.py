"""Tests that `verify` proves a table equal to the collection, and repairs it."""
# ruff: noqa: D102 - a test's name says what it is about

from __future__ import annotations

import random

import pytest

from multiclouddb_api import Capability, encode_json
from multiclouddb_conformance.collection import Collection
from multiclouddb_conformance.table import MemoryTable
from multiclouddb_verify import DifferenceKind, Outcome, Report, verify

__all__ = ["TestVerified"]


class _Copy:
    """A table, and the sink that keeps it equal."""

    def __init__(self, collection: Collection) -> None:
        self.collection, self.table, self.token = collection, MemoryTable(), collection.begin
        self.names = collection.fill(12)
        for name in self.names[8:]:
            collection.delete(name)
        self.follow()

    def key(self, name: str) -> str:
        return encode_json(self.collection.harness.key(name).components).decode()

    def follow(self) -> None:
        idle = 0
        while idle < self.collection.harness.idle_pages:
            page = self.collection.page(self.token)
            self.table.merge(page.events)
            self.token = page.continuation_token
            idle = idle + 1 if page.idle else 0

    def position(self) -> str:
        self.follow()
        return self.token

    def plant(self, *kinds: DifferenceKind) -> dict[str, DifferenceKind]:
        alive, dead = map(self.key, self.names[:8]), map(self.key, self.names[8:])
        return self.table.plant(list(alive), list(dead), kinds, random.Random(7))

    def verify(self, *, repair: bool = False) -> Report:
        collection = self.collection
        return verify(
            collection.client, collection.address, self.table, position=self.position, repair=repair,
            state=collection.harness.folder / "verify", patience_seconds=60.0,
        )  # fmt: skip


@pytest.mark.shows("Further 16")
@pytest.mark.requires(Capability.CHANGE_FEED_SNAPSHOT)
@pytest.mark.requires(Capability.LOOKUP)
@pytest.mark.requires(Capability.CHANGE_FEED_DELETES)
@pytest.mark.needs("alone")
@pytest.mark.needs("clock_moves")
@pytest.mark.slow
class TestVerified:
    """Tests `verify` on a table in memory."""

    def test_each_damage_is_found_and_repaired_and_the_sink_goes_on(self, collection: Collection) -> None:
        copy = _Copy(collection)
        faults = copy.plant(*DifferenceKind)
        report = copy.verify(repair=True)
        assert {each.key: each.kind for each in report.repaired} == faults
        assert (report.equal, report.counts.repaired, copy.table.written) == (True, 8, 8)
        # The rows of the scan, and those that were repaired: the ghost has none. Where rows have their own
        # `order_key`, it is read to tell whether the row of the table is blocked.
        assert report.cost.rows == 8
        assert report.cost.looked_up <= 8
        # A repaired row takes the next change.
        for number, name in enumerate(copy.names):
            collection.put(name, n=100 + number)
        copy.follow()
        documents = {key: value["n"] for key, value in copy.table.documents().items()}  # type: ignore[index]
        assert documents == {copy.key(name): 100 + number for number, name in enumerate(copy.names)}
        assert copy.verify().equal

    def test_change_that_the_sink_has_not_merged_is_no_difference(self, collection: Collection) -> None:
        copy = _Copy(collection)
        token = copy.token
        collection.put(copy.names[0], n=-1)
        collection.delete(copy.names[1])
        report = verify(
            collection.client, collection.address, copy.table, position=token,
            state=collection.harness.folder / "verify", patience_seconds=0.5,
        )  # fmt: skip
        assert report.differences == ()
        assert report.outcome is Outcome.BEHIND
        assert set(report.behind) == {copy.key(copy.names[0]), copy.key(copy.names[1])}
