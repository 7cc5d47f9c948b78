"""Gives each test a collection, to which the harness writes natively and from which the client reads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NoReturn

import attrs
import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    Capability,
    ChangeEvent,
    ChangeFeedPage,
    ChangeFeedRequest,
    EntireCluster,
    EntireCollection,
    EntireDatabase,
    ErrorCategory,
    ErrorReason,
    FromContinuationToken,
    LogicalPartition,
    MulticloudDbClient,
    MulticloudDbError,
    Now,
    OldItemStateMode,
    OperationOptions,
    PhysicalPartition,
    Resnapshot,
    ResourceAddress,
    Snapshot,
    StartPosition,
    Support,
)
from multiclouddb_conformance.harness import Harness, Write
from multiclouddb_conformance.refusals import check_refusal

__all__ = ["Collection", "feed_request", "ids"]

_MOST_PAGES: Final = 2000


def ids(events: Iterable[ChangeEvent]) -> list[str]:
    """Return the ids of events, in order."""
    return [event.event_id for event in events]


class Collection:
    """One collection, and a client that reads it.

    Attributes:
        harness: The harness of the provider.
        address: The address of the collection.
        client: The client that reads the collection; `restart` replaces it.
        begin: A token for the position before the first write. Tests that are not about start positions begin
            at this token, because not every service can start at the beginning.
    """

    def __init__(self, harness: Harness, address: ResourceAddress, client: MulticloudDbClient) -> None:
        self.harness, self.address, self.client = harness, address, client
        self.begin = self.now()

    # -- Native writes

    def put(self, key: Any, **fields: Any) -> None:
        """Create or update one document."""
        self.harness.write(self.address, [Write(key, fields)])

    def delete(self, key: Any) -> None:
        """Delete one document."""
        self.harness.write(self.address, [Write(key, None)])

    def batch(self, *writes: Write) -> None:
        """Make several writes in one transaction."""
        self.harness.write(self.address, writes)

    def fill(self, count: int, start: int = 0) -> list[str]:
        """Create the given number of documents, one by one, and return their keys."""
        names = [f"k{number}" for number in range(start, start + count)]
        for number, name in enumerate(names, start):
            self.put(name, n=number)
        return names

    def split(self, partition_id: str | None = None) -> list[str]:
        """Split a partition (by default the first one); return the ids of the children."""
        before = self.partitions()
        self.harness.split(self.address, partition_id or before[0])
        return [name for name in self.partitions() if name not in before]

    def merge(self, pair: Sequence[str]) -> str:
        """Merge two partitions, and return the id of the child."""
        before = self.partitions()
        self.harness.merge(self.address, *pair)
        (child,) = (name for name in self.partitions() if name not in before)
        return child

    def trim(self) -> None:
        """Remove all changes made so far, as the service does at the end of the retention period."""
        self.harness.trim(self.address)

    # -- Reads

    def restart(self) -> None:
        """Close the client and open another one, as a new process would do."""
        self.client.close()
        self.client = self.harness.connect()

    def request(self, start: StartPosition | str, size: int = 0, **settings: Any) -> ChangeFeedRequest:
        """Make a request that opts in to all capabilities that the provider only emulates.

        Args:
            start: A start position, or the text of a token.
            size: `max_page_size`.
            settings: Other fields of the request.
        """
        position = FromContinuationToken(start) if isinstance(start, str) else start
        if "address" in settings or "scope" in settings:
            address = settings.pop("address", self.address)
            return _opted(self.harness, ChangeFeedRequest(address, position, max_page_size=size, **settings))
        return feed_request(self.harness, self.address, position, size, **settings)

    def page(
        self,
        start: StartPosition | str,
        size: int = 0,
        *,
        client: MulticloudDbClient | None = None,
        timeout: float = 30.0,
        wait: float = 0.0,
        **settings: Any,
    ) -> ChangeFeedPage:
        """Return one page."""
        request = self.request(start, size, **settings)
        return (client or self.client).read_changes(request, OperationOptions(timeout, wait))

    def now(self, **settings: Any) -> str:
        """Return a token for the current position."""
        return self.page(Now(), **settings).continuation_token

    def pages(self, start: StartPosition | str, size: int = 0, **settings: Any) -> Iterator[ChangeFeedPage]:
        """Return the pages up to the first idle page, or up to the end of the partition."""
        idle = 0
        for _ in range(_MOST_PAGES):
            page = self.page(start, size, **settings)
            yield page
            idle = idle + 1 if page.idle else 0
            if page.partition_retired or idle == self.harness.idle_pages:
                return
            start = page.continuation_token
        pytest.fail(f"the feed is neither idle nor retired after {_MOST_PAGES} pages")

    def drain(self, start: StartPosition | str, size: int = 0, **settings: Any) -> list[ChangeEvent]:
        """Return every event up to the current end of the feed."""
        return [event for page in self.pages(start, size, **settings) for event in page.events]

    def last(self, start: StartPosition | str, size: int = 0, **settings: Any) -> ChangeFeedPage:
        """Return the last page that `pages` returns."""
        *_, page = self.pages(start, size, **settings)
        return page

    def read(self, start: StartPosition | str, count: int, **settings: Any) -> list[ChangeEvent]:
        """Read until `count` different events have arrived, then continue to the end of the feed.

        The events are returned in the order of delivery. If the service does not guarantee the order of a
        key's changes across partitions, they are sorted by `order_key`.
        """
        events: dict[str, ChangeEvent] = {}
        until = time.monotonic() + self.harness.patience_seconds
        while True:  # reads at least once, even if `patience_seconds` is very short
            for page in self.pages(start, **settings):
                events.update((event.event_id, event) for event in page.events)
                start = page.continuation_token
            if len(events) >= count or time.monotonic() >= until:
                break
        assert len(events) == count, f"{len(events)} events came, {count} were written"
        return self._in_order(events.values())

    def _in_order(self, events: Iterable[ChangeEvent]) -> list[ChangeEvent]:
        """Return the events in an order that is correct for each key."""
        if self.harness.can_key_order:
            return list(events)
        return sorted(events, key=lambda event: event.order_key)

    def follow(self, partition_id: str, token: str, size: int = 0, **settings: Any) -> list[ChangeEvent]:
        """Read one physical partition and all its descendants, as a worker would."""
        events: list[ChangeEvent] = []
        todo = [(partition_id, token)]
        seen = {partition_id}
        while todo:
            name, at = todo.pop(0)
            for page in self.pages(at, size, scope=PhysicalPartition(name), **settings):
                events += page.events
                for child in page.child_partitions:
                    if child.partition_id not in seen:
                        seen.add(child.partition_id)
                        todo.append((child.partition_id, child.continuation_token))
        return events

    def partitions(self) -> list[str]:
        """Return the public ids of the collection's open partitions; a wider scope has others."""
        return list(self.client.list_physical_partitions(self.address))

    def key_in(self, partition_id: str, start: int = 0) -> str:
        """Write 64 documents; return the key of one whose change came from the given partition."""
        scope = EntireCollection()
        token = self.now(scope=scope)
        for number in range(start, start + 64):
            self.put(f"probe-{number}", probe=number)
        for event in self.read(token, 64, scope=scope):
            if event.partition_id == partition_id:
                (value,) = event.key.components.values()
                return str(value)
        pytest.fail(f"none of 64 keys lies in {partition_id}")

    def refused(
        self,
        category: ErrorCategory,
        start: StartPosition | str,
        size: int = 0,
        *,
        reasons: Sequence[ErrorReason] = (),
        **settings: Any,
    ) -> MulticloudDbError:
        """Return the error of a read that must be refused.

        Args:
            category: The category of the error.
            start: The start of the read.
            size: `max_page_size`.
            reasons: The reasons that the error may have, as in `check_refusal`.
            settings: Other fields of the request.
        """
        with pytest.raises(MulticloudDbError) as caught:
            self.page(start, size, **settings)
        return check_refusal(caught.value, category, reasons)

    def fails(self, problem: str) -> NoReturn:
        """Fail the test."""
        pytest.fail(problem)


