"""Computes the lineage of a collection: the parents of each partition.

The lineage shows whether a child was read before its parents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from multiclouddb_api import MulticloudDbClient, ResourceAddress

__all__ = ["public_lineage"]


def public_lineage(
    client: MulticloudDbClient, address: ResourceAddress, parents: Mapping[str, Iterable[str]]
) -> dict[str, tuple[str, ...]]:
    """Return the parents of each partition; the ids are those that events contain.

    Args:
        client: A client that reads the collection. Each partition id of the client is a common
            prefix, a colon and the service's own id.
        address: The collection.
        parents: Maps each partition id to the ids of its parents. All ids have the form that the
            service uses.
    """
    front = client.list_physical_partitions(address)[0].rpartition(":")[0]
    return {
        f"{front}:{name}": tuple(f"{front}:{parent}" for parent in above) for name, above in parents.items()
    }
