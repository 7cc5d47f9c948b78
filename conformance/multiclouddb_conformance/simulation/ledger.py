"""The plain model that the engine is held against: what was written, and what came when."""

from __future__ import annotations

from datetime import datetime

from multiclouddb_api import ChangeFeedPage
from multiclouddb_conformance.simulation import Simulation, Written


class Ledger:
    """One consumer's deliveries, checked page by page against the truth."""

    def __init__(self, sim: Simulation, since: int = 0) -> None:
        self.sim = sim
        self.since = since
        self.first: dict[str, int] = {}
        self.deliveries = 0
        self.duplicates = 0
        self.watermark: datetime | None = None
        self._last: dict[str, tuple[int, int]] = {}

    def expected(self) -> list[Written]:
        return [item for item in self.sim.truth if item.commit > self.since]

    def take(self, page: ChangeFeedPage, limit: int) -> None:
        """Check one page and note it down."""
        assert not limit or len(page.events) <= limit
        truth = {item.event_id: item for item in self.sim.history}
        for event in page.events:
            item = truth[event.event_id]
            assert event.key == item.key
            assert event.type is item.type
            assert event.timestamp == item.timestamp
            assert event.partition_id == self.sim.public_id(item.partition_id)
            self.deliveries += 1
            if event.event_id in self.first or item.commit <= self.since:
                self.duplicates += 1
                continue
            self._check_first(item)
            self.first[event.event_id] = len(self.first)
        told = page.diagnostics.watermark
        if told is not None:
            assert self.watermark is None or told >= self.watermark, "the watermark went back"
            self.watermark = told
        if page.idle and not page.notices:
            assert not self.missing(), f"idle, but {len(self.missing())} events are missing"

    def _check_first(self, item: Written) -> None:
        place = (item.commit, item.index)
        assert place > self._last.get(item.partition_id, (-1, -1)), f"{item.event_id} is out of order"
        self._last[item.partition_id] = place
        if self.watermark is not None and item.commit > self.since:
            assert item.timestamp >= self.watermark, f"{item.event_id} is older than the watermark"
        self._check_parents(item.partition_id)

    def _check_parents(self, partition_id: str) -> None:
        for parent in self.sim.lineage[partition_id]:
            late = [i for i in self._of(parent) if i.event_id not in self.first]
            assert not late, f"{partition_id} was read before its parent {parent} was drained"

    def _of(self, partition_id: str) -> list[Written]:
        return [item for item in self.expected() if item.partition_id == partition_id]

    def missing(self) -> list[Written]:
        return [item for item in self.expected() if item.event_id not in self.first]
