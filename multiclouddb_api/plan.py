"""Defines what a client returns about partitions: their ids, and a plan that spreads a feed."""

from __future__ import annotations

from multiclouddb_api.redaction import html_table, shorten


class PartitionList(tuple[str, ...]):
    """The ids of partitions: a tuple that a notebook shows as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html_table(f"{len(self)} partitions", ["partition id"], [(name,) for name in self])


class PlannedPartition(tuple[str, str]):
    """One partition of a plan, or one segment of a scan: the pair of its id and the token to start from.

    Examples:
        >>> for partition_id, token in client.plan_partitions(request):
        ...     start_worker(partition_id, token)
    """

    is_segment: bool
    """True for a segment of the scan of a `Snapshot()`, which ends when its rows are read; False for a
    partition."""

    def __new__(
        cls, partition_id: str, continuation_token: str, is_segment: bool = False
    ) -> PlannedPartition:
        """Make the pair; see the class."""
        made = super().__new__(cls, (partition_id, continuation_token))
        made.is_segment = is_segment
        return made

    def __getnewargs__(self) -> tuple[str, str, bool]:
        return (*self, self.is_segment)

    @property
    def partition_id(self) -> str:
        """The id for `PhysicalPartition`."""
        return self[0]

    @property
    def continuation_token(self) -> str:
        """The token from which one process starts."""
        return self[1]

    def __repr__(self) -> str:
        kind = ", is_segment=True" if self.is_segment else ""
        return f"PlannedPartition({self.partition_id!r}, {shorten(self.continuation_token)}{kind})"


class PartitionPlan(tuple[PlannedPartition, ...]):
    """The result of `plan_partitions`: a tuple of `PlannedPartition`."""

    __slots__ = ()

    @property
    def segments(self) -> tuple[PlannedPartition, ...]:
        """The entries that are segments of a scan; empty without a `Snapshot()`."""
        return tuple(each for each in self if each.is_segment)

    def _repr_html_(self) -> str:
        rows = [
            (each.partition_id, "segment" if each.is_segment else "partition", shorten(each[1]))
            for each in self
        ]
        return html_table(f"{len(self)} tokens", ["partition id", "kind", "token"], rows)
