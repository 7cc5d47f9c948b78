"""What a scripted DynamoDB does in its own way, without being asked for trouble."""

from __future__ import annotations

from enum import Enum

import attrs

__all__ = ["ChildFilter", "Habits", "Order", "Remains"]


class Order(Enum):
    """In which order shards are listed."""

    PARENTS_FIRST = "parents first"
    CHILDREN_FIRST = "children first"
    """A parent comes after its children, often on a later page."""
    SHUFFLED = "shuffled"
    """Arbitrary, and the same every time."""


class ChildFilter(Enum):
    """What becomes of `ShardFilter` in `DescribeStream`."""

    APPLIED = "applied"
    IGNORED = "ignored"
    """All shards come back, as from DynamoDB Local."""
    REFUSED = "refused"
    """`ValidationException`."""


class Remains(Enum):
    """What is left of a shard that fell out of retention."""

    UNLISTED = "unlisted"
    """Nothing: `ResourceNotFoundException`."""
    LISTED = "listed"
    """`DescribeStream` lists it, `GetRecords` answers `TrimmedDataAccessException`."""
    VANISHED = "vanished"
    """`DescribeStream` lists it, `GetRecords` answers `ResourceNotFoundException`."""


@attrs.define
class Habits:
    """The ways of a server; any may be changed at any time.

    Attributes:
        initial_shards: How many open shards a new stream has.
        order: In which order shards are listed.
        shards_per_page: How many shards a page of `DescribeStream` has at most.
        child_filter: What becomes of `ShardFilter`.
        late_children: A new child is listed after so many calls of `DescribeStream` for its stream.
        start_after_last: True when a listing may start after the last shard; by default that is a
            `ResourceNotFoundException`, as from DynamoDB Local.
        page_bytes: How large a page of `GetRecords` is at most; one record always fits.
        null_iterator: True when the end of a shard is `NextShardIterator: null`, not its absence.
        separate_end: True when the last records of a closed shard come with an iterator, and its end
            on an empty page of its own.
        empty_pages: Behind an iterator of `GetShardIterator` so many pages come without records before those
            that are there; not behind one of `LATEST`. The way has to be gone again with a new iterator.
        tells_time: True when answers have a `Date`.
        retention_seconds: When `ScriptedStreams.advance` trims.
        iterator_seconds: How long an iterator lives.
        remains: What is left of a shard that `advance` trims.
        readable_after_delete: True when the stream of a deleted table can be read to its end; by default
            its shards are at their end at once, as those of DynamoDB Local.
        timestamp_seconds: `ApproximateCreationDateTime` is rounded down to a multiple; DynamoDB Local has 60.
        lower_case_identity: True when `userIdentity` is spelled `principalId` and `type`.
        readers_per_shard: So many `GetRecords` of one shard may be under way together.
        describes_per_second: So many `DescribeStream` of one stream may come in a second.
        enforce_limits: True when these two limits are answered with `LimitExceededException`; they are
            recorded in any case.
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
