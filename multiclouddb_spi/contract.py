"""The contract between the engine and a provider: what a provider author implements.

A provider says what its service can do with one partition; the engine does the rest once for all:
fan-out, lineage, cutting pages, buffers, pacing, retries, tokens. Read `providers/embedded` beside
this page, then run the conformance suite until it is green.

A *record* is one change and gives one event. Where the service sends several changes as one (a data change
record of Spanner has many), each of them is a record here: all counts and bounds are of these, and there is a
position between any two of them, because a page may end there.

Rules that hold for every method here:

- *What is optional.* A question has a default here: the answer of a service that has nothing of the kind.
  What only some services can do is a small protocol, `Supports…`: the engine goes another way without it.
- *Who retries.* The engine. A provider neither retries nor wraps: it lets the vendor's exception out, and
  `Provider.classify`, which sees the error alone, names it later. It raises `ProviderFault` for what it found
  out itself, and for an error whose meaning depends on the call (the same code of the service is an expired
  position in a read and a wrong moment in a start). It catches that one where the call is known, and raises
  `ProviderFault(Fault(…)) from error`: what `classify` would say counts no more.
- *Threads.* A `Provider` and a `Feed` are called from several threads at once; one `Reader` from one thread
  at a time, not always the same one, except `cancel`, which any thread may call.
- *Time.* Every method with a `deadline` returns or raises by then as exactly as the vendor's client allows;
  the engine stops waiting then, whatever the provider does.
- *Ownership.* Arguments are immutable and may be kept. What is returned is not changed afterwards.
- *After close.* Nothing is called any more but `close` and `cancel`, which do nothing then.
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
from multiclouddb_spi.fault import Fault, unwritten
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
    """What a feed is opened for; two equal specs share one `Feed`.

    Attributes:
        address: The resource.
        scope: How much of it. `PhysicalPartition` arrives as `EntireCollection`: reading one
            partition, alone or with its descendants, is the engine's business.
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
    """Which resource a feed reads; written into every token and partition id.

    Attributes:
        provider_id: The provider's id.
        address: The resource.
        incarnation: What the service calls this very resource (stream ARN, container rid,
            collection UUID), so that one recreated under the same name is told apart; None where
            the service names nothing, and then its own refusal has to do.
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
            years of idle polling later, as far as the service's retention allows.
        children: For a partition that has ended before the start, so that `cursor` is its end: those of its
            children that are seeds of the same answer. More of them are looked for, and nothing is read.
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
        parents: Its parents, also ones that are no longer listed; empty where the service does not tell.
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
        cursors: Where it stands; for one that waits, what its parents have said so far.
        parents: The parents that it still waits for; empty unless it waits.
        drained: True when it is read to its end and only its children are still looked for.
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
        records: How many records lie between, or None where the service cannot tell.
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
        time: No event behind this position is older; None when the cursor does not tell.
    """

    text: str
    time: datetime | None