def feed_request(
    harness: Harness, address: ResourceAddress, start: StartPosition, size: int = 0, **settings: Any
) -> ChangeFeedRequest:
    """Make a request for the feed of a collection's changes, in the harness's scope.

    Args:
        harness: The harness of the provider.
        address: The collection's address.
        start: The start position.
        size: `max_page_size`.
        settings: Other fields of the request.
    """
    scope = harness.scope
    match scope:
        case EntireCollection():
            pass
        case EntireDatabase():
            address = attrs.evolve(address, collection=None)
        case EntireCluster():
            address = ResourceAddress()
    made = ChangeFeedRequest(address, start, scope=scope, max_page_size=size, **settings)
    return _opted(harness, made)


def _opted(harness: Harness, request: ChangeFeedRequest) -> ChangeFeedRequest:
    """Return the request; if it needs an emulated capability, opt in to this capability."""
    if request.provider_options is not None:
        return request
    for capability in _asked(request):
        if harness.capabilities[capability].support is Support.EMULATED:
            return attrs.evolve(request, provider_options=harness.opt_in(capability))
    return request


def _asked(request: ChangeFeedRequest) -> list[Capability]:
    asked = []
    if isinstance(request.start_position, Beginning):
        asked.append(Capability.CHANGE_FEED_BEGINNING)
    if isinstance(request.start_position, AtTime):
        asked.append(Capability.CHANGE_FEED_POINT_IN_TIME)
    if isinstance(request.start_position, Snapshot) and not request.start_position.changes:
        asked.append(Capability.CHANGE_FEED_ROWS)
    elif isinstance(request.start_position, Snapshot) or isinstance(request.on_expired, Resnapshot):
        asked.append(Capability.CHANGE_FEED_SNAPSHOT)
    if isinstance(request.scope, LogicalPartition):
        asked.append(Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE)
    if request.old_item_state_mode is not OldItemStateMode.OMIT:
        asked.append(Capability.CHANGE_FEED_OLD_ITEM_STATE)
    return asked
