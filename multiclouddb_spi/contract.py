"""Defines the contract between the engine and a provider; the author of a provider implements it.

A provider implements the operations of its service on one partition. The engine does the rest for all of
them: fan-out, lineage, page limits, buffers, pacing, retries and tokens. Read `providers/embedded` together
with this page, then run the conformance suite until it passes.

A *record* is one change, which becomes one event. If the service sends several changes together, as Spanner
does in a data change record, each of them is a record here and counts as one in all limits. There is a
position between any two records, because a page may end there.

These rules apply to every method in this module:

- *What is optional.* A method for an optional feature has a default implementation, which is right for a
  service without it. A larger feature is a small protocol, `Supports…`, and the engine uses it only if the
  provider implements the protocol.
- *Who retries.* The engine does, so a provider neither retries calls nor wraps or catches the vendor's
  exceptions: the engine later passes each exception to `Provider.classify`, which uses only what the
  exception contains. There is one special case. If the meaning of an error depends on the call, the provider
  catches the error and raises `ProviderFault(Fault(…)) from error`: the same code may mean an expired
  position in a read, and an invalid time in a start. A provider also raises `ProviderFault` for problems that
  it finds itself.
- *Threads.* Several threads may call a `Provider` or a `Feed` at the same time. A `Reader` is called by one
  thread at a time, though not always the same; only `cancel` may be called by any thread at any time.
- *Time.* Every method with a `deadline` returns or raises by that time, as exactly as the vendor's client
  allows; only `Reader.fetch` may finish an answer later. The engine stops waiting at the deadline in any
  case. `multiclouddb_spi.time_limits` limits the time for each answer.
- *Ownership.* Arguments are immutable and may be kept. A provider does not change an object after returning
  it.
- *After close.* Only `close` and `cancel` may still be called, and then they do nothing.

The engine follows partitions through splits, merges and retention, and does so rightly for every service that
keeps three promises. The suite refuses a provider that breaks one of them:

- **C1. A child with several parents is named whole.** The end of each parent names all its children with all
  their parents. Each parent also gives a start of the child that is at or before the child's first record,
  because another parent may be lost before it names the child. A feed that may name or list a partition late
  (`Feed.names_late`) has no such child: each of its partitions has one parent at most. *DynamoDB* names
  children late and lists shards late, and a shard has at most one parent. *Spanner* puts every child and all
  its parents into the record that ends a partition. The *embedded* store reads a partition's end and its
  children in one transaction. *Cosmos DB* merges partitions, but a partition of a feed is a range of keys
  here, and a range never has two parents. *MongoDB* has one partition.
- **C2. Retention takes ancestors first.** If a partition no longer exists, none of its ancestors exists.
  *DynamoDB* keeps records for 24 hours and closes a shard before its child has records; a shard is gone only
  if the service refuses this shard. *Spanner* forgets a partition when its end is older than the retention.
  *Embedded*: gone means closed and trimmed to its end, also for a partition without records. *Cosmos DB* and
  *MongoDB*: a range, or the one partition, never goes away.
- **C3. If partitions merge, each position has a moment** (`Feed.moment`). *Spanner* uses the commit time, and
  its heartbeats move an idle partition. The *embedded* store uses the sequence number of the whole store. The
  others never have a child with two parents, so nothing waits for a moment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import ClassVar, TypeAlias, final

import attrs
from attrs import frozen

from multiclouddb_api import (
    AtTime,
    Beginning,
    CapabilitySet,
    EntireCollection,
    FeedScope,
    NewItemStateMode,
    Notice,
    Now,
    OldItemStateMode,
    ProviderOptions,
    ResourceAddress,
)
from multiclouddb_spi.batch import Batch
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.faults import Fault, unwritten
from multiclouddb_spi.partition import encode_partition_id
from multiclouddb_spi.segment import Segment
from multiclouddb_spi.time_limits import ANSWER_SECONDS, SILENT_SECONDS, Deadline

FeedStart: TypeAlias = Beginning | Now | AtTime
"""The start positions that a provider resolves; the engine itself resolves continuation tokens."""


@attrs.frozen(cache_hash=True)
class FeedSpec:
    """The properties of a feed; two equal specs share one `Feed`.

    Attributes:
        address: The resource.
        scope: The part of the database or collection to read. For a `PhysicalPartition`, this is
            `EntireCollection`, because the engine itself limits the read to one partition, with or without
            its descendants.
        new_item_state_mode: Whether events contain the new document. `open_feed` checks that the resource is
            set up for this mode.
        old_item_state_mode: Whether events contain the old document; `open_feed` checks this in the same way.
        include_native: True if events include the vendor's own record.
        options: The provider's own options, an instance of `Provider.options_type`; never None if the
            provider has an options type.
    """

    address: ResourceAddress
    scope: FeedScope = attrs.field(factory=EntireCollection)
    new_item_state_mode: NewItemStateMode = NewItemStateMode.INCLUDE_IF_AVAILABLE
    old_item_state_mode: OldItemStateMode = OldItemStateMode.OMIT
    include_native: bool = False
    options: ProviderOptions | None = None

    @property
    def with_new(self) -> bool:
        """True if events include the new document, when such a document exists."""
        return self.new_item_state_mode is not NewItemStateMode.OMIT

    @property
    def with_old(self) -> bool:
        """True if events include the old document, when such a document exists."""
        return self.old_item_state_mode is not OldItemStateMode.OMIT


@frozen
class FeedIdentity:
    """The resource that a feed reads; it is part of every token and partition id.

    Attributes:
        provider_id: The provider's id.
        address: The resource.
        incarnation: The service's own id of this resource (for example, a stream ARN, a container rid or a
            collection UUID), which changes when the resource is recreated under the same name. None if there
            is no such id; then only the service itself can refuse a position of the deleted resource. If a
            copy of the resource in another deployment would have the same id, `@` and the id of the
            deployment are added, if the latter is known; the feed then overrides `Feed.resumes`.
    """

    provider_id: str
    address: ResourceAddress
    incarnation: str | None = None


@frozen
class Seed:
    """A partition to read, and the position at which the read starts.

    Attributes:
        partition_id: The service's own id of the partition; it is unique in the feed.
        parents: Parent partitions that must be read to their end first. A parent that is not a seed in the
            same answer is treated as read to its end.
        cursor: The durable position at which reading starts. It must stay valid and keep its meaning in other
            processes and after years of idle polling, as long as the service retains it.
        ended: True for a partition that ended before the start position, and that may have more children than
            the seeds that name it as a parent. In that case, `cursor` is the end of the partition, and
            nothing is read from it. Only for a feed with `names_late`.
    """

    partition_id: str
    parents: tuple[str, ...]
    cursor: Cursor
    ended: bool = False


class PartitionState(Enum):
    """Whether a partition still accepts writes."""

    OPEN = "open"
    CLOSED = "closed"


@frozen
class Partition:
    """One partition that the service has.

    Attributes:
        partition_id: The service's own id of the partition.
        parents: The parents of the partition, including those that no longer exist; empty if the service does
            not name them.
        state: Open or closed.
        oldest: The position before the oldest record that can be read. A partition whose position was lost
            continues there, and one that a search has found starts there. None if the engine did not ask for
            it, or if the provider had no reason to look for it.
    """

    partition_id: str
    parents: tuple[str, ...]
    state: PartitionState
    oldest: Cursor = None


@frozen
class Survey:
    """What is known of a service's partitions at one time (`Feed.survey`).

    A partition that is neither `present` nor `gone` is not known, so the engine decides nothing about it.

    Attributes:
        present: The partitions that exist.
        gone: Those of the asked partitions and their parents that no longer exist, each with its parents, or
            with None if the service no longer reports them.
        heirs: The successors of a lost partition, for a service that does not list the parents of its
            partitions: if an asked partition is gone, all partitions that existed at the oldest readable
            moment, each with its position at that moment. None if the parents in `present` suffice.
        final: Asked ended partitions that will have no more children, each with a notice for the application
            or None. After the whole stream has ended, a listing has here every partition without children.
        answered: The asked ended partitions whose known children are all in `present`, because a provider
            that limits its calls may not have asked for the children of all partitions. None means all.
    """

    present: tuple[Partition, ...] = ()
    gone: Mapping[str, tuple[str, ...] | None] = attrs.field(factory=dict)
    heirs: tuple[Seed, ...] | None = None
    final: Mapping[str, Notice | None] = attrs.field(factory=dict)
    answered: Collection[str] | None = None


@frozen
class Position:
    """A cursor in readable form.

    Attributes:
        text: Text for people, such as `"sequence 4711"`, without any content of a document.
        time: No event after this position is older than this time; None if the cursor does not contain a
            time.
    """

    text: str
    time: datetime | None


class Reader(ABC):
    """Reads one partition forward from the position that was passed to `Feed.open`."""

    def longest_fetch(self) -> float:
        """Return the number of seconds after which the engine gives up a running fetch.

        A fetch may outlast its call: the next call at the same position then gets the answer, so that nothing
        is sent twice over a slow network. Only after this time, the engine cancels the fetch, and the next
        call starts another one. Return a larger number if the service needs longer for one answer.
        """
        return ANSWER_SECONDS + SILENT_SECONDS

    @abstractmethod
    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """Fetch the next records.

        Args:
            max_records: The hard limit for `len(batch)`; at least 1.
            max_bytes: The target for `batch.nbytes`; a batch may exceed it by one record, or by more if the
                service accepts no size limit.
            wait: How many seconds the fetch may block if there are no records; 0 means that the fetch must
                return at once.
            deadline: The time limit of the call. After it, a fetch sends no further request, but still
                receives the answer to its last one.

        Returns:
            A batch, which is empty if there are no records. Once its outcome is not `Continue`, every further
            call returns an empty batch with the same outcome.

        Raises:
            RecordFault: Raised with index 0 if the first record at this position cannot be fetched.
            Exception: Any error from the vendor's client. The engine then closes this reader and opens
                another at the last position, so a reader does not have to work after an error.
        """

    def fetch_at_once(self, max_records: int, max_bytes: int) -> Batch | None:
        """Fetch the next records in the caller's own thread, if that takes only milliseconds.

        The engine calls it only if `Feed.reads_at_once` is true, because the way to another thread takes
        longer than the answer of a store in the same process.

        Args:
            max_records: The hard limit for `len(batch)`; at least 1.
            max_bytes: The target for `batch.nbytes`, as for `fetch`.

        Returns:
            A batch, which is empty if there are no records. None, the default, if the answer would take
            longer than 50 milliseconds; the engine then calls `fetch` in another thread.

        Raises:
            Exception: Any error. The engine closes this reader, opens another one and calls `fetch` of that.
        """
        return None

    @abstractmethod
    def cancel(self) -> None:
        """Make a `fetch` in another thread end within a second; may be called more than once.

        The fetch may end with any exception or with a batch. If the vendor's client cannot be interrupted,
        write the longest delay into the docstring of the overriding method.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the reader's resources; may be called more than once, and never raises.

        It is never called during a `fetch`.
        """


class Feed(ABC):
    """One opened change feed; keeping it open is cheap, and all readers with the same spec share it.

    It is dropped without being closed, so keep what must be freed in a reader or in the provider.
    """

    spec: FeedSpec
    identity: FeedIdentity
    names_late: bool = False
    """True if a partition, or the children of an ended one, may be named or listed late; then none has
    several parents (C1)."""
    lists_parents: bool = True
    """True if a listing names the parents of each partition, so that a token can be compared with it."""
    waits_at_service: bool = False
    """True if the service itself delays its answer to a fetch with a `wait` until there is a record, so that
    a reader that waits all the time sends at most a few requests a second."""

    @property
    def reads_at_once(self) -> bool:
        """True if the engine calls `Reader.fetch_at_once`, one reader after the other and nothing ahead.

        False by default; it may change while the feed is open.
        """
        return False

    @final
    def public_id(self, partition_id: str) -> str:
        """Return the id that applications see for the service's `partition_id`."""
        return encode_partition_id(
            self.identity.provider_id, self.identity.address, self.identity.incarnation, partition_id
        )

    def resumes(self, incarnation: str | None) -> bool:
        """Return whether this feed can resume a token of this `incarnation`; by default, only its own."""
        return incarnation == self.identity.incarnation

    def for_one_call(self) -> Feed:
        """Return a feed for all attempts of one call, so that an attempt can reuse results of an earlier one.

        The engine resolves a start or lists partitions with it, and discards it after the call, because its
        results are valid only that long. The default is the feed itself, which reuses nothing.
        """
        return self

    def longest_wait(self) -> float:
        """Return how many seconds one fetch may wait for new records; 1 by default.

        A longer wait means fewer calls, but occupies a thread for longer.
        """
        return 1.0

    def visible_after(self) -> float | None:
        """Return how many seconds after its own time, at most, a change is visible to every read.

        After a read with `caught_up=True`, the engine concludes that every change that is older than this
        number of seconds, by the service's `clock`, has been returned. The number includes the precision of
        the times of changes, and is 10 by default. None if there is no such limit; then only
        `Batch.watermark` shows how far a partition was read.
        """
        return 10.0

    @abstractmethod
    def clock(self, deadline: Deadline) -> datetime | None:
        """Return the service's own time, with a time zone, by the `deadline`; None if it reports none.

        The engine compares it with `Position.time`, so both must come from the clock of the events.
        """

    @abstractmethod
    def start(self, position: FeedStart, partition_id: str | None, deadline: Deadline) -> list[Seed]:
        """Convert a start position into positions of partitions, which are durable as soon as it returns.

        For `Beginning`, these are all partitions that still have records; a closed one comes together with
        its children, whose seeds have it in `parents`. For `Now` and `AtTime`, they are all partitions that
        are open at that time, and for `AtTime` also their descendants.

        Args:
            position: The start position. The engine has already compared `AtTime` with `clock`.
            partition_id: The only partition to start, or None for the whole scope. If this partition is
                closed at the start position but still listed, its seed points to its end.
            deadline: The time limit.

        Returns:
            Seeds that cover the scope: every later partition descends from one of them. Each parent of a seed
            either is a seed in the same list or no longer exists. Empty if `partition_id` is unknown.

        Raises:
            ProviderFault: `CHECKPOINT_EXPIRED` for an `AtTime` that is older than the retention.
        """

    @abstractmethod
    def open(self, partition_id: str, cursor: Cursor, until: Cursor | None = None) -> Reader:
        """Open a reader of one partition, without I/O.

        Args:
            partition_id: The service's own id of the partition.
            cursor: The position after which to read.
            until: The position after which to stop with the outcome `Reached`, even if the partition ends
                there. Each read up to this position must return the same events, also after later splits,
                merges and writes.

        Raises:
            InvalidCursor: Raised if this provider cannot have made the cursor.
        """

    def open_segment(self, segment: Segment) -> Reader:
        """Open a reader of a segment of a scan, without I/O; only for a feed with `SupportsSnapshot`.

        The cursors of its batches are those of the segment (`Segment.at`, `Segment.cursor`).

        Args:
            segment: The segment, of which everything up to `after` was read.

        Raises:
            InvalidCursor: Raised if this provider cannot have made the `name`, `after` or `last` of the
                segment, or the `mark` of its scan.
        """
        raise unwritten(type(self), "open_segment", "how to read a part of its collection")

    @abstractmethod
    def survey(
        self,
        asked: Mapping[str, Cursor],
        deadline: Deadline,
        *,
        expired: Collection[str] = frozenset(),
        since: datetime | None = None,
        whole: bool = True,
    ) -> Survey:
        """Return which partitions exist, and which of the asked partitions no longer do.

        The engine decides what follows from it: what to read, what is lost and what was missed. It asks at
        most once per call, (1) after a read was refused because its position is too old, (2) some time after
        partitions have ended, and (3) when an application lists the partitions.

        Args:
            asked: Maps partitions of the engine to their positions; empty for a listing. The position is None
                if the partition had already been lost.
            deadline: The time limit.
            expired: Those of `asked` whose position the service has just refused.
            since: Changes before this time are not needed; None if no bound is known.
            whole: False if all asked partitions were read to their ends, and only their children are wanted.
                A provider may then leave out every other partition.

        Returns:
            The current state of the service, perhaps in part, but never an older state. A partition is `gone`
            only if the service itself has answered so, never because a listing lacks it; its ancestors are
            gone then too (C2). With the scope of one partition key, only the partitions that may contain it.
        """

    def can_audit_early(self) -> bool:
        """Return whether the service's limits allow an early survey of all partitions; no I/O.

        The engine makes such a survey every `coverage_audit_seconds` anyway. With True, it makes the next one
        after a tenth of this time if a partition has left the token.
        """
        return True

    def headroom(self, cursor: Cursor, now: datetime) -> float | None:
        """Return the number of seconds until `cursor` expires, given the service's time `now`; pure.

        None if the cursor does not contain a time, or if no change after it can be lost. The engine also
        calls it for waiting partitions.
        """
        return None

    def join(self, child_id: str, cursors: Sequence[Cursor]) -> Cursor:
        """Return the start position of a child, from the cursors of its seed and of its parents; pure.

        The default is the first of them in the order of `compare`, so that no event is left out; it raises an
        error if `compare` returns None.

        Args:
            child_id: The child.
            cursors: The distinct cursors, usually exactly one.
        """
        for cursor in cursors:
            if all(self.compare(cursor, other) in (-1, 0) for other in cursors if other is not cursor):
                return cursor
        raise unwritten(type(self), "join", f"where {child_id} starts")

    def without_hints(self, cursor: Cursor) -> Cursor:
        """Return `cursor` without its hints, which are parts that only save calls; pure.

        Two cursors can share one reader if they are equal without their hints.
        """
        return cursor

    @abstractmethod
    def compare(self, a: Cursor, b: Cursor) -> int | None:
        """Return -1, 0 or 1 if `a` lies before, at or after `b` in one partition; 0 for equal cursors; pure.

        None means that the cursors do not show which of them comes first. The engine then assumes that there
        are events left to read, so None never ends a partition, omits an event or skips a range.

        Raises:
            InvalidCursor: Raised if this provider cannot have made one of the cursors.
        """

    def moment(self, cursor: Cursor) -> int | None:
        """Return the moment of a position, from the service's own clock or sequence; pure.

        No record after the position has a smaller moment, and the position of an idle partition moves on
        (C3). None, the default, suits a service whose partitions never merge: there, nothing waits for it.

        Args:
            cursor: The position.

        Raises:
            InvalidCursor: Raised if this provider cannot have made the cursor.
        """
        return None

    @abstractmethod
    def describe(self, cursor: Cursor) -> Position:
        """Describe `cursor` as text and time; pure.

        Raises:
            InvalidCursor: Raised if this provider cannot have made the cursor.
        """


