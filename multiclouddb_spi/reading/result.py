"""What one call's reading found."""

from __future__ import annotations

from typing import Generic, TypeVar

import attrs

from multiclouddb_api import FeedEnded, Invalidated, Notice
from multiclouddb_spi.batch import Batch
from multiclouddb_spi.checkpoint.state import Retired
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.fault import RecordFault
from multiclouddb_spi.reading.live import Live

__all__ = ["Slice", "SweepResult"]

T = TypeVar("T")


@attrs.frozen
class Slice(Generic[T]):
    """Records of one partition that are handed out together.

    Attributes:
        partition_id: The service's own id.
        value: What the view made of them.
        count: How many.
        after: The cursor behind them.
    """

    partition_id: str
    value: T
    count: int
    after: Cursor


@attrs.define
class SweepResult(Generic[T]):
    """What a sweep found; the lineage that it was given has moved on.

    Attributes:
        slices: Records handed out, in order.
        count: How many in all.
        idle: Every active partition answered that it has nothing.
        retired: With one physical partition: how it ended, once it did.
        over: Why nothing will ever follow, or None.
        failure: Where, and what, stops the feed for good.
        poison: Where, and which record, stops the feed.
        moved: A partition answered or a position moved.
        notices: Facts found on the way.
        found_late: Partitions that an audit found.
        noticed: Partitions of which nothing more is handed out in this call, because a notice comes first.
        errors: Partition → its failure in this call.
        batches: Partition → its last batch that was handed out whole.
        requests: Calls to the service.
        retries: Calls that were made again.
        charge: What the service charged, or None.
        headroom: Partition → seconds until its position falls out of retention.
    """

    slices: list[Slice[T]] = attrs.field(factory=list)
    count: int = 0
    idle: bool = False
    retired: Retired | None = None
    over: str | None = None
    failure: tuple[str, Exception] | None = None
    poison: tuple[str, RecordFault] | None = None
    moved: bool = False
    notices: list[Notice] = attrs.field(factory=list)
    found_late: int = 0
    noticed: set[str] = attrs.field(factory=set)
    errors: dict[str, Exception] = attrs.field(factory=dict)
    batches: dict[str, Batch] = attrs.field(factory=dict)
    requests: int = 0
    retries: int = 0
    charge: float | None = None
    headroom: dict[str, float] = attrs.field(factory=dict)

    def stopped(self) -> bool:
        """True when nothing more may be read in this call."""
        return bool(self.failure or self.poison or self.retired or self.over)

    def in_hand(self) -> bool:
        """True when there is something to make a page of."""
        return bool(self.count or self.notices)

    def tell(self, notice: Notice, *partition_ids: str) -> None:
        """Put a fact on the page: the next event of these partitions comes after it, on a later page.

        Args:
            notice: The fact.
            partition_ids: The partition that it is in, and those that are read because of it.
        """
        self.notices.append(notice)
        self.noticed.update(partition_ids)

    def account(self, live: Live, batch: Batch) -> None:
        """Add up what a landed fetch cost."""
        self.moved = True
        self.requests += batch.requests
        self.retries += live.retries
        if batch.charge is not None:
            self.charge = (self.charge or 0.0) + batch.charge
        if batch.headroom is not None:
            self.headroom[live.partition_id] = batch.headroom

    def ended(self, notice: Notice) -> None:
        """The last partition has ended with this notice."""
        self.over = notice.reason if isinstance(notice, FeedEnded | Invalidated) else str(notice)
