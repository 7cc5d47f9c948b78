"""The settings of a scripted DynamoDB: what it does by itself, without a requested failure."""

from __future__ import annotations

from enum import Enum

import attrs

__all__ = ["ChildFilter", "Habits", "Order", "Remains"]


class Order(Enum):
    """The order in which shards are listed."""

    PARENTS_FIRST = "parents first"
    CHILDREN_FIRST = "children first"
    """A parent is listed after its children, often on a later page."""
    SHUFFLED = "shuffled"
    """An arbitrary order that is the same in every listing."""


class ChildFilter(Enum):
    """The answer to `ShardFilter` in `DescribeStream`."""

    APPLIED = "applied"
    IGNORED = "ignored"
    """All shards are returned, as by DynamoDB Local."""
    REFUSED = "refused"
    """`ValidationException`."""


class Remains(Enum):
    """What the service still answers about a shard that is older than the retention."""

    UNLISTED = "unlisted"
    """Nothing: `ResourceNotFoundException`."""
    LISTED = "listed"
    """`DescribeStream` lists it, `GetRecords` answers `TrimmedDataAccessException`."""
    VANISHED = "vanished"
    """`DescribeStream` lists it, `GetRecords` answers `ResourceNotFoundException`."""


@attrs.define
class Habits:
    """The settings of a server; each may be changed at any time.

    Attributes:
        initial_shards: The number of open shards of a new stream.
        order: The order in which shards are listed.
        shards_per_page: The maximum number of shards on a page of `DescribeStream`.
        child_filter: The answer to `ShardFilter`.
        late_children: A new child is listed after this many calls of `DescribeStream` for its stream.
        start_after_last: True when a listing may start after the last shard; by default the answer is a
            `ResourceNotFoundException`, as from DynamoDB Local.
        page_bytes: The maximum size of a page of `GetRecords`; one record always fits.
        null_iterator: True when the end of a shard is `NextShardIterator: null`, not its absence.
        separate_end: True when the last records of a closed shard come with an iterator, and its end
            on an empty page of its own.
        empty_pages: The number of pages without records that an iterator of `GetShardIterator` returns before
        the records. An iterator of `LATEST` returns no such pages. A new iterator has to read these pages
        again.
        tells_time: True when answers have a `Date` header.
        retention_seconds: The age at which `ScriptedStreams.advance` trims records.
        iterator_seconds: How long an iterator is valid.
        remains: What the service still answers about a shard that `advance` has trimmed.
        readable_after_delete: True when the stream of a deleted table can be read to its end; by default
            its shards end at once, as those of DynamoDB Local do.
        timestamp_seconds: `ApproximateCreationDateTime` is rounded down to a multiple of this number of
        seconds; DynamoDB Local has 60.
        lower_case_identity: True when `userIdentity` is spelled `principalId` and `type`.
        readers_per_shard: How many `GetRecords` calls of one shard may run at the same time.
        describes_per_second: How many `DescribeStream` calls of one stream may come in a second.
        enforce_limits: True when a call over one of these two limits gets `LimitExceededException`; such
            calls are always recorded.
    """

    initial_shards: int = 1
    order: Order = Order.PARENTS_FIRST
    shards_per_page: int = 100
    child_filter: ChildFilter = ChildFilter.APPLIED
    late_children: int = 0
    start_after_last: bool = False
    page_bytes: int = 1 << 20
    null_iterator: bool = False
    separate_end: bool = False
    empty_pages: int = 0
    tells_time: bool = True
    retention_seconds: float = 24 * 3600.0
    iterator_seconds: float = 15 * 60.0
    remains: Remains = Remains.UNLISTED
    readable_after_delete: bool = False
    timestamp_seconds: int = 1
    lower_case_identity: bool = False
    readers_per_shard: int = 2
    describes_per_second: int = 10
    enforce_limits: bool = False
