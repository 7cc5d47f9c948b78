"""The contract between the engine and a provider: what a provider author implements.

A provider says what its service can do with one partition. The engine does the rest for all providers:
fan-out, lineage, cutting pages, buffers, pacing, retries, tokens. Read `providers/embedded` together with
this page, then run the conformance suite until it is green.

A *record* is one change and gives one event. If the service sends several changes as one (a data change
record of Spanner contains many), each of them is a record here. All counts and limits are in these records.
There is a position between any two records, because a page may end there.

These rules hold for every method here:

- *What is optional.* A method that asks a question has a default: the answer of a service without the
  feature. An ability that only some services have is a small protocol, `Supports…`. If a provider does not
  implement the protocol, the engine finds another way.
- *Who retries.* The engine retries. A provider neither retries calls nor wraps errors. It does not catch the
  vendor's exceptions: `Provider.classify`, which sees only the error, classifies them later. A provider
  raises `ProviderFault` for its own findings, and for an error whose meaning depends on the call (the same
  code can mean an expired position in a read and a wrong moment in a start). It catches such an error in that
  call, and raises `ProviderFault(Fault(…)) from error`; then `classify` is not asked.
- *Threads.* Several threads call a `Provider` and a `Feed` at once. One thread at a time calls a `Reader`,
  but not always the same thread. Any thread may call `cancel` at any time.
- *Time.* Every method with a `deadline` returns or raises by then as exactly as the vendor's client allows.
  The engine stops waiting at the deadline, whatever the provider does.
- *Ownership.* Arguments are immutable and may be kept. A returned object is not changed afterwards.
- *After close.* Only `close` and `cancel` may still be called, and then they do nothing.
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
"""A start that the provider resolves; the engine itself resolves continuation tokens."""


@attrs.frozen(cache_hash=True)
class FeedSpec:
    """The properties of a feed; two equal specs share one `Feed`.

    Attributes:
        address: The resource.
        scope: The part of the resource to read. `PhysicalPartition` arrives as `EntireCollection`, because
            the engine itself limits reading to one partition, alone or with its descendants.
        new_item_state_mode: Whether events need the new document; this decides what `open_feed` checks.
        old_item_state_mode: The same for the old document.
        include_native: True if events carry the vendor's own record.
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
        """True if events contain the new document when there is one."""
        return self.new_item_state_mode is not NewItemStateMode.OMIT

    @property
    def with_old(self) -> bool:
        """True if events contain the old document when there is one."""
        return self.old_item_state_mode is not OldItemStateMode.OMIT


@attrs.frozen
class FeedIdentity:
    """The resource that a feed reads; it is part of every token and partition id.

    Attributes:
        provider_id: The provider's id.
        address: The resource.
        incarnation: The service's own id of this resource (stream ARN, container rid, collection
            UUID). It changes when the resource is recreated under the same name. None if the service has no
            such id; then only the service itself can refuse a position of the old resource.
    """

    provider_id: str
    address: ResourceAddress
    incarnation: str | None = None


@attrs.frozen
class Seed:
    """A partition to read, and the position to start from.

    Attributes:
        partition_id: The service's own id of the partition; unique in the feed.
        parents: Parents that have to be drained first. A parent that is not a seed of the same answer counts
            as drained.
        cursor: The durable position to start from. It must stay valid and keep its meaning in another process
            and after years of idle polling, as far as the service's retention allows.
        children: Set if the partition ended before the start, so that `cursor` is its end: those of its
            children that are seeds of the same answer. The engine reads nothing and looks for more children.
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
        parents: Its parents, including those no longer listed; empty if the service does not name them.
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
        cursors: Its position; for a waiting partition, the start positions that its parents have given.
        parents: The parents that it still waits for; empty if it does not wait.
        drained: True if it was read to its end and the engine only looks for its children.
    """

    partition_id: str
    cursors: tuple[Cursor, ...]
    parents: tuple[str, ...] = ()
    drained: bool = False


@attrs.frozen
class Head:
    """A position to read until, found without reading (`SupportsHeads`).

    Attributes:
        cursor: The position; a read up to the position includes the record at it.
        records: The number of records before the head, or None if the service does not report it.
        outcome: `Continue`, or how the partition ends at that position.
    """

    cursor: Cursor
    records: int | None
    outcome: Outcome


@attrs.frozen
class Position:
    """A cursor in readable form.

    Attributes:
        text: Text for people, such as `"sequence 4711"`, without content of a document.
        time: No event after this position is older; None when the cursor does not say.
    """

    text: str
    time: datetime | None


