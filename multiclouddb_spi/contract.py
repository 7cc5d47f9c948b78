"""The contract between the engine and a provider: what a provider author implements.

A provider says what its service can do with one partition. The engine does the rest for all providers:
fan-out, lineage, cutting pages, buffers, pacing, retries, tokens. Read `providers/embedded` together with
this page, then run the conformance suite until it is green.

A *record* is one change and gives one event. Where the service sends several changes as one (a data change
record of Spanner has many), each of them is a record here. All counts and bounds count these records. There
is a position between any two of them, because a page may end there.

Rules that hold for every method here:

- *What is optional.* A method that asks a question has a default: the answer of a service without that
  feature. What only some services can do is a small protocol, `Supports…`. Without it the engine uses another
  way.
- *Who retries.* The engine. A provider neither retries nor wraps. It does not catch the vendor's exception;
  `Provider.classify`, which sees only the error, classifies it later. It raises `ProviderFault` for what it
  found out itself, and for an error whose meaning depends on the call (the same code of the service is an
  expired position in a read and a wrong moment in a start). It catches such an error where the call is known,
  and raises `ProviderFault(Fault(…)) from error`: then `classify` is not asked.
- *Threads.* A `Provider` and a `Feed` are called from several threads at once; one `Reader` from one thread
  at a time, not always the same one, except `cancel`, which any thread may call.
- *Time.* Every method with a `deadline` returns or raises by then as exactly as the vendor's client allows.
  The engine stops waiting at the deadline, whatever the provider does.
- *Ownership.* Arguments are immutable and may be kept. What is returned is not changed afterwards.
- *After close.* Only `close` and `cancel` are still called, and then they do nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeAlias, final, runtime_checkable

import attrs

from multiclouddb_api import (
    AtTime,
    Beginning,
    CapabilitySet,
    EntireCollection,
    FeedScope,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    ProviderOptions,
    ResourceAddress,
)
from multiclouddb_spi.batch import Batch, Outcome
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.faults import Fault, unwritten
from multiclouddb_spi.partition import encode_partition_id

__all__ = [
    "Feed",
    "FeedIdentity",
    "FeedSpec",
    "FeedStart",
    "Head",
    "Partition",
    "PartitionState",
    "Position",
    "Provider",
    "Reader",
    "Seed",
    "SupportsCommands",
    "SupportsHeads",
    "Tracked",
]

FeedStart: TypeAlias = Beginning | Now | AtTime
"""A start that the provider resolves; continuation tokens are the engine's."""


@attrs.frozen
class FeedSpec:
    """The properties of a feed; two equal specs share one `Feed`.

    Attributes:
        address: The resource.
        scope: How much of it. `PhysicalPartition` arrives as `EntireCollection`: the engine itself
            limits reading to one partition, alone or with its descendants.
        new_item_state_mode: Whether events need the new document; decides what `open_feed` checks.
        old_item_state_mode: The same for the old document.
        include_native: True when events carry the vendor's own record.
        options: The provider's own options, an instance of `Provider.options_type`; never None
            where the provider has an options type.
    """

    address: ResourceAddress
    scope: FeedScope = attrs.field(factory=EntireCollection)
    new_item_state_mode: NewItemStateMode = NewItemStateMode.INCLUDE_IF_AVAILABLE
    old_item_state_mode: OldItemStateMode = OldItemStateMode.OMIT
    include_native: bool = False
    options: ProviderOptions | None = None

    @property
    def with_new(self) -> bool:
        """True when events have the new document where there is one."""
        return self.new_item_state_mode is not NewItemStateMode.OMIT

    @property
    def with_old(self) -> bool:
        """True when events have the old document where there is one."""
        return self.old_item_state_mode is not OldItemStateMode.OMIT


@attrs.frozen
class FeedIdentity:
    """The resource that a feed reads; written into every token and partition id.

    Attributes:
        provider_id: The provider's id.
        address: The resource.
        incarnation: The service's own id of this resource (stream ARN, container rid, collection
            UUID). It differs when the resource was recreated under the same name. None where the service
            has no such id: then only the service itself can refuse a position of the old resource.
    """

    provider_id: str
    address: ResourceAddress
    incarnation: str | None = None