class Reader(ABC):
    """Reads one partition forward from where it was opened."""

    def outlasts(self) -> bool:
        """Whether a fetch that is late is left to the next call at that position, which waits for it.

        True for a service whose answer cannot be hurried and would be lost. By default it is cancelled.
        """
        return False

    @abstractmethod
    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """The next records.

        Args:
            max_records: Hard bound on `len(batch)`, at least 1.
            max_bytes: Wish for `batch.nbytes`; a batch may exceed it by one record, or by more
                where the service cannot be told a size.
            wait: Seconds that it may block while there is nothing; 0 = answer at once.
            deadline: When it has to be over.

        Returns:
            A batch; an empty one when there is nothing. After an outcome other than `Continue` a
            further call gives an empty batch with the same outcome.

        Raises:
            RecordFault: With index 0, when the first record here cannot even be fetched.
            Exception: Whatever the vendor raised. The engine closes this reader then and opens
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
        """The id that applications see for the service's `partition_id`; call it once a reader."""
        return encode_partition_id(
            self.identity.provider_id, self.identity.address, self.identity.incarnation, partition_id
        )

    def resumes(self, incarnation: str | None) -> bool:
        """Whether a token of this `incarnation` goes on in this feed; by default one of its own."""
        return incarnation == self.identity.incarnation

    def for_one_call(self) -> Feed:
        """This feed for all tries of one call, which may keep for the next try what one has learned.

        The engine asks it for a start or a listing, again after each failure, and lets go of it when the call
        is over. What it answers is as of that call. The default keeps nothing: it is the feed itself.
        """
        return self

    @abstractmethod
    def clock(self, deadline: Deadline) -> datetime | None:
        """The service's own time, aware, before the `deadline`; None where it does not tell.

        The engine compares it with `Position.time`: both are by the clock of the events.
        """

    @abstractmethod
    def start(self, position: FeedStart, partition_id: str | None, deadline: Deadline) -> list[Seed]:
        """Resolve a start into positions that are durable at once.

        `Beginning` gives every partition that still has records, closed ones with their children
        as further seeds that name their parents; `Now` and `AtTime` every partition alive then
        (and, for `AtTime`, what follows them).

        Args:
            position: Where to start. The engine has checked `AtTime` against `clock`.
            partition_id: Only this partition, or None for all of the scope. One that is closed by
                then, but still listed, gets a seed at its end.
            deadline: When it has to be over.

        Returns:
            Seeds whose parents are seeds of the same list or gone. Together they cover the scope: every
            partition that comes later descends from them. Empty when `partition_id` is unknown.

        Raises:
            ProviderFault: `CHECKPOINT_EXPIRED` for an `AtTime` older than retention.
        """

    @abstractmethod
    def partitions(self, deadline: Deadline) -> list[Partition]:
        """The partitions of the scope, by the `deadline`: the open ones, and closed ones that are listed.

        Of the scope: for one partition key those that may hold it. The parents of one may be left out, and
        one that is new may come late: what is not listed is not gone for that, `oldest` decides.
        """

    @abstractmethod
    def open(self, partition_id: str, cursor: Cursor, until: Cursor | None = None) -> Reader:
        """A reader of one partition; no I/O.

        Args:
            partition_id: The service's own id.
            cursor: Read behind this.
            until: Stop behind this with `Reached`, also where the partition ends there; reading it again
                gives the same events whatever is split, merged or written later.

        Raises:
            InvalidCursor: This provider cannot have made the cursor.
        """

    def discover(self, awaiting: Mapping[str, Cursor], deadline: Deadline) -> dict[str, Outcome]:
        """Ask once for the children of drained partitions that may have more than are known.

        The engine asks soon after a partition has ended and then less and less often: at most about once in
        as many seconds as it has looked so far. A provider bounds what that costs its service: it may leave
        partitions out of the answer, and then they count as not asked.

        Args:
            awaiting: Partition id → its final cursor; never empty.
            deadline: When it has to be over.

        Returns:
            For each id that was asked `Drained`, `Ended`, or `Awaiting` while no child is known. What an
            answer has named before may be missing in a later one. An answer counts as a look at the service
            as of now: it must not come from memory. The default, for a service without children, raises.
        """
        raise unwritten(type(self), "discover", f"what follows {', '.join(awaiting)}")

    @abstractmethod
    def uncovered(
        self, tracked: Mapping[str, Tracked], since: datetime | None, deadline: Deadline
    ) -> list[Seed] | None:
        """Find open partitions that the token neither holds nor leads to: an audit of a whole collection.

        It answers from what the service gives and from the token, and from nothing that this process
        remembers: by parents (`missed_by_parents`), by key ranges (a range that no partition of the token
        overlaps), or by a listing as of a moment that every partition of the token has been read to. The
        engine calls it after partitions were retired and every ten minutes, at most once a minute.

        Args:
            tracked: Every partition of the token by its id. What descends from one of them is covered.
            since: The feed's start: nothing that was committed earlier is wanted. None = no bound is known.
            deadline: When it has to be over.

        Returns:
            Where to start what is not covered, parents with their descendants down to the open ones; seeds
            whose parents are no seeds of the answer start at once. Never a partition that was drained, and
            none that ended before `since`: it would name children that began before that as well.
            Empty when everything is covered; None when the service does not allow to tell, now or ever.
        """

    def headroom(self, cursor: Cursor, now: datetime) -> float | None:
        """Seconds until `cursor` falls out of retention at the service's time `now`; pure.

        Asked for partitions that wait; None where the cursor does not tell, or nothing behind it can be lost.
        """
        return None

    def join(self, child_id: str, cursors: Sequence[Cursor]) -> Cursor:
        """Where a child starts, from what its seed and its parents said; pure.

        Args:
            child_id: The child.
            cursors: Distinct cursors, at least one; one only is the rule. The default takes the first of
                them in the order of `compare`, so that nothing is left out, and raises where that gives None.
        """
        for cursor in cursors:
            if all(self.compare(cursor, other) in (-1, 0) for other in cursors if other is not cursor):
                return cursor
        raise unwritten(type(self), "join", f"where {child_id} starts")

    def without_hints(self, cursor: Cursor) -> Cursor:
        """`cursor` without what only saves calls: where the rest is equal, one reader serves both. Pure."""
        return cursor

    @abstractmethod
    def compare(self, a: Cursor, b: Cursor) -> int | None:
        """-1, 0 or 1 as `a` lies before, at or behind `b` in one partition; pure. Equal cursors give 0.

        None: the cursors do not tell which lies first. It proves nothing, so the engine goes on everywhere as
        if there was something left: it reads up to a bound and not past it, stays where it is, or raises. It
        ends, leaves out and skips nothing for a None. A cursor that cannot be its own raises `InvalidCursor`.
        """

    @abstractmethod
    def oldest(self, partition_ids: Sequence[str], deadline: Deadline) -> list[Seed]:
        """Where `partition_ids`, whose positions have expired, can be read on; over by the `deadline`.

        Also asked for parents of a merged child that have not been discovered, to learn whether they still
        can be: one that is neither among the seeds nor listed is waited for no more. And for all that are not
        listed, to learn which of them are gone and what may come of those: that is read behind them.

        Returns:
            A seed for each that can still be read, closed ones and ones that the service does not list
            included, also when it is empty; and for one that is gone its oldest descendants that can be
            read, with their parents. Who cannot tell gives all that may be, without what began before the
            partition ended. Empty when nothing is left.
        """

    @abstractmethod
    def describe(self, cursor: Cursor) -> Position:
        """What `cursor` says, as text and time; pure. `InvalidCursor` for one that cannot be its own."""

    def close(self) -> None:  # noqa: B027 - most feeds hold nothing
        """Free what the feed holds; idempotent. Its readers are closed before."""


@runtime_checkable
class SupportsHeads(Protocol):
    """A feed that can find a position to read until without reading what lies before it.

    Without it, and for each partition that an answer leaves out, a bounded read is planned by reading.
    """

    def heads(
        self, cursors: Mapping[str, Cursor], max_records: int | None, deadline: Deadline
    ) -> dict[str, Head]:
        """The present end of each partition, or the position `max_records` behind the cursor.

        Args:
            cursors: Partition id → where reading stands.
            max_records: Bound on the records between cursor and head, of each partition; None = no bound.
            deadline: When it has to be over.

        Returns:
            A head for each partition that has a cheap one; the planner reads the others. No head lies
            behind an end of its partition: reading up to it has to be possible.
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
        """Like `run_command`, for one whose reply is a cursor; returns an iterator with `close`."""
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
        """What the service can do when provisioned as documented; no I/O."""

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
        """Cancel every reader and free the vendor's client if we made it; idempotent, any thread."""