class Reader(ABC):
    """Reads one partition forward from the position where it was opened."""

    def outlasts(self) -> bool:
        """Whether a late fetch continues, so that the next call at its position waits for its result.

        True for a service that cannot answer faster, because cancelling would lose the answer. By default a
        late fetch is cancelled.
        """
        return False

    @abstractmethod
    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """The next records.

        Args:
            max_records: Hard limit on `len(batch)`, at least 1.
            max_bytes: Target for `batch.nbytes`; a batch may exceed it by one record, or by more if the
                service accepts no size limit.
            wait: How many seconds the fetch may block while there are no records; 0 = answer at once.
            deadline: The time limit.

        Returns:
            A batch, empty if there are no records. After an outcome other than `Continue`, a further call
            returns an empty batch with the same outcome.

        Raises:
            RecordFault: With index 0, if the first record at this position cannot even be fetched.
            Exception: Any error of the vendor's client. The engine then closes this reader and opens another
                at the last position, so a failed reader need not be usable.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Make a `fetch` that runs in another thread end within a second; idempotent.

        The fetch may end with any exception or with a batch. If the vendor's client cannot be interrupted,
        the docstring of the override states the maximum delay.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the reader's resources; idempotent, raises nothing. Not called during a `fetch`."""


class Feed(ABC):
    """One opened change feed; cheap to keep, shared by all readers of the same spec."""

    spec: FeedSpec
    identity: FeedIdentity

    @final
    def public_id(self, partition_id: str) -> str:
        """The id that applications see for the service's `partition_id`; the engine asks once per reader."""
        return encode_partition_id(
            self.identity.provider_id, self.identity.address, self.identity.incarnation, partition_id
        )

    def resumes(self, incarnation: str | None) -> bool:
        """Whether this feed can resume a token of this `incarnation`; by default only its own."""
        return incarnation == self.identity.incarnation

    def for_one_call(self) -> Feed:
        """This feed for all tries of one call; it may keep results of one try for the next try.

        The engine asks the returned feed for a start or a listing, again after each failure, and drops it
        after the call. Its answers are valid for that call. The default, the feed itself, keeps nothing.
        """
        return self

    def longest_wait(self) -> float:
        """Seconds that one fetch may wait for news. Longer waits mean fewer calls, but keep a thread busy."""
        return 1.0

    @abstractmethod
    def clock(self, deadline: Deadline) -> datetime | None:
        """The service's own time, with a time zone, asked before the `deadline`; None if it reports none.

        The engine compares it with `Position.time`, because both use the clock of the events.
        """

    @abstractmethod
    def start(self, position: FeedStart, partition_id: str | None, deadline: Deadline) -> list[Seed]:
        """Resolve a start into positions that are durable at once.

        `Beginning` gives every partition that still has records. Closed ones come with their children
        as further seeds, which name their parents. `Now` and `AtTime` give every partition that is open at
        that time (for `AtTime` also its descendants).

        Args:
            position: The start position. The engine has checked `AtTime` against `clock`.
            partition_id: The only partition to start, or None for the whole scope. A partition that is closed
                at that time, but still listed, gets a seed at its end.
            deadline: The time limit.

        Returns:
            Seeds whose parents are seeds of the same list, or gone. Together they cover the scope: every
            later partition descends from one of them. Empty if `partition_id` is unknown.

        Raises:
            ProviderFault: `CHECKPOINT_EXPIRED` for an `AtTime` older than retention.
        """

    @abstractmethod
    def partitions(self, deadline: Deadline) -> list[Partition]:
        """The partitions of the scope, by the `deadline`: all open ones, and the closed ones still listed.

        For the scope of one partition key, these are the partitions that may contain the key. A partition's
        parents may be left out, and a new partition may be listed late. So a partition that is not listed
        need not be gone; `oldest` decides whether it is.
        """

    @abstractmethod
    def open(self, partition_id: str, cursor: Cursor, until: Cursor | None = None) -> Reader:
        """A reader of one partition; no I/O.

        Args:
            partition_id: The service's own id.
            cursor: Read after this.
            until: Stop after this with `Reached`, even if the partition ends there. Another read up to this
                position returns the same events, whatever is split, merged or written later.

        Raises:
            InvalidCursor: This provider cannot have made the cursor.
        """

    def discover(self, awaiting: Mapping[str, Cursor], deadline: Deadline) -> dict[str, Outcome]:
        """Ask once for the children of drained partitions that may have more children than are known.

        The engine asks soon after a partition has ended, and then less and less often: after a search of n
        seconds, it asks about once in the next n seconds at most. A provider may limit the cost for its
        service by leaving partitions out of the answer; they then count as not asked.

        Args:
            awaiting: Partition id → its final cursor; never empty.
            deadline: The time limit.

        Returns:
            For each id that was asked for: `Drained`, `Ended`, or `Awaiting` while no child is known. A child
            that one answer named may be missing in a later answer. An answer must show the service's present
            state and must not come from memory. The default, for a service without children, raises.
        """
        raise unwritten(type(self), "discover", f"what follows {', '.join(awaiting)}")

    @abstractmethod
    def uncovered(
        self, tracked: Mapping[str, Tracked], since: datetime | None, deadline: Deadline
    ) -> list[Seed] | None:
        """Find open partitions that the token neither holds nor leads to: an audit of a whole collection.

        The audit uses only the service's answers and the token, and nothing that this process remembers. It
        compares parents (`missed_by_parents`), or key ranges (to find a range that no partition of the token
        overlaps), or a listing of an earlier moment up to which every partition of the token has been read.
        The engine calls it after partitions were retired and every ten minutes, at most once a minute.

        Args:
            tracked: Every partition of the token by its id. All descendants of these partitions are covered.
            since: The feed's start; changes committed earlier are not wanted. None = no start is known.
            deadline: The time limit.

        Returns:
            Seeds for the partitions that are not covered: parents with their descendants, down to the open
            ones. A seed whose parents are not seeds of the answer starts at once. The answer never contains a
            drained partition, or one that ended before `since`, which would also name children that began
            before `since`. Empty if everything is covered; None if the service cannot answer, now or ever.
        """

    def headroom(self, cursor: Cursor, now: datetime) -> float | None:
        """Seconds until `cursor` expires at the service's time `now`; pure.

        The engine asks for waiting partitions. None if the cursor does not show it, or if nothing after it
        can be lost.
        """
        return None

    def join(self, child_id: str, cursors: Sequence[Cursor]) -> Cursor:
        """The position where a child starts, from the cursors that its seed and its parents gave; pure.

        Args:
            child_id: The child.
            cursors: Distinct cursors, at least one, usually exactly one. The default takes the first of them
                in the order of `compare`, so that no event is left out. It raises if `compare` returns None.
        """
        for cursor in cursors:
            if all(self.compare(cursor, other) in (-1, 0) for other in cursors if other is not cursor):
                return cursor
        raise unwritten(type(self), "join", f"where {child_id} starts")

    def without_hints(self, cursor: Cursor) -> Cursor:
        """`cursor` without the hints: the parts that only save calls; pure.

        Two cursors whose remaining parts are equal can share one reader.
        """
        return cursor

    @abstractmethod
    def compare(self, a: Cursor, b: Cursor) -> int | None:
        """-1, 0 or 1 if `a` lies before, at or after `b` in one partition; pure. Equal cursors give 0.

        None means that the cursors do not show which one lies first. The engine then assumes that events are
        left: it reads up to a bound and not past it, stays where it is, or raises. It never ends, leaves out
        or skips anything because of a None. A cursor that this provider cannot have made raises
        `InvalidCursor`.
        """

    @abstractmethod
    def oldest(self, partition_ids: Sequence[str], deadline: Deadline) -> list[Seed]:
        """Where reading `partition_ids`, whose positions have expired, can resume; ends by the `deadline`.

        The engine also asks for undiscovered parents of a merged child, to learn whether they can still be
        discovered: it stops waiting for a parent that is neither a seed nor listed. And it asks for all
        partitions that are not listed, to learn which of them are gone and what may descend from those. It
        reads these descendants after them.

        Returns:
            A seed for each partition that can still be read, even if it is closed, not listed by the service,
            or empty. For a partition that is gone: its oldest descendants that can be read, with their
            parents. A provider that cannot find them returns all partitions that may be descendants, without
            those that began before the partition ended. Empty if nothing is left.
        """

    @abstractmethod
    def describe(self, cursor: Cursor) -> Position:
        """Describe `cursor` as text and time; pure.

        Raises:
            InvalidCursor: This provider cannot have made the cursor.
        """

    def close(self) -> None:  # noqa: B027 - most feeds hold nothing
        """Free the feed's resources; idempotent. The engine closes its readers first."""