@attrs.frozen
class Seed:
    """A partition to read and where to start in it.

    Attributes:
        partition_id: The service's own id of the partition; unique in the feed.
        parents: Parents that have to be drained first. Ones that are not seeds of the same answer
            count as drained.
        cursor: Where to start. Durable: it must stay valid, and mean the same, in another process
            after years of idle polling, as far as the service's retention allows.
        children: For a partition that ended before the start, so that `cursor` is its end: those of its
            children that are seeds of the same answer. The engine looks for more children and reads nothing.
    """

    partition_id: str
    parents: tuple[str, ...]
    cursor: Cursor
    children: tuple[str, ...] = ()


class PartitionState(Enum):
    """Whether a partition still takes writes."""

    OPEN = "open"
    CLOSED = "closed"


@attrs.frozen
class Partition:
    """One partition as the service lists it.

    Attributes:
        partition_id: The service's own id.
        parents: Its parents, also ones that are no longer listed; empty where the service does not say.
        state: Open or closed.
    """

    partition_id: str
    parents: tuple[str, ...]
    state: PartitionState


@attrs.frozen
class Tracked:
    """A partition that a token holds, as `Feed.uncovered` sees it.

    Attributes:
        partition_id: The service's own id.
        cursors: Its position; for one that waits, the start positions that its parents have given so far.
        parents: The parents that it still waits for; empty unless it waits.
        drained: True when it was read to its end and the engine only looks for its children.
    """

    partition_id: str
    cursors: tuple[Cursor, ...]
    parents: tuple[str, ...] = ()
    drained: bool = False


@attrs.frozen
class Head:
    """A position to read until, found without reading (`SupportsHeads`).

    Attributes:
        cursor: The position; reading until it includes the record at it.
        records: The number of records in between, or None where the service does not say.
        outcome: `Continue`, or how the partition ends at that position.
    """

    cursor: Cursor
    records: int | None
    outcome: Outcome


@attrs.frozen
class Position:
    """A cursor made readable.

    Attributes:
        text: For a person: `"sequence 4711"`. No content of a document.
        time: No event after this position is older; None when the cursor does not say.
    """

    text: str
    time: datetime | None


class Reader(ABC):
    """Reads one partition forward from where it was opened."""

    def outlasts(self) -> bool:
        """Whether a late fetch continues, so that the next call at its position waits for it.

        True for a service that cannot answer faster, so that cancelling loses the answer. By default a late
        fetch is cancelled.
        """
        return False

    @abstractmethod
    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """The next records.

        Args:
            max_records: Hard bound on `len(batch)`, at least 1.
            max_bytes: Target for `batch.nbytes`; a batch may exceed it by one record, or by more
                where the service takes no size.
            wait: Seconds that it may block while there is nothing; 0 = answer at once.
            deadline: The time limit.

        Returns:
            A batch; an empty one when there is nothing. After an outcome other than `Continue` a
            further call returns an empty batch with the same outcome.

        Raises:
            RecordFault: With index 0, when the first record here cannot even be fetched.
            Exception: Whatever the vendor raised. The engine then closes this reader and opens
                another at the last position, so a failed reader need not be usable.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Make a `fetch` that runs in another thread end within a second; idempotent.

        The fetch may end with any exception or with a batch. Where the vendor's client cannot be
        interrupted, the docstring of the override states the bound.
        """

    @abstractmethod
    def close(self) -> None:
        """Free what the reader holds; idempotent, raises nothing. Not called during a `fetch`."""


