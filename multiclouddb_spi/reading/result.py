"""The result of one call's reading."""

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
    """The result of a poll, which has also changed its lineage.

    Attributes:
        turns: The answers of the partitions.
        limit: Bound on returned records.
        values: The results of the view for the returned records, in order.
        count: The number of returned records.
        notices: Facts found while reading.
        moved: True if a partition answered or a position moved.
        idle: True if every active partition answered that it has nothing.
        retired: With one physical partition: how it ended, if it has ended.
        over: The reason why nothing will ever follow, or None.
        ended: True if the page ends here, although there may be more to return.
        failure: The partition and the error that stop the feed for good.
        poison: The partition and the record that stop the feed.
        found_late: Partitions that an audit found.
        requests: Calls to the service.
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
        """The result of a call that reads nothing."""
        return cls(Turns(lineage), 0)

    def stopped(self) -> bool:
        """True when nothing more may be read in this call."""
        return bool(self.failure or self.poison or self.retired or self.over)

    def full(self) -> bool:
        """True when the page has no place left."""
        return self.count >= self.limit or self.ended or self.stopped()

    def places(self) -> int:
        """How many more records the page takes."""
        return self.limit - self.count

    def in_hand(self) -> bool:
        """True if there is something to put on a page."""
        return bool(self.count or self.notices)

    def tell(self, notice: Notice, *partition_ids: str) -> None:
        """Put a fact on the page; the next event of these partitions comes after it, on a later page.

        Args:
            notice: The fact.
            partition_ids: The partition that it belongs to, and those that are read because of it.
        """
        self.notices.append(notice)
        for name in partition_ids:
            self.turns.of(name).noticed = True