class Provider(ABC):
    """One connected database; a `ProviderPlugin` makes it, and one engine uses it.

    Attributes:
        provider_id: The id in the entry point, for example `"dynamo"`.
        options_type: The provider's options class, or None if it has no options.
        page_records: The provider's own page size, which is used if `max_page_size` is 0.
    """

    provider_id: ClassVar[str]
    options_type: ClassVar[type[ProviderOptions] | None] = None
    page_records: int = 1000

    @abstractmethod
    def capabilities(self) -> CapabilitySet:
        """Return what the service can do if it is set up as documented; no I/O."""

    def complete(self, options: ProviderOptions) -> ProviderOptions:
        """Return a request's options, completed with the connection's defaults (none by default); pure.

        Args:
            options: An instance of `options_type`, as the caller made it.
        """
        return options

    def full_address(self, address: ResourceAddress) -> ResourceAddress:
        """Return an address completed with the names that a caller may leave out (none by default); pure.

        Tokens, partition ids and the marks of tables contain it, so that both spellings are one resource.

        Args:
            address: The address, as the caller made it.
        """
        return address

    @abstractmethod
    def open_feed(self, spec: FeedSpec, deadline: Deadline) -> Feed:
        """Open a feed, and check by the `deadline` that the resource is set up for `spec`.

        Raises:
            ProviderFault: `NOT_FOUND` if the resource does not exist. If the resource is not set up,
                `INVALID_REQUEST` or `UNSUPPORTED_CAPABILITY`, with the name of the missing setting.
        """

    @abstractmethod
    def classify(self, error: Exception) -> Fault:
        """Classify a vendor's `error`; pure, and never raises, even for unknown exceptions."""

    @abstractmethod
    def close(self) -> None:
        """Cancel every reader, and free the vendor's client if the library made it.

        Any thread may call it, and more than once.
        """
