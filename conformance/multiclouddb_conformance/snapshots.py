"""Shared code for snapshot tests: a source that knows its rows, and functions that read pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import pytest

from multiclouddb_api import (
    BackfillDone,
    ChangeFeedPage,
    MulticloudDbKey,
    Snapshot,
    SnapshotOrder,
    SnapshotStarted,
)
from multiclouddb_conformance.collection import Collection
from multiclouddb_conformance.sink import Sink

__all__ = [
    "INTERLEAVED",
    "ORDERED",
    "ORDERS",
    "Between",
    "ScannedCollection",
    "changes",
    "is_done",
    "started_of",
    "until_equal",
    "walk",
]

ORDERS: Final = [
    pytest.param(
        order,
        id=order.value,
        marks=[pytest.mark.needs("interleaved")] if order is SnapshotOrder.INTERLEAVED else [],
    )
    for order in SnapshotOrder
]
"""The parameters for a test that runs with every scan order."""
ORDERED: Final = Snapshot(SnapshotOrder.ORDERED)
INTERLEAVED: Final = Snapshot(SnapshotOrder.INTERLEAVED)

Between: TypeAlias = Callable[[int], None]
"""A function that is called after each page with its number."""


class ScannedCollection:
    """A collection and its expected contents."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self.fields: dict[str, dict[str, Any]] = {}

    def put(self, name: str, number: int) -> None:
        """Create or update a document."""
        self.fields[name] = {"n": number}
        self.collection.put(name, n=number)

    def delete(self, name: str) -> None:
        """Delete a document if it exists."""
        if self.fields.pop(name, None) is not None:
            self.collection.delete(name)

    def fill(self, count: int) -> None:
        """Create documents, one by one."""
        for number in range(count):
            self.put(f"k{number}", number)

    def rows(self) -> dict[MulticloudDbKey, Any]:
        """Return the existing documents, in the form of the feed."""
        harness = self.collection.harness
        return {harness.key(name): harness.document(name, fields) for name, fields in self.fields.items()}


def _nothing(number: int) -> None:
    del number


def walk(
    collection: Collection, start: Snapshot | str, size: int = 0, between: Between = _nothing, **settings: Any
) -> Iterator[ChangeFeedPage]:
    """Return the pages from a start up to the first idle page."""
    idle = number = 0
    while idle < collection.harness.idle_pages:
        assert number < 5000, "neither idle nor over"
        page = collection.page(start, size, **settings)
        yield page
        between(number)
        idle, number, start = (idle + 1 if page.idle else 0), number + 1, page.continuation_token


def started_of(page: ChangeFeedPage) -> SnapshotStarted:
    """Return the notice that starts a snapshot, from the snapshot's first page."""
    (notice,) = (each for each in page.notices if isinstance(each, SnapshotStarted))
    return notice


def is_done(page: ChangeFeedPage) -> bool:
    """Return whether a page contains the notice that a scan is over."""
    return any(isinstance(notice, BackfillDone) for notice in page.notices)


def until_equal(source: ScannedCollection, sink: Sink, token: str) -> None:
    """Continue reading until the sink equals the source, but for no longer than the harness allows."""
    for _ in range(100):
        if sink.rows() == source.rows():
            return
        page = source.collection.page(token, wait=0.1)
        sink.apply(page.events)
        token = page.continuation_token
    assert sink.rows() == source.rows()


def changes(source: ScannedCollection) -> Between:
    """Make changes after the pages of a scan: updates, deletes, creates, and recreated keys."""

    def between(number: int) -> None:
        if number < 12:
            source.put(f"k{number * 5 % 16}", 1000 + number)
            source.delete(f"k{number * 3 % 16}")
            source.put(f"new{number % 4}", 1000 + number)
            if number % 3 == 2:
                source.delete(f"new{number % 4}")

    return between
