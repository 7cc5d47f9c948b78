"""Optional abilities of a feed or a provider, in addition to the contract; each is a small protocol.

The engine and the tools look for them with `isinstance`. The ability to scan a collection is larger, so
it has its own module, `scan`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Protocol, runtime_checkable

import attrs

from multiclouddb_api import ResourceAddress
from multiclouddb_spi.batch import Outcome
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.deadline import Deadline

__all__ = ["Head", "SupportsChangeMark", "SupportsCollections", "SupportsCommands", "SupportsHeads"]


@attrs.frozen
class Head:
    """The end position of a bounded read, found without reading the records (`SupportsHeads`).

    Attributes:
        cursor: The end position of the read; the read includes the record at this position.
        records: The number of records before this position, or None if the service does not report it.
        outcome: `Continue`, or the way in which the partition ends at that position.
    """

    cursor: Cursor
    records: int | None
    outcome: Outcome


@runtime_checkable
class SupportsHeads(Protocol):
    """A feed that can find the end position of a bounded read without reading the records before it.

    Without this protocol, and for each partition that an answer omits, planning a bounded read has to read
    the records.
    """

    def heads(
        self, cursors: Mapping[str, Cursor], max_records: int | None, deadline: Deadline
    ) -> dict[str, Head]:
        """Return the present end of each partition, or the position `max_records` after the cursor.

        Args:
            cursors: Maps each partition id to the position of its reader.
            max_records: The largest number of records between cursor and head, for each partition; None means
                no limit.
            deadline: The time limit.

        Returns:
            A head for each partition whose head can be found cheaply; the planner reads the other partitions.
            No head lies after the end of its partition, because it must be possible to read up to the head.
        """
        ...


@runtime_checkable
class SupportsChangeMark(Protocol):
    """A feed of any number of partitions that can find out with one cheap call that nothing has changed."""

    def change_mark(self, deadline: Deadline) -> Hashable:
        """Return a value that stays equal until a record, partition or end is added to the feed or lost.

        As long as the value is equal, the engine returns the last idle page again, with the same token. So a
        feed must not implement this method if its positions or watermark advance without changes, or if its
        positions expire as time passes.

        Args:
            deadline: The time at which the call must be over.

        Returns:
            The value. The engine compares the value with earlier values of this feed in the same process. If
            the value changes without a reason, this does no harm, but costs one call to each partition.
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
        """Run a command whose reply is a cursor; return an iterator with a `close` method.

        See also `run_command`.
        """
        ...


@runtime_checkable
class SupportsCollections(Protocol):
    """A provider that can list collections. The engine does not need it; the command line does."""

    def collections(self, database: str | None, deadline: Deadline) -> list[ResourceAddress]:
        """Return the collections, tables or containers that the user may see, without the service's own.

        A collection is listed whether or not its change feed is enabled.

        Args:
            database: The database whose collections to list; None for all databases. A provider without
                databases refuses a name.
            deadline: The time limit.

        Returns:
            Addresses in the form for a request, in any order; empty if there are none.

        Raises:
            ProviderFault: `NOT_FOUND` if the service reports that the database does not exist.
        """
        ...
