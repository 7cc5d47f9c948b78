"""Defines optional abilities of a feed or a provider; each ability is a small protocol.

The engine and the tools use `isinstance` to find out whether an ability is present. A scan of a
collection is a larger ability, so its protocols are in a separate module, `scan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import Any, Protocol, runtime_checkable

from attrs import frozen

from multiclouddb_api import (
    ChangeEvent,
    LookupAnswer,
    MulticloudDbKey,
    Notice,
    ResourceAddress,
)
from multiclouddb_spi.batch import Outcome
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.time_limits import Deadline

__all__ = [
    "CollectionPart",
    "Follows",
    "Freshness",
    "Head",
    "SupportsChangeMark",
    "SupportsCollections",
    "SupportsCommands",
    "SupportsHeads",
    "SupportsLookup",
    "SupportsParts",
    "SupportsRenewal",
]


@frozen
class Freshness:
    """What the answers before a position show about the time up to which a partition was read.

    Attributes:
        watermark: See `Batch.watermark`.
        likely_read_until: See `Batch.likely_read_until`.
        caught_up_at: The monotonic time at which a read began that reached the current end of the partition;
            None if there is no such read.
        headroom: For how many seconds the position is still kept; infinite if that is not known.
    """

    watermark: datetime | None = None
    likely_read_until: datetime | None = None
    caught_up_at: float | None = None
    headroom: float = math.inf


class Follows(Enum):
    """What is known about records after a head."""

    END = auto()
    """No record followed when the service was asked, or the partition has ended there."""
    MORE = auto()
    """The service has answered that records follow."""
    NOT_KNOWN = auto()
    """The answer shows neither. A small number of records proves nothing."""

    __hash__ = object.__hash__  # faster than the hash of `Enum`, which is a Python function


@frozen
class Head:
    """The end position of a bounded read, found without reading the records (`SupportsHeads`).

    Attributes:
        cursor: The end position of the read; the record at this position is part of the read.
        records: The number of records before this position, or None if the service does not report it.
        outcome: `Continue`, or the way in which the partition ends at that position.
        follows: What is known about records after this position. Only `END` makes a planned feed idle.
        answer: Filled in by the planner; a feed leaves it out.
        notices: The notices up to this position. A feed that knows that there are notices, but not which,
            leaves the partition out, so that the planner reads it.
    """

    cursor: Cursor
    records: int | None
    outcome: Outcome
    follows: Follows = Follows.NOT_KNOWN
    answer: Freshness = Freshness()
    notices: tuple[Notice, ...] = ()


@runtime_checkable
class SupportsHeads(Protocol):
    """A feed that can find the end position of a bounded read without reading the records before it.

    Without it, and for each partition that an answer leaves out, the planner has to read the records.
    """

    def heads(
        self, cursors: Mapping[str, Cursor], max_records: int | None, deadline: Deadline
    ) -> dict[str, Head]:
        """Return the end position of a bounded read for each partition.

        This is the current end of the partition, but at most `max_records` records after the cursor.
        `Head.follows` is `END` only if the service's answer shows that no record follows; if the answer does
        not show this, the planner asks again.

        Args:
            cursors: Maps each partition id to the position of its reader.
            max_records: The maximum number of records between the cursor and the head of each partition; None
                means no limit.
            deadline: The time limit.

        Returns:
            Maps the id of a partition to its head, which is never after the end of the partition, because a
            reader must be able to reach it. Leave out a partition whose head cannot be found cheaply.
        """
        ...


@runtime_checkable
class SupportsChangeMark(Protocol):
    """A feed for which one cheap call shows whether anything has changed in any of its partitions."""

    def change_mark(self, deadline: Deadline) -> Hashable:
        """Return a value that changes if a record or partition is added or lost, or if a partition ends.

        As long as it stays the same, the engine returns the last idle page again, with the same token. So do
        not implement this for a feed whose positions or watermark advance without changes, or whose positions
        expire as time passes.

        Args:
            deadline: The time by which the call must end.

        Returns:
            The value, which is compared with earlier ones of this feed in the same process. If the value
            changes although the feed has not changed, nothing is lost, but the engine calls each partition.
        """
        ...


@runtime_checkable
class SupportsLookup(Protocol):
    """A feed that reads single rows by their keys (`Capability.LOOKUP`)."""

    def lookup(
        self, keys: Sequence[MulticloudDbKey], deadline: Deadline
    ) -> Mapping[MulticloudDbKey, LookupAnswer]:
        """Read the current rows of some of these keys.

        `multiclouddb_spi.lookup.look_up` does most of it; the provider adds how to ask for a group of keys. A
        row is mapped by the provider's `RowMapper` (with `looked_up`), and shows every change that was
        acknowledged before this call. Its `partition_id` is empty, and so is its `order_key`, unless each row
        has its own (`ScanFloor.ROW`).

        Args:
            keys: The keys that are not answered yet, each once; there is at least one.
            deadline: The time by which the call must end.

        Returns:
            Maps keys of `keys` to their rows, or to None if the service answered that no row has exactly this
            key. `NotKnown` is for a key for which the service cannot be asked, and for a key to which an
            answer may belong although the answer does not show it: never make None of a refusal, and never
            drop a row. Answer as many keys as one request of the service takes, at least one, and leave out
            those that the service has not processed. The engine asks for the rest again, after a wait if
            there was no answer at all; an answer for another key is refused.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` for a key that no row can have; see `check_components`.
            ProviderFault: `THROTTLED` if the service has answered no key. `NOT_FOUND` if the rows may be
                those of another collection, which was created again with the same name.
        """
        ...


@frozen
class CollectionPart:
    """One of the collections that the feed of a database reads."""

    incarnation: str | None
    """The incarnation that the collection's own feed would have (`FeedIdentity`)."""
    fits: Callable[[ChangeEvent], bool] = lambda _: True
    """Returns False for an event that the collection's own feed would not deliver, because it is one of
    another collection that had this name. By default, there are no such events, or they can't be told."""


@runtime_checkable
class SupportsParts(Protocol):
    """A feed of a database whose positions can become positions of its collections.

    Then the tables of many collections share one reading (`multiclouddb mirror` with `"*"`). In these methods
    a *place* is the position of a feed: the positions of all its partitions.
    """

    def parts(self, deadline: Deadline) -> Mapping[str, CollectionPart]:
        """Ask the service for the collections that this feed reads now.

        Leave out a collection whose own feed has other events than this one.

        Args:
            deadline: The time limit.

        Returns:
            Maps each name to its collection.
        """
        ...

    def narrowed(self, cursor: Cursor, last: ChangeEvent | None) -> Cursor:
        """Return the position of a collection's feed that stands for one of this feed; pure.

        The collection's feed delivers from there every change that this feed delivers after `cursor`, and may
        repeat some.

        Args:
            cursor: The position.
            last: The last event that this feed has delivered, if it is one of this collection; None for
                every other collection.

        Raises:
            InvalidCursor: If a collection's feed has no such position.
        """
        ...

    def reaches(self, place: Sequence[Cursor], other: Sequence[Cursor]) -> bool:
        """Return True if each change before the `other` place is certainly before `place` too; pure.

        Either may be one of a collection.
        """
        ...

    def is_before(self, place: Sequence[Cursor]) -> Callable[[ChangeEvent], bool]:
        """Return a function that is True for an event which is certainly before a collection's place.

        Args:
            place: The place.
        """
        ...


@runtime_checkable
class SupportsCommands(Protocol):
    """A provider that passes commands to the service unchanged (`Capability.RUN_COMMAND`)."""

    def run_command(self, database: str, command: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """Run `command` once and unmodified in `database`, with the vendor's `options`; return the reply."""
        ...

    def run_cursor_command(
        self, database: str, command: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Any:
        """Run a command that replies with a cursor; return an iterator with a `close` method.

        See also `run_command`.
        """
        ...


@runtime_checkable
class SupportsCollections(Protocol):
    """A provider that can list collections."""

    def collections(self, database: str | None, deadline: Deadline) -> list[ResourceAddress]:
        """Return the collections, tables or containers that the user may see, except system collections.

        A collection is listed whether or not its change feed is enabled.

        Args:
            database: The database whose collections are listed; None for all databases. A provider
                without databases refuses the name of a database.
            deadline: The time limit.

        Returns:
            The addresses of the collections, in any order and in the form that a request accepts.

        Raises:
            ProviderFault: `NOT_FOUND` if the service reports that the database does not exist.
        """
        ...


@runtime_checkable
class SupportsInterrupts(Protocol):
    """A provider that keeps locks or connections, and that the engine calls in the thread of the caller.

    This is so if `Feed.reads_at_once` is true. Other calls run on threads of the engine, which are never
    interrupted.
    """

    def interrupted(self) -> None:
        """Make new locks, and do not use what is open any more; it may be called again.

        Ctrl-C has ended a call between any two steps, so the call may still hold a lock, or have left a
        connection in any state. Calls of other threads may fail with an error that is retryable.
        """


@runtime_checkable
class SupportsRenewal(Protocol):
    """A provider that can replace credentials which have aged, for example an expired token.

    The engine calls `renew` after a fault that is `renewable`, at most once in each of its calls, and then
    makes the call once more. A refusal that no newer credentials can change costs one more request.
    """

    def renew(self, since: float) -> bool:
        """Get new credentials for the requests that follow, unless this has happened since a call began.

        Several threads whose calls fail together may call this method; only the first one renews.

        Args:
            since: The monotonic time at which the refused call began.

        Returns:
            True if the next request has other credentials than the refused one. False if there are none, for
            example for a key, for a client of the application, or if the credential returns the same token
            again; the caller then raises the refusal.
        """
        ...
