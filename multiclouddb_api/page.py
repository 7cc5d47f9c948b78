"""Defines the result of one read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

import attrs
from attrs import frozen

from multiclouddb_api.errors import ErrorCategory, ErrorDetail, MulticloudDbError
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

    If `new_name` is the collection that the feed reads, another collection has taken its place. The documents
    that it already contained have no changes, so read them with a `Snapshot()`.
    """

    name: str = attrs.field(validator=is_a(str))
    """The old name."""
    new_name: str = attrs.field(validator=is_a(str))
    """The new name of the collection."""


@frozen
class Invalidated:
    """The service ended the feed because the resource that it follows no longer exists."""

    reason: str = attrs.field(validator=is_a(str))
    """The reason on one line, in the service's own words or in the library's."""


@frozen
class FeedEnded:
    """No more changes will follow this token."""

    reason: str = attrs.field(validator=is_a(str))
    """The reason why the feed ended, on one line."""


@frozen
class Gap:
    """Changes were lost because they were older than the retention.

    The read continues with the oldest remaining change (`SkipToOldest`) or with a new snapshot
    (`Resnapshot`).

    Portability:
        A gap can occur on every database; the service decides how soon changes expire. See warnings 3 and
        10 in docs/configuration.md.
    """

    partition_id: str = attrs.field(validator=is_a(str))
    """The partition whose position had expired."""
    lost_from: str = attrs.field(validator=is_a(str))
    """The position that was lost, as readable text."""
    resumed_at: str = attrs.field(validator=is_a(str))
    """The position at which reading continued, as readable text."""


@frozen
class RecordSkipped:
    """A record that could not be decoded was skipped with a `skip_token`."""

    partition_id: str = attrs.field(validator=is_a(str))
    """The partition that contains the skipped record."""
    position: str = attrs.field(validator=is_a(str))
    """The position of the skipped record, as readable text."""


