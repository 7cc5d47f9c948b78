"""Searches the graph of partitions; one function answers all questions about ancestors and descendants."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from multiclouddb_spi.contract import Partition

__all__ = ["parents_of", "reach"]


def reach(
    starts: Iterable[str], edges: Mapping[str, Iterable[str]], ends: Container[str] = frozenset()
) -> set[str]:
    """Return all partitions that can be reached from `starts`, including `starts` themselves. Pure.

    Args:
        starts: The partitions at which the search begins.
        edges: Maps a partition to the next partitions: its parents, its children, or the partitions for which
            it waits.
        ends: Partitions at which the search stops when it reaches them.
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
    """Map each partition that a service lists to its parents."""
    return {partition.partition_id: partition.parents for partition in listed}
