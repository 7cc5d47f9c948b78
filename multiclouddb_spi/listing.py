"""A method that some providers have; it shows users which collections they can follow."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from multiclouddb_api import ResourceAddress
from multiclouddb_spi.deadline import Deadline

__all__ = ["SupportsCollections"]


@runtime_checkable
class SupportsCollections(Protocol):
    """A provider that can list collections. The engine does not need it; the command line does."""

    def collections(self, database: str | None, deadline: Deadline) -> list[ResourceAddress]:
        """Return the collections, tables or containers that the identity may see, not the service's own.

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
