"""Determines the range of a read: partitions, limits on effective partition keys, page size and session."""

from __future__ import annotations

from typing import Any

import attrs

from multiclouddb_cosmos_emulator.container import Container
from multiclouddb_cosmos_emulator.errors import bad_request
from multiclouddb_cosmos_emulator.keys import MAX_EPK, MIN_EPK, Key
from multiclouddb_cosmos_emulator.message import Request
from multiclouddb_cosmos_emulator.partition import Partition
from multiclouddb_cosmos_emulator.session import check_session

__all__ = ["Reach", "key_of", "page_size"]

_PAGE = 100
_LARGEST_PAGE = 1000


def page_size(request: Request) -> int:
    """Return the maximum number of items on a page."""
    text = request.headers.get("x-ms-max-item-count")
    if text is None:
        return _PAGE
    try:
        size = int(text)
    except ValueError:
        size = 0
    if size == -1:
        return _LARGEST_PAGE
    if size < 1:
        raise bad_request(f"The value {text!r} of x-ms-max-item-count is neither -1 nor positive.")
    return size


def key_of(request: Request, container: Container) -> Key | None:
    """Return the partition key that a request names, or None if it names no key."""
    text = request.headers.get("x-ms-documentdb-partitionkey")
    if text is None:
        return None
    key = container.definition.of_header(text)
    # For a prefix of a key, the SDK sends the prefix's range of effective partition keys.
    if len(key.values) < len(container.definition.paths):
        raise bad_request(
            "Partition key provided either doesn't correspond to definition in the collection or doesn't "
            "match partition key field values specified in the document.",
            1001,
        )
    return key


@attrs.frozen
class Reach:
    """The items that a read can return.

    Attributes:
        partitions: The partitions to read, in the order of their ranges.
        low: The first effective partition key to read.
        high: The end of the range of keys to read; the range does not include this key.
        key: The partition key; None for all keys.
        named: True if the request names one partition.
    """

    partitions: list[Partition]
    low: str = MIN_EPK
    high: str = MAX_EPK
    key: Key | None = None
    named: bool = False

    @classmethod
    def of(cls, request: Request, container: Container) -> Reach:
        """Return the items that a request can read.

        For a partition that no longer exists, raise a 410 error.
        """
        headers = request.headers
        low = headers.get("x-ms-start-epk", MIN_EPK).upper()
        high = headers.get("x-ms-end-epk", MAX_EPK).upper()
        key = key_of(request, container)
        range_id = headers.get("x-ms-documentdb-partitionkeyrangeid")
        if range_id is not None:
            partitions = [container.partition(range_id.rpartition(",")[2])]
        elif key is None:
            partitions = list(container.partitions)
        else:
            partitions = [container.partition_of(key.epk)]
        if token := headers.get("x-ms-session-token"):
            check_session(token, partitions, request.lag)
        return cls(partitions, low, high, key, range_id is not None)

    def pinned(self, container: Container, equal: dict[tuple[str, ...], Any]) -> Reach:
        """If a query's filter names the whole partition key, return only the items with this key.

        Return this object unchanged if the filter does not name the whole key, or if the request
        itself names a partition or a key.
        """
        paths = container.definition.paths
        if self.named or self.key is not None or any(path not in equal for path in paths):
            return self
        key = container.definition.of_values(tuple(equal[path] for path in paths))
        return attrs.evolve(self, partitions=[container.partition_of(key.epk)], key=key)

    def covers(self, key: Key) -> bool:
        """Return True if the read can return an item with this key."""
        return self.low <= key.epk < self.high and self.key in (None, key)
