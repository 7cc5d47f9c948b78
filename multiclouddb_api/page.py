"""Defines the result of one read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

import attrs
from attrs import frozen

from multiclouddb_api.errors import ErrorCategory, ErrorDetail, ErrorReason, MulticloudDbError
from multiclouddb_api.event import ChangeEvent
from multiclouddb_api.redaction import html_table, rfc3339, shorten
from multiclouddb_api.snapshot import SnapshotProgress
from multiclouddb_api.validators import each_is, is_a

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


@frozen
class Dropped:
    """The collection or database was dropped."""

    name: str = attrs.field(validator=is_a(str))
    """The dropped resource: `database/collection` or `database`."""


@frozen
class Renamed:
    """The collection has been renamed.

    If `new_name` is the collection that the feed reads, another collection has taken its place. The feed has
    no changes for the documents that this other collection already contained: read them with a `Snapshot()`.
    """

    name: str = attrs.field(validator=is_a(str))
    """The old name."""
    new_name: str = attrs.field(validator=is_a(str))
    """The new name of the collection."""


@frozen
class Invalidated:
    """The service has ended the feed, because the resource that it follows no longer exists."""

    reason: str = attrs.field(validator=is_a(str))
    """The reason on one line, in the service's own words or in the library's."""


@frozen
class FeedEnded:
    """The feed is over: no change follows this token."""

    reason: str = attrs.field(validator=is_a(str))
    """The reason why the feed ended, on one line."""


@frozen
class Gap:
    """Changes were lost, because the service had removed them before they were read.

    The read goes on with the oldest change that is left (`SkipToOldest`) or with a new snapshot
    (`Resnapshot`).

    Portability:
        A gap can occur on every database, but how soon changes expire depends on the service. See warnings 3
        and 10 in docs/configuration.md.
    """

    partition_id: str = attrs.field(validator=is_a(str))
    """The partition whose position had expired."""
    lost_from: str = attrs.field(validator=is_a(str))
    """The position that was lost, as readable text."""
    resumed_at: str = attrs.field(validator=is_a(str))
    """The position at which reading continued, as readable text."""


@frozen
class RecordSkipped:
    """A record that cannot be decoded was skipped, because the read continued from its `skip_token`."""

    partition_id: str = attrs.field(validator=is_a(str))
    """The partition that contains the skipped record."""
    position: str = attrs.field(validator=is_a(str))
    """The position of the skipped record, as readable text."""


@frozen
class PartitionFoundLate:
    """The service has listed a partition late; from now on the feed reads it or lists it as a child.

    Its events come after newer events of other partitions, and may be older than a watermark that was already
    reported. Such a partition is found in one of two ways: an audit lists it after the library has stopped
    searching for children of its parent, or it descends from a partition that was lost to retention. In the
    second case its first changes may be lost too. In the first they may be if the parent no longer exists;
    then a `Gap` comes as well.

    Portability:
        Only DynamoDB may list shards late, and never confirms that a listing is complete. See warning 22 in
        docs/configuration.md.
    """

    partition_id: str = attrs.field(validator=is_a(str))
    """The partition that was found."""
    starts_at: str = attrs.field(validator=is_a(str))
    """The position at which reading the partition starts, as readable text."""


@frozen
class SnapshotStarted:
    """A snapshot has begun: its rows come on the next pages, and every change from now on is delivered.

    Store the token of this page before you read on, because only a read from this token or a later one
    continues the snapshot. Any other read starts a new one.

    Portability:
        Check `Capability.CHANGE_FEED_SNAPSHOT`. See warning 23 in docs/configuration.md.
    """

    floor: str = attrs.field(validator=is_a(str))
    """A bound for `order_key`, called the floor of the snapshot: it is less than the `order_key` of every
    change after this page. Each row of the snapshot has the floor as its `order_key`, except on Cosmos DB,
    where a row has the `order_key` of its last change (`ScanFloor`)."""
    partition_id: str = attrs.field(validator=is_a(str))
    """The id of the snapshot; the matching `BackfillDone` has the same id."""
    whole: bool = attrs.field(default=True, validator=is_a(bool))
    """True if the snapshot delivers every row of the collection, or of the database that is read as a whole,
    so that a target may delete all its other rows at `BackfillDone`. False for one segment of a plan, for one
    partition or partition key, for a snapshot without changes, and for a backfill from `AtTime`."""


@frozen
class BackfillDone:
    """The backfill is complete, with this page: all later events are real changes.

    With `SnapshotOrder.INTERLEAVED` or `AUTO`, keep deleted keys until you have stored the token of this page
    or of a later one.

    Portability:
        Comes with `Snapshot()` where there is `Capability.CHANGE_FEED_SNAPSHOT`, and with the backfill of
        Cosmos DB, which is an opt-in. See warnings 8 and 23 in docs/configuration.md.
    """

    partition_id: str = attrs.field(validator=is_a(str))
    """The id of the snapshot, as in `SnapshotStarted`; with the backfill of Cosmos DB, the partition whose
    backfill is complete."""
    floor: str = attrs.field(default="", validator=is_a(str))
    """The floor of the snapshot, as in `SnapshotStarted`."""


Notice: TypeAlias = (
    Dropped
    | Renamed
    | Invalidated
    | FeedEnded
    | Gap
    | RecordSkipped
    | PartitionFoundLate
    | SnapshotStarted
    | BackfillDone
)
"""The union of all notices; use `match` on the class, because later versions may add classes."""


@frozen
class OperationDiagnostics:
    """Measurements of one call; a value is None if the service reports too little to know it."""

    watermark: datetime | None = None
    """No event on a later page has an earlier time than this, in UTC. It is the minimum over all partitions
    in the token, also those that wait for their parents, and never goes back."""
    read_until: datetime | None = None
    """Every change that was committed before this time of the service's clock has been returned, on this page
    or an earlier one. In UTC; it never goes back. None if it is not known, and during the scan of a
    `Snapshot()`.
    """
    read_until_estimated: bool = False
    """True if `read_until` is likely but not proven, because the service does not report whether records
    follow (DynamoDB)."""
    partitions_read_until: Mapping[str, datetime] = attrs.field(factory=dict, hash=False)
    """Maps the id of each partition in the token to its own `read_until`, if that is known."""
    partitions_watermark: Mapping[str, datetime] = attrs.field(factory=dict, hash=False)
    """Maps the id of each partition in the token to its own watermark in UTC, if that is known."""
    partitions_headroom_seconds: Mapping[str, float] = attrs.field(factory=dict, hash=False)
    """Maps the id of each partition that has answered in this call to the seconds for which the service will
    still keep its position, if that is known."""
    lag_seconds: float | None = None
    """How many seconds `read_until` is behind the service's clock; an estimate if `read_until_estimated`."""
    retention_headroom_seconds: float | None = None
    """For how many seconds the service will still keep the oldest position in the token: the shortest time
    that was found in this call."""
    requests: int = 0
    """The number of requests sent to the service."""
    native_charge: float | None = None
    """The charge that the service reported, in its own unit (request units, read units)."""
    retries: int = 0
    """The number of times that a request was repeated after a failure."""
    open_watches: int = 0
    """The number of ended partitions for which the service may still list more children (DynamoDB). `idle`
    may be true all the same. Events of a child that is found later may be older than the watermark.
    """
    found_late: int = 0
    """The number of partitions that were found late in this call; the page has a `PartitionFoundLate` notice
    for each."""
    partition_errors: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    """Maps the id of each partition that failed in this call to the failure. The position of such a partition
    has not moved, so none of its changes is skipped."""
    elapsed_seconds: float = 0.0
    """The duration of the call, in seconds."""
    snapshot: SnapshotProgress | None = None
    """The progress of the scan of a `Snapshot()`; None if no scan is running."""


