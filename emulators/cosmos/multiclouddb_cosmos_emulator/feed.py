"""The change feed of one partition."""

from __future__ import annotations

from collections.abc import Iterator
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
    """What is asked for.

    Attributes:
        partition: Where.
        after: The LSN to read behind; None for now.
        limit: How many items, unless one transaction has more.
        low: The first effective partition key that is wanted.
        high: The first one behind.
        since: Only items that were written then or later; None for all.
        all_versions: True for the mode with all versions and deletes.
    """

    partition: Partition
    after: int | None
    limit: int
    low: str
    high: str
    since: int | None = None
    all_versions: bool = False


@attrs.frozen
class FeedPage:
    """What came of it.

    Attributes:
        items: As JSON.
        lsn: The position behind the page.
    """

    items: list[bytes]
    lsn: int


def read_feed(container: Container, request: FeedRequest) -> FeedPage:
    """One page."""
    partition = request.partition
    if request.after is None:
        return FeedPage([], partition.lsn)
    items: list[bytes] = []
    size, last = 0, request.after
    for change in _wanted(request, request.after):
        full = len(items) >= request.limit or size >= _PAGE_BYTES
        # What has one LSN is never cut: the position could not say where.
        if full and change.lsn != last:
            return FeedPage(items, last)
        item = _version(container, change) if request.all_versions else _latest(change)
        items.append(item)
        size, last = size + len(item), change.lsn
    return FeedPage(items, max(partition.lsn, request.after))


def check_retention(partition: Partition, after: int | None, before: float) -> None:
    """Refuse a position whose changes are not all there any more."""
    partition.trim(before)
    if after is not None and after < partition.trimmed:
        raise bad_request(
            "The continuation is older than the retention of the change feed with all versions and deletes; "
            f"the oldest position is {partition.trimmed}."
        )


def _wanted(request: FeedRequest, after: int) -> Iterator[Change]:
    for change in request.partition.after(after):
        if not (request.all_versions or change.latest):
            continue
        if request.since is not None and change.seconds < request.since:
            continue
        if request.low <= change.key.epk < request.high:
            yield change


def _latest(change: Change) -> bytes:
    """The document with the number of its transaction."""
    return change.body[:-1] + b',"_lsn":%d}' % change.lsn


def _version(container: Container, change: Change) -> bytes:
    """An entry of the log."""
    metadata: dict[str, Any] = {"operationType": change.kind, "lsn": change.lsn, "crts": change.seconds}
    if change.previous is not None:
        metadata["previousImageLSN"] = change.previous
    if change.kind != "delete":
        return b'{"current":' + change.body + b',"metadata":' + orjson.dumps(metadata) + b"}"
    if change.expired:
        metadata["timeToLiveExpired"] = True
    metadata["id"] = change.item_id
    metadata["partitionKey"] = _named(container, change.key)
    return b'{"current":{},"metadata":' + orjson.dumps(metadata) + b"}"


def _named(container: Container, key: Key) -> dict[str, Any]:
    names = container.definition.names
    return {name: value for name, value in zip(names, key.values, strict=True) if value is not UNDEFINED}
