"""Computes the lineage of a world, which shows whether a child was read before its parents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from multiclouddb_api import MulticloudDbClient, ResourceAddress

__all__ = ["public_lineage"]


def public_lineage(
    client: MulticloudDbClient, address: ResourceAddress, parents: Mapping[str, Iterable[str]]
) -> dict[str, tuple[str, ...]]:
    """Map each partition id to its parents, with the ids that events contain.

    Args:
        client: A client that reads the collection; all its partition ids start with the same text, followed
            by the service's id.
        address: The collection.
        parents: Maps each partition id to the ids of its parents, both as the service writes them.
    """
    front = client.list_physical_partitions(address)[0].rpartition(":")[0]
    return {
        f"{front}:{name}": tuple(f"{front}:{parent}" for parent in above) for name, above in parents.items()
    }
