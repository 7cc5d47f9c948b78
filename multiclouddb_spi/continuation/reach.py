"""One graph search over partitions, for all questions about which partition descends from which."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from multiclouddb_spi.contract import Partition

__all__ = ["parents_of", "reach"]


def reach(
    starts: Iterable[str], edges: Mapping[str, Iterable[str]], ends: Container[str] = frozenset()
) -> set[str]:
    """All partitions that can be reached from some, these included; pure.

    Args:
        starts: The partitions to begin at.
        edges: Partition → the next ones: its parents, its children, or what it waits for.
        ends: Partitions that are reached, but whose edges are not followed.
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
