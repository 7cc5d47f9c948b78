"""Collects the result of the reads in one call."""

from __future__ import annotations

from typing import Generic, TypeVar

import attrs

from multiclouddb_api import Notice
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import Retired
from multiclouddb_spi.faults import RecordFault
from multiclouddb_spi.reading.turns import Turns

__all__ = ["PollResult"]

T = TypeVar("T")


@attrs.define
class PollResult(Generic[T]):
    """The result of a poll; the poll has also changed its lineage.

    Attributes:
        turns: The answers that the partitions gave.
        limit: The largest number of records to return.
        values: The values that the view made for the returned records, in order.
        count: The number of records that are returned.
        notices: Notices that were found while reading.
        moved: True if a partition answered or a position moved.
        idle: True if every active partition reported that it has no more records.
        retired: How the partition ended, if the call reads only one physical partition and this partition has
            ended; else None.
        over: The reason why no change can follow any more, or None.
        ended: True if the page ends here, although more records may be available.
        failure: The partition and the error that stop the feed permanently.
        poison: The partition and the record that stop the feed.
        found_late: Partitions that an audit found in this call.
        requests: The number of calls to the service.
        retries: The number of retried calls.
        charge: The charge that the service reported, or None.
    """

    turns: Turns
    limit: int
    values: list[T] = attrs.field(factory=list)
    count: int = 0
    notices: list[Notice] = attrs.field(factory=list)
    moved: bool = False
    idle: bool = False
    retired: Retired | None = None
    over: str | None = None
    ended: bool = False
    failure: tuple[str, Exception] | None = None
    poison: tuple[str, RecordFault] | None = None
    found_late: int = 0
    requests: int = 0
    retries: int = 0
    charge: float | None = None

    @classmethod
    def nothing(cls, lineage: Lineage) -> PollResult[T]:
        """Return the result of a call that reads nothing."""
        return cls(Turns(lineage), 0)

    def stopped(self) -> bool:
        """True if no more records may be read in this call."""
        return bool(self.failure or self.poison or self.retired or self.over)

    def full(self) -> bool:
        """True if the page must not receive more records."""
        full = self.count >= self.limit or self.ended
        return full or bool(self.failure or self.poison or self.retired or self.over)

    def in_hand(self) -> bool:
        """True if there is something to return on a page."""
        return bool(self.count or self.notices)

    def tell(self, notice: Notice, *partition_ids: str) -> None:
        """Add a notice to the page; further events of the given partitions are left for a later page.

        Args:
            notice: The notice.
            partition_ids: The partition to which the notice belongs, and the partitions that are read because
                of the notice.
        """
        self.notices.append(notice)
        for name in partition_ids:
            self.turns.of(name).noticed = True
