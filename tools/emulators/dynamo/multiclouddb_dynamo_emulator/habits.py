"""The settings of a scripted DynamoDB server: how the server behaves when no failure is requested."""

from __future__ import annotations

from enum import Enum

import attrs

__all__ = ["ChildFilter", "Habits", "Order", "Remains", "TimeStart"]


class Order(Enum):
    """The order in which shards are listed."""

    PARENTS_FIRST = "parents first"
    CHILDREN_FIRST = "children first"
    """Each parent is listed after its children, often on a later page."""
    SHUFFLED = "shuffled"
    """The order is arbitrary, but always the same."""


class ChildFilter(Enum):
    """How the server answers a `ShardFilter` in `DescribeStream`."""

    APPLIED = "applied"
    IGNORED = "ignored"
    """The server ignores the filter and returns all shards, as DynamoDB Local does."""
    REFUSED = "refused"
    """The answer is a `ValidationException`."""


class TimeStart(Enum):
    """How the server answers a `GetShardIterator` of the type `AT_TIMESTAMP`."""

    APPLIED = "applied"
    OPEN_ONLY = "open only"
    """The answer about a shard without a record at or after the time is a `ValidationException`, if it has
    ended; the documentation does not say what it is."""
    REFUSED = "refused"
    """The answer is a `ValidationException`, as that of DynamoDB Local 1.11."""
    FROM_THE_END = "from the end"
    """The server ignores the time and answers as to `LATEST`."""
    FROM_THE_OLDEST = "from the oldest"
    """The server ignores the time and answers as to `TRIM_HORIZON`."""


class Remains(Enum):
    """How the service answers requests about a shard that is older than the retention."""

    UNLISTED = "unlisted"
    """Every answer about the shard is a `ResourceNotFoundException`."""
    LISTED = "listed"
    """`DescribeStream` still lists the shard, and `GetRecords` answers `TrimmedDataAccessException`."""
    VANISHED = "vanished"
    """`DescribeStream` still lists the shard, and `GetRecords` answers `ResourceNotFoundException`."""


@attrs.define
class Habits:
    """The settings of a server. Each setting can be changed at any time.

    Attributes:
        initial_shards: The number of open shards in a new stream.
        order: The order in which shards are listed.
        shards_per_page: The maximum number of shards on one page of `DescribeStream`.
        child_filter: How the server answers a `ShardFilter`.
        time_start: How the server answers an `AT_TIMESTAMP`.
        late_children: The number of `DescribeStream` calls for a stream that do not yet list a new
            child.
        start_after_last: True if a listing may start after the last shard. By default, the answer
            to such a request is a `ResourceNotFoundException`, as in DynamoDB Local.
        divides_scans: True if `Scan` applies `Segment`; False if each segment is the whole table, as in kumo
            (sivchari/kumo#610) and cloudemu (stackshy/cloudemu#734).
        page_bytes: The maximum size of one page of `GetRecords`; a page may contain one record of any size.
        null_iterator: True if the end of a shard is reported as `NextShardIterator: null`; False if the
            answer omits this member.
        separate_end: True if the answer with the last records of a closed shard contains an
            iterator. A separate page without records then reports the end of the shard.
        empty_pages: The number of pages without records that the server sends before the first
            records. This setting applies to an iterator from `GetShardIterator` that is not
            `LATEST`. With each new iterator, a client must read these pages again.
        tells_time: True if answers contain a `Date` header.
        retention_seconds: The age at which `ScriptedStreams.advance` trims records.
        iterator_seconds: How long an iterator is valid.
        refuses_trimmed: True if a position before trimmed records is refused with
            `TrimmedDataAccessException`; False if such a position is that of the oldest record left.
        remains: How the server answers requests about a shard that `advance` has trimmed.
        readable_after_delete: True if the stream of a deleted table can be read to its end. By
            default, the shards of a deleted table end immediately, as in DynamoDB Local.
        timestamp_seconds: `ApproximateCreationDateTime` is rounded down to a multiple of this number;
            DynamoDB Local uses 60.
        lower_case_identity: True if the members of `userIdentity` are named `principalId` and
            `type`.
        readers_per_shard: The number of `GetRecords` calls for one shard that may run at the same time.
        describes_per_second: The number of `DescribeStream` calls for one stream that may arrive in a second.
        enforce_limits: True if a call gets `LimitExceededException` when it exceeds
            `readers_per_shard` or `describes_per_second`. The journal records such a call even if
            this setting is False.
        expired_keys: The access keys whose requests are refused with `ExpiredTokenException`. The server
            checks nothing else of a signature.
    """

    initial_shards: int = 1
    order: Order = Order.PARENTS_FIRST
    shards_per_page: int = 100
    child_filter: ChildFilter = ChildFilter.APPLIED
    time_start: TimeStart = TimeStart.APPLIED
    late_children: int = 0
    start_after_last: bool = False
    divides_scans: bool = True
    page_bytes: int = 1 << 20
    null_iterator: bool = False
    separate_end: bool = False
    empty_pages: int = 0
    tells_time: bool = True
    retention_seconds: float = 24 * 3600.0
    iterator_seconds: float = 15 * 60.0
    refuses_trimmed: bool = True
    remains: Remains = Remains.UNLISTED
    readable_after_delete: bool = False
    timestamp_seconds: int = 1
    lower_case_identity: bool = False
    readers_per_shard: int = 2
    describes_per_second: int = 10
    enforce_limits: bool = False
    expired_keys: set[str] = attrs.field(factory=set)
