"""An ability that shows users what there is to follow."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from multiclouddb_api import ResourceAddress
from multiclouddb_spi.deadline import Deadline

__all__ = ["SupportsCollections"]


@runtime_checkable
class SupportsCollections(Protocol):
    """A provider that can list collections. The engine does not need it; the command line does."""

    def collections(self, database: str | None, deadline: Deadline) -> list[ResourceAddress]:
        """The collections, tables or containers that the identity may see; those of the service left out.

        A collection is listed whether or not its change feed is enabled.

        Args:
            database: Only the collections of this database; None for all databases. A provider without
                databases refuses a name.
            deadline: The time limit.

        Returns:
            Addresses as a request takes them, in any order; empty if there are none.

        Raises:
            ProviderFault: `NOT_FOUND` if the service says that there is no such database.
        """
        ...