class Feed(ABC):
    """One opened change feed; cheap to keep, shared by all readers of the same spec."""

    spec: FeedSpec
    identity: FeedIdentity

    @final
    def public_id(self, partition_id: str) -> str:
        """The id that applications see for the service's `partition_id`; call it once per reader."""
        return encode_partition_id(
            self.identity.provider_id, self.identity.address, self.identity.incarnation, partition_id
        )

    def resumes(self, incarnation: str | None) -> bool:
        """Whether this feed can resume a token of this `incarnation`; by default only of its own."""
        return incarnation == self.identity.incarnation

    def for_one_call(self) -> Feed:
        """This feed for all tries of one call: it may keep what one try has learned for the next try.

        The engine asks it for a start or a listing, again after each failure, and drops it when the call
        is over. Its answers are as of that call. The default is the feed itself and keeps nothing.
        """
        return self

    def longest_wait(self) -> float:
        """Seconds that one fetch may wait for news: long ones are fewer calls, and keep a thread busy."""
        return 1.0

    @abstractmethod
    def clock(self, deadline: Deadline) -> datetime | None:
        """The service's own time, with a time zone, before the `deadline`; None where it does not say.

        The engine compares it with `Position.time`: both use the clock of the events.
        """

    @abstractmethod
    def start(self, position: FeedStart, partition_id: str | None, deadline: Deadline) -> list[Seed]:
        """Resolve a start into positions that are durable at once.

        `Beginning` gives every partition that still has records. Closed ones come with their children
        as further seeds, which name their parents. `Now` and `AtTime` give every partition alive then
        (and, for `AtTime`, its descendants).

        Args:
            position: Where to start. The engine has checked `AtTime` against `clock`.
            partition_id: Only this partition, or None for all of the scope. A partition that is closed by
                then, but still listed, gets a seed at its end.
            deadline: The time limit.

        Returns:
            Seeds whose parents are seeds of the same list or gone. Together they cover the scope: every
            partition that comes later descends from them. Empty when `partition_id` is unknown.

        Raises:
            ProviderFault: `CHECKPOINT_EXPIRED` for an `AtTime` older than retention.
        """

    @abstractmethod
    def partitions(self, deadline: Deadline) -> list[Partition]:
        """The partitions of the scope, by the `deadline`: the open ones, and closed ones that are listed.

        For the scope of one partition key these are the partitions that may hold it. The parents of a
        partition may be left out, and a new partition may be listed late. So a partition that is not listed
        need not be gone: `oldest` decides that.
        """

    @abstractmethod
    def open(self, partition_id: str, cursor: Cursor, until: Cursor | None = None) -> Reader:
        """A reader of one partition; no I/O.

        Args:
            partition_id: The service's own id.
            cursor: Read after this.
            until: Stop after this with `Reached`, also where the partition ends there. Reading up to it again
                gives the same events, whatever is split, merged or written later.

        Raises:
            InvalidCursor: This provider cannot have made the cursor.
        """

    def discover(self, awaiting: Mapping[str, Cursor], deadline: Deadline) -> dict[str, Outcome]:
        """Ask once for the children of drained partitions that may have more children than are known.

        The engine asks soon after a partition has ended and then less and less often: when it has
        looked for n seconds, it asks at most about once in the next n seconds. A provider bounds the cost for
        its service: it may leave partitions out of the answer, and then they count as not asked.

        Args:
            awaiting: Partition id → its final cursor; never empty.
            deadline: The time limit.

        Returns:
            For each id that was asked `Drained`, `Ended`, or `Awaiting` while no child is known. A child that
            one answer named may be missing in a later one. An answer must show the service as of now: it must
            not come from memory. The default, for a service without children, raises.
        """
        raise unwritten(type(self), "discover", f"what follows {', '.join(awaiting)}")

    @abstractmethod
    def uncovered(
        self, tracked: Mapping[str, Tracked], since: datetime | None, deadline: Deadline
    ) -> list[Seed] | None:
        """Find open partitions that the token neither holds nor leads to: an audit of a whole collection.

        It uses only the service's answers and the token, and nothing that this process remembers. It compares
        parents (`missed_by_parents`), or key ranges (a range that no partition of the token overlaps), or a
        listing as of a moment up to which every partition of the token has been read. The engine calls it
        after partitions were retired and every ten minutes, at most once a minute.

        Args:
            tracked: Every partition of the token by its id. What descends from one of them is covered.
            since: The feed's start: changes committed earlier are not wanted. None = no bound is known.
            deadline: The time limit.

        Returns:
            Seeds for the partitions that are not covered: parents with their descendants, down to the open
            ones. Seeds whose parents are no seeds of the answer start at once. It never holds a partition
            that was drained, or one that ended before `since`: that one would also name children that began
            before `since`. Empty when everything is covered; None when the service gives no means to find
            out, now or ever.
        """

    def headroom(self, cursor: Cursor, now: datetime) -> float | None:
        """Seconds until `cursor` expires at the service's time `now`; pure.

        Asked for partitions that wait. None where the cursor does not say, or nothing after it can be lost.
        """
        return None

    def join(self, child_id: str, cursors: Sequence[Cursor]) -> Cursor:
        """Where a child starts, from the cursors that its seed and its parents gave; pure.

        Args:
            child_id: The child.
            cursors: Distinct cursors, at least one, usually exactly one. The default takes the first of them
                in the order of `compare`, so that no event is left out. It raises where `compare` gives None.
        """
        for cursor in cursors:
            if all(self.compare(cursor, other) in (-1, 0) for other in cursors if other is not cursor):
                return cursor
        raise unwritten(type(self), "join", f"where {child_id} starts")

    def without_hints(self, cursor: Cursor) -> Cursor:
        """`cursor` without the parts that only save calls; pure.

        One reader serves two cursors whose remaining parts are equal.
        """
        return cursor

    @abstractmethod
    def compare(self, a: Cursor, b: Cursor) -> int | None:
        """-1, 0 or 1 as `a` lies before, at or after `b` in one partition; pure. Equal cursors give 0.

        None: the cursors do not show which lies first. That proves nothing, so the engine always assumes that
        events are left: it reads up to a bound and not past it, stays where it is, or raises. It never ends,
        leaves out or skips anything because of a None. A cursor that this provider cannot have made raises
        `InvalidCursor`.
        """

    @abstractmethod
    def oldest(self, partition_ids: Sequence[str], deadline: Deadline) -> list[Seed]:
        """Where reading of `partition_ids`, whose positions have expired, can resume; over by the `deadline`.

        The engine also asks for parents of a merged child that have not been discovered, to learn whether
        they still can be: it stops waiting for a parent that is neither a seed nor listed. And it asks for
        all partitions that are not listed, to learn which of them are gone and what may descend from those.
        It reads these descendants after them.

        Returns:
            A seed for each partition that can still be read, also for closed ones, for ones that the service
            does not list, and for empty ones. For a partition that is gone: its oldest descendants that can
            be read, with their parents. A provider that cannot find them out gives all that may be
            descendants, without those that began before the partition ended. Empty when nothing is left.
        """

    @abstractmethod
    def describe(self, cursor: Cursor) -> Position:
        """Describe `cursor` as text and time; pure.

        Raises:
            InvalidCursor: This provider cannot have made the cursor.
        """

    def close(self) -> None:  # noqa: B027 - most feeds hold nothing
        """Free what the feed holds; idempotent. Its readers are closed first."""