def _count(events: tuple[ChangeEvent, ...]) -> str:
    return f"<{len(events)} events>"


@frozen
class ChildPartition:
    """A partition that continues where its parents have ended.

    Portability:
        Partitions split on DynamoDB, Spanner, Cosmos DB and the embedded store, and merge on Spanner and
        the embedded store; MongoDB's only partition never ends. See warnings 7 and 11 in
        docs/configuration.md.
    """

    partition_id: str = attrs.field(validator=is_a(str))
    """The id of the child; pass it to `PhysicalPartition`."""
    parents: tuple[str, ...] = attrs.field(validator=each_is(str))
    """The ids of all parents, with the ended partition among them; read the child after all of them."""
    continuation_token: str = attrs.field(repr=shorten, validator=is_a(str))
    """The token from which to read the child. A start from the child's id alone could miss changes."""


@frozen
class ChangeFeedPage:
    """Events, and the position from which to resume after them.

    Events of one partition are in the service's order.
    """

    events: tuple[ChangeEvent, ...] = attrs.field(repr=_count)
    """The changes; possibly none."""
    continuation_token: str = attrs.field(repr=shorten)
    """The position to resume from; never None. Store it after each page, also after an empty one: it moves
    with the service's position, and the stored position of an idle feed would otherwise expire. With many
    partitions it has several kilobytes, so a `varchar(255)` is too small for it."""
    idle: bool = False
    """True only if every active partition has answered that there is nothing more for now. An empty page need
    not be idle, for example if the call has left out partitions that are not worth asking yet
    (`OperationOptions.ask_all`)."""
    partition_retired: bool = False
    """True if the partition has ended and all its changes are delivered; only for a `PhysicalPartition`
    without descendants. Another read from this page's token gives the same answer."""
    child_partitions: tuple[ChildPartition, ...] = ()
    """The partitions to read after the ended partition."""
    notices: tuple[Notice, ...] = ()
    """What happened besides changes of documents. A notice comes after its partition's last event on this
    page and before its first event on a later one. Events of partitions that the feed begins to read because
    of a notice come later too: a page with a `Gap` has no events of the partitions that replace the lost one.
    A page that was read from a `skip_token` has only the `RecordSkipped` notice. A read from any earlier
    token delivers the notices again, also after a restart; a read from this page's own token does not.
    """
    diagnostics: OperationDiagnostics = attrs.field(factory=OperationDiagnostics)
    """Measurements of the call, such as its cost and lag."""
    resumed_from: str | None = attrs.field(default=None, repr=shorten)
    """The token after which the page was read. None if the feed has delivered no event before this page: on
    its first page, and on each page after it up to and including the first one with events. A sink creates
    its table only on such a page, because the events before a later page do not come again.
    """
    poll_after_seconds: float = 0.0
    """How many seconds to wait before the next call with `OperationOptions(ask_all=False)`, because hardly
    any partition is worth asking before. 0 if it is worth calling again at once."""

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Return the events as an Arrow batch of `multiclouddb_api.arrow.EVENT_SCHEMA` (extra `arrow`).

        The columns are `event_id`, `type`, `key`, `timestamp`, `new_item_state`, `old_item_state`,
        `order_key`, `by_expiry`, `backfilled`, `database`, `collection` and `partition_id`. Keys and
        documents are JSON text on every database, also on Spanner, because an event has values but not the
        types of columns; `decode_json` returns the exact values.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if pyarrow is missing; the message has the command to install
                it.
        """
        try:
            from multiclouddb_api.arrow import events_to_arrow
        except ImportError as error:
            raise _missing("to_arrow", "multiclouddb[arrow]", error) from error
        return events_to_arrow(self.events)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the events as a pandas frame with the columns of `to_arrow` (extra `pandas`).

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if pandas or pyarrow is missing.
        """
        try:
            import pandas  # noqa: F401 - pyarrow needs it
        except ImportError as error:
            raise _missing("to_pandas", "multiclouddb[pandas]", error) from error
        return self.to_arrow().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """Return the events as a Polars frame with the columns of `to_arrow` (extra `polars`).

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if Polars or pyarrow is missing.
        """
        try:
            import polars
        except ImportError as error:
            raise _missing("to_polars", "multiclouddb[polars]", error) from error
        return polars.DataFrame(self.to_arrow())

    def _repr_html_(self) -> str:
        facts = [f"{len(self.events)} events"]
        if self.idle:
            facts.append("idle")
        facts += [type(notice).__name__ for notice in self.notices]
        columns = ["type", "key", "timestamp", "new_item_state"]
        rows = [
            (each.type.value, dict(each.key), rfc3339(each.timestamp), each.new_item_state)
            for each in self.events
        ]
        return html_table(", ".join(facts), columns, rows)


def _missing(method: str, requirement: str, error: ImportError) -> MulticloudDbError:
    return MulticloudDbError(
        f'page.{method}: cannot import {error.name or "it"}; run: pip install "{requirement}"',
        ErrorDetail(ErrorCategory.INVALID_REQUEST, reason=ErrorReason.NOT_INSTALLED),
    )
