"""One graph search over partitions; it answers all questions about descent."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from multiclouddb_spi.contract import Partition

__all__ = ["parents_of", "reach"]


def reach(
    starts: Iterable[str], edges: Mapping[str, Iterable[str]], ends: Container[str] = frozenset()
) -> set[str]:
    """All partitions that can be reached from `starts`, including `starts`; pure.

    Args:
        starts: The partitions to begin at.
        edges: Partition → the next partitions: its parents, its children, or those that it waits for.
        ends: Partitions whose edges are not followed if they are reached.
    """
    found: set[str] = set()
    pending = list(starts)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            if name not in ends:
                pending += edges.get(name, ())
    return found


def parents_of(listed: Iterable[Partition]) -> dict[str, tuple[str, ...]]:
    """Each partition that a service lists → its parents."""
    return {partition.partition_id: partition.parents for partition in listed}
