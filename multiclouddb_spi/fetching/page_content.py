"""Holds what one call has read, before it becomes a page or an error."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import attrs
from attrs import define

from multiclouddb_api import Notice
from multiclouddb_spi.abilities import Freshness
from multiclouddb_spi.continuation.state import Retired
from multiclouddb_spi.faults import RecordFault

T = TypeVar("T")
_NOTHING: Final = Freshness()


@define(eq=False, repr=False)
class PageContent(Generic[T]):
    """What a call has read; the call has also changed its lineage."""

    limit: int = 0
    most_bytes: int = 0
    values: list[T] = attrs.field(factory=list)  # what the view made of the returned records, in order
    count: int = 0
    nbytes: float = 0.0  # of the returned records
    notices: list[Notice] = attrs.field(factory=list)
    noticed: set[str] = attrs.field(factory=set)  # nothing more of these partitions is returned
    answers: dict[str, Freshness] = attrs.field(factory=dict)  # what the answers of a partition show
    failed: dict[str, Exception] = attrs.field(factory=dict)  # the failed partitions, the first one first
    moved: bool = False  # a partition answered, or a position moved
    idle: bool = False  # every active partition reported that it has no more records
    # When the first partition is worth asking again (monotonic), or 0 if the feed has something to do.
    # None if calls have to ask all.
    due_at: float | None = None
    retired: Retired | None = None  # the end of the only physical partition that the call reads
    over: str | None = None  # why no change can follow any more
    ended: bool = False  # the page ends here, although more records may be available
    failure: tuple[str, Exception] | None = None  # what stops the feed permanently, and where
    poison: tuple[str, RecordFault] | None = None  # the record that stops the feed
    found_late: int = 0  # partitions that the service had listed late
    requests: int = 0
    retries: int = 0
    charge: float | None = None

    def stopped(self) -> bool:
        """True if no more records may be read in this call."""
        return bool(self.failure or self.poison or self.retired or self.over)

    def in_hand(self) -> bool:
        """True if there is something to return on a page."""
        return bool(self.count or self.notices)

    def is_full(self) -> bool:
        """True if the page must not receive more records."""
        return self.count >= self.limit or self.ended or self.stopped()

    def tell(self, notice: Notice, *partition_ids: str) -> None:
        """Add a notice to the page; further events of the given partitions are left for a later page."""
        self.notices.append(notice)
        self.noticed.update(partition_ids)

    def keeps(self, partition_id: str, seconds: float) -> None:
        """Record for how long the service still keeps the position of a partition."""
        known = self.answers.get(partition_id, _NOTHING)
        self.answers[partition_id] = attrs.evolve(known, headroom=seconds)