@frozen
class PartitionFoundLate:
    """The service listed a partition late that the feed did not cover; the feed now reads or names it.

    An audit found it after the library had stopped looking for more children of its parent, or it descends
    from a partition that was lost to retention; then its first changes may be lost too. Its events are
    delivered after newer events of other partitions, and may be older than a watermark that was already
    reported.

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
    """A snapshot has begun.

    All later changes will be delivered, and the next pages contain the rows of the snapshot. Store the token
    of the page with this notice before you read on. Only a read from this token or a later one continues the
    snapshot; any other read starts a new snapshot.

    Portability:
        Check `Capability.CHANGE_FEED_SNAPSHOT`. On DynamoDB, some changes that are older than the
        snapshot also have an `order_key` above the floor. See warning 23 in docs/configuration.md.
    """

    floor: str = attrs.field(validator=is_a(str))
    """The `order_key` of every row of the snapshot, which is called its floor. The floor is greater than the
    `order_key` of every change that the rows certainly include, and less than the `order_key` of every change
    after this page."""
    partition_id: str = attrs.field(validator=is_a(str))
    """The id of the snapshot; the matching `BackfillDone` has the same id."""
    whole: bool = attrs.field(default=True, validator=is_a(bool))
    """True if the snapshot delivers every row of the collection, so that a target can delete all other rows
    at `BackfillDone`. False for one segment of a plan, for one partition or partition key, for a snapshot
    without changes, and for a backfill from `AtTime`."""


@frozen
class BackfillDone:
    """The backfill is complete; all later events are real changes.

    Nothing on the page comes after this notice. With `SnapshotOrder.INTERLEAVED` or `AUTO`, keep deleted keys
    until you have stored the token of this page or of a later one.

    Portability:
        This notice comes with `Snapshot()` on databases with `Capability.CHANGE_FEED_SNAPSHOT`, and with the
        opt-in backfill of Cosmos DB. See warnings 8 and 23 in docs/configuration.md.
    """

    partition_id: str = attrs.field(validator=is_a(str))
    """With `Snapshot()`, the id of the snapshot, as in `SnapshotStarted`. With the opt-in backfill of Cosmos
    DB, the partition whose backfill is complete."""
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
    """Measurements of one call; what the service does not report is None."""

    watermark: datetime | None = None
    """The watermark in UTC: no later event is older than this time. It is the minimum over all partitions in
    the token, including children that wait for their parents. The watermark never goes back."""
    read_until: datetime | None = None
    """Every change that was committed before this time has been returned, on this page or an earlier one. The
    time comes from the service's clock, is in UTC, and never goes back. None during the scan of a
    `Snapshot()`, or if the service does not report enough to compute it.
    """
    read_until_estimated: bool = False
    """True if `read_until` is likely, but not proven, because the service does not report whether records
    follow (DynamoDB)."""
    partitions_read_until: Mapping[str, datetime] = attrs.field(factory=dict, hash=False)
    """Maps the id of each partition in the token to its own `read_until`, if that is known."""
    partitions_watermark: Mapping[str, datetime] = attrs.field(factory=dict, hash=False)
    """Maps the id of each partition in the token to its own watermark in UTC, if that is known."""
    partitions_headroom_seconds: Mapping[str, float] = attrs.field(factory=dict, hash=False)
    """Maps the id of each partition that has answered in this call to the number of seconds for which the
    service will still keep its position, if the service reports enough to compute it."""
    lag_seconds: float | None = None
    """How far `read_until` is behind the service's clock. It is an estimate if `read_until_estimated` is
    true.
    """
    retention_headroom_seconds: float | None = None
    """How long the service will still keep the oldest position in the token: the shortest time that the
    service reported during this call."""
    requests: int = 0
    """The number of requests sent to the service."""
    native_charge: float | None = None
    """The cost that the service reported, in the service's own unit (for example request units or read
    units)."""
    retries: int = 0
    """The number of times that a request was repeated after a failure."""
    open_watches: int = 0
    """The number of ended partitions whose service may still name more children. `idle` may be true in the
    meantime. The events of a child that is found later may be older than the watermark.
    """
    found_late: int = 0
    """The number of partitions that were found late during this call. For each of them, the page contains a
    `PartitionFoundLate` notice.
    """
    partition_errors: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    """Maps the id of each partition that failed during this call to the failure. The position of a failed
    partition does not move."""
    elapsed_seconds: float = 0.0
    """The duration of the call."""
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
    """The ids of all parents, including the ended partition; read the child only after all of them."""
    continuation_token: str = attrs.field(repr=shorten, validator=is_a(str))
    """The token from which to read the child. A read that starts from only the child's id could miss
    changes."""


@frozen
class ChangeFeedPage:
    """Contains events and the position from which to resume.

    Within each partition, the events are in the service's order.
    """

    events: tuple[ChangeEvent, ...] = attrs.field(repr=_count)
    """The changes; the tuple may be empty."""
    continuation_token: str = attrs.field(repr=shorten)
    """The position to resume from; never None. It moves whenever the service's position moves, even on empty
    pages. Store it after each page; otherwise the position of an idle feed will expire. With many partitions
    it may be several kilobytes long, so store it as text or blob, never as `varchar(255)`."""
    idle: bool = False
    """True only if the service reported for every active partition that there are no more changes at present.
    A page may be empty without being idle, for example if the call has left out partitions that are not worth
    asking yet (`OperationOptions.ask_all`)."""
    partition_retired: bool = False
    """True if the partition has ended and all its changes have been delivered; only with a
    `PhysicalPartition` without descendants. Another read from the same token returns the same result."""
    child_partitions: tuple[ChildPartition, ...] = ()
    """The partitions to read after the ended partition."""
    notices: tuple[Notice, ...] = ()
    """Facts other than changes to documents. Each notice has a position in the order of its partition: after
    the partition's last event on this page, and before the partition's first event on a later page. If a
    notice makes the engine read other partitions, their events come on later pages: for example, a page with
    a `Gap` contains no events of the partitions that replace the lost one. A read from a `skip_token` reads
    no events: its page contains only the `RecordSkipped` notice. A read from any token before this page
    delivers the notices again, even after a restart; a read from this page's token does not.
    """
    diagnostics: OperationDiagnostics = attrs.field(factory=OperationDiagnostics)
    """Measurements of the call, such as its cost and lag."""
    resumed_from: str | None = attrs.field(default=None, repr=shorten)
    """The token after which the page was read; None as long as this feed has delivered no event before it: on
    its first page, and on the pages after it up to the first one with events. A sink makes its table only
    then, because the events before a later page are not delivered again.
    """
    poll_after_seconds: float = 0.0
    """In how many seconds to call again with `OperationOptions(ask_all=False)`: before, nearly no partition
    is worth asking. 0, the default, if it is worth calling again at once."""

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Return the events as an Arrow batch of `multiclouddb_api.arrow.EVENT_SCHEMA` (extra `arrow`).

        The columns are `event_id`, `type`, `key`, `timestamp`, `new_item_state`, `old_item_state`,
        `order_key`, `by_expiry`, `backfilled`, `database`, `collection` and `partition_id`. Keys and
        documents are JSON text on every database, even on Spanner, because an event contains values and not
        the types of columns. `decode_json` returns the exact values.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if pyarrow is missing; the message names the extra.
        """
        try:
            from multiclouddb_api.arrow import events_to_arrow
        except ImportError as error:
            raise _missing("to_arrow", "multiclouddb[arrow]", error) from error
        return events_to_arrow(self.events)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the events as a pandas frame with the columns of `to_arrow` (extra `pandas`).

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if pandas is missing; the message names the extra.
        """
        try:
            import pandas  # noqa: F401 - pyarrow needs it
        except ImportError as error:
            raise _missing("to_pandas", "multiclouddb[pandas]", error) from error
        return self.to_arrow().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """Return the events as a Polars frame with the columns of `to_arrow` (extra `polars`).

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if Polars is missing; the message names the extra.
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
        ErrorDetail(ErrorCategory.INVALID_REQUEST),
    )
