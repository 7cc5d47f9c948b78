"""The lineage of a world, for checks that no child was read before its parents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from multiclouddb_api import MulticloudDbClient, ResourceAddress

__all__ = ["public_lineage"]


def public_lineage(
    client: MulticloudDbClient, address: ResourceAddress, parents: Mapping[str, Iterable[str]]
) -> dict[str, tuple[str, ...]]:
    """Partition id → parents, by the service's own ids, with ids as events have them.

    Args:
        client: Reads the collection; what stands before the service's ids is the same in all of it.
        address: The collection.
        parents: The lineage.
    """
    front = client.list_physical_partitions(address)[0].rpartition(":")[0]
    return {
        f"{front}:{name}": tuple(f"{front}:{parent}" for parent in above) for name, above in parents.items()
    }