@runtime_checkable
class SupportsHeads(Protocol):
    """A feed that can find a position to read until, without reading the records before it.

    Without it, and for each partition that an answer leaves out, planning a bounded read takes a read.
    """

    def heads(
        self, cursors: Mapping[str, Cursor], max_records: int | None, deadline: Deadline
    ) -> dict[str, Head]:
        """The present end of each partition, or the position `max_records` after the cursor.

        Args:
            cursors: Partition id → the position of its reader.
            max_records: Limit on the records between cursor and head, for each partition; None = no limit.
            deadline: The time limit.

        Returns:
            A head for each partition whose head can be found cheaply; the planner reads the others. No head
            lies after the end of its partition, because it must be possible to read up to the head.
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
    """One connected database; a `ProviderPlugin` makes it, and one engine uses it.

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
            ProviderFault: `NOT_FOUND` if the resource does not exist; `INVALID_REQUEST` or
                `UNSUPPORTED_CAPABILITY` with the name of the setting if it is not provisioned.
        """

    @abstractmethod
    def classify(self, error: Exception) -> Fault:
        """Return the meaning of a vendor's `error`; pure, raises nothing, even for unknown exceptions."""

    @abstractmethod
    def close(self) -> None:
        """Cancel every reader, and free the vendor's client if we made it; idempotent, any thread."""