@runtime_checkable
class SupportsHeads(Protocol):
    """A feed that can find a position to read until without reading what lies before it.

    Without it, and for each partition that an answer leaves out, a bounded read is planned by reading.
    """

    def heads(
        self, cursors: Mapping[str, Cursor], max_records: int | None, deadline: Deadline
    ) -> dict[str, Head]:
        """The present end of each partition, or the position `max_records` after the cursor.

        Args:
            cursors: Partition id → the position of its reader.
            max_records: Bound on the records between cursor and head, of each partition; None = no bound.
            deadline: The time limit.

        Returns:
            A head for each partition where it can be found cheaply; the planner reads the others. No head
            lies after the end of its partition: it must be possible to read up to it.
        """
        ...


@runtime_checkable
class SupportsCommands(Protocol):
    """A provider that passes the service's own commands through (`Capability.RUN_COMMAND`)."""

    def run_command(self, database: str, command: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """Run `command` in `database` unmodified, once, with the vendor's `options`; returns the reply."""
        ...

    def run_cursor_command(
        self, database: str, command: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Any:
        """Like `run_command`, for a command whose reply is a cursor; returns an iterator with `close`."""
        ...


class Provider(ABC):
    """One connected database: made by a `ProviderPlugin`, used by one engine.

    Attributes:
        provider_id: The id of the entry point, `"dynamo"`.
        options_type: The provider's options class, or None when it has none.
        page_records: The provider's own page size, for `max_page_size=0`.
    """

    provider_id: ClassVar[str]
    options_type: ClassVar[type[ProviderOptions] | None] = None
    page_records: int = 1000

    @abstractmethod
    def capabilities(self) -> CapabilitySet:
        """The capabilities of the service when provisioned as documented; no I/O."""

    @abstractmethod
    def open_feed(self, spec: FeedSpec, deadline: Deadline) -> Feed:
        """Open a feed and check by the `deadline` that the resource is provisioned for `spec`.

        Raises:
            ProviderFault: `NOT_FOUND` for a resource that does not exist, `INVALID_REQUEST` or
                `UNSUPPORTED_CAPABILITY` for one that is not provisioned, naming the setting.
        """

    @abstractmethod
    def classify(self, error: Exception) -> Fault:
        """Say what a vendor's `error` means; pure, raises nothing, also for unknown exceptions."""

    @abstractmethod
    def close(self) -> None:
        """Cancel every reader, and free the vendor's client if we made it; idempotent, any thread."""
