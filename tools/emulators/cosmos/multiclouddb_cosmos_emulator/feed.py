"""Serves the change feed of one partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import orjson

from multiclouddb_cosmos_emulator.container import Container
from multiclouddb_cosmos_emulator.errors import bad_request
from multiclouddb_cosmos_emulator.keys import Key
from multiclouddb_cosmos_emulator.partition import Change, Partition
from multiclouddb_cosmos_emulator.values import UNDEFINED

__all__ = ["FeedPage", "FeedRequest", "check_retention", "read_feed"]

_PAGE_BYTES: Final = 4 * 1024 * 1024


@attrs.frozen
class FeedRequest:
    """A request for the change feed.

    Attributes:
        partition: The partition to read.
        newest: The LSN of the replica that answers.
        after: Only changes with a higher LSN are returned; None to start at the current time.
        limit: The maximum number of items. A page may contain more items than this number, because
            a transaction is never divided between pages.
        low: The first effective partition key to return.
        high: The end of the requested range of keys; the range does not include this key.
        since: Only items written at or after this time are returned; None for all items.
        all_versions: True for the mode with all versions and deletes.
    """

    partition: Partition
    newest: int
    after: int | None
    limit: int
    low: str
    high: str
    since: int | None = None
    all_versions: bool = False


@attrs.frozen
class FeedPage:
    """A page of the change feed.

    Attributes:
        text: The items as JSON, separated by commas.
        count: The number of items.
        lsn: The position after the page.
    """

    text: bytes
    count: int
    lsn: int


def read_feed(container: Container, request: FeedRequest) -> FeedPage:
    """Read one page."""
    partition, after, newest = request.partition, request.after, request.newest
    if after is None:
        return FeedPage(b"", 0, newest)
    wanted, all_versions, limit = _filter(request), request.all_versions, request.limit
    parts: list[bytes] = []
    size, count, last, tail = 0, 0, after, b""
    latest = None if newest == partition.lsn else partition.latest_at(newest)
    for change in partition.after(after):
        if change.lsn > newest:
            break
        is_latest = change.latest if latest is None else id(change) in latest
        if not (all_versions or is_latest) or (wanted is not None and not wanted(change)):
            continue
        if change.lsn != last:
            # Changes with the same LSN stay on the same page, because a position is an LSN.
            if count >= limit or size >= _PAGE_BYTES:
                return FeedPage(b"".join(parts)[:-1], count, last)
            last, tail = change.lsn, b',"_lsn":%d},' % change.lsn
        parts += _version(container, change) if all_versions else (change.head, tail)
        size, count = size + len(change.head), count + 1
    return FeedPage(b"".join(parts)[:-1], count, max(partition.lsn, after) if latest is None else newest)


def _filter(request: FeedRequest) -> Callable[[Change], bool] | None:
    """Return the filter for the requested changes, or None if all changes of the partition are requested."""
    low, high, since = request.low, request.high, request.since
    if since is None and low <= request.partition.low and request.partition.high <= high:
        return None
    return lambda change: low <= change.key.epk < high and (since is None or change.seconds >= since)


def check_retention(partition: Partition, after: int | None, before: float) -> None:
    """Refuse a position if some of its changes are older than the retention."""
    partition.trim(before)
    if after is not None and after < partition.trimmed:
        raise bad_request(
            "The continuation is older than the retention of the change feed with all versions and deletes; "
            f"the oldest position is {partition.trimmed}."
        )


def _version(container: Container, change: Change) -> tuple[bytes, ...]:
    """Return an entry of the log as JSON, followed by a comma."""
    metadata: dict[str, Any] = {"operationType": change.kind, "lsn": change.lsn, "crts": change.seconds}
    if change.previous is not None:
        metadata["previousImageLSN"] = change.previous
    if change.kind != "delete":
        return b'{"current":', change.head, b'},"metadata":', orjson.dumps(metadata), b"},"
    if change.expired:
        metadata["timeToLiveExpired"] = True
    metadata["id"] = change.item_id
    metadata["partitionKey"] = _named(container, change.key)
    return b'{"current":{},"metadata":', orjson.dumps(metadata), b"},"


def _named(container: Container, key: Key) -> dict[str, Any]:
    # The service keeps a number in a partition key as a double: Azure/azure-cosmos-dotnet-v3 issue 3116.
    names = container.definition.names
    return {
        name: float(value) if type(value) is int else value
        for name, value in zip(names, key.values, strict=True)
        if value is not UNDEFINED
    }
