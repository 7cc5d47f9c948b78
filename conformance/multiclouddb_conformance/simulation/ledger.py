"""The plain model that a consumer of the simulation is held against: what was written, what came."""

from __future__ import annotations

from datetime import datetime

from multiclouddb_api import ChangeEvent, ChangeFeedPage
from multiclouddb_conformance.simulation.partition_log import Written
from multiclouddb_conformance.simulation.simulation import Simulation

__all__ = ["Ledger"]


class Ledger:
    """One consumer's deliveries, checked page by page against the truth.

    Each check raises `AssertionError`: an event that is wrong or out of order, a child before its
    parent, a watermark that goes back or is too late, a page that is too long, and a page that is
    called idle while something is missing, although every child of what has ended is named.

    Args:
        sim: The collection that is read.
        since: The commit behind which the feed starts.

    Attributes:
        first: Event id → how many other events came before it for the first time.
        duplicates: Deliveries of what had come before, or lies before the start.
    """

    def __init__(self, sim: Simulation, since: int = 0) -> None:
        self.sim = sim
        self.since = since
        self.first: dict[str, int] = {}
        self.duplicates = 0
        self._truth: dict[str, Written] = {}
        self._open: dict[str, int] = {}
        self._noted = 0
        self._watermark: datetime | None = None
        self._last: dict[str, tuple[int, int]] = {}

    def take(self, page: ChangeFeedPage, limit: int) -> None:
        """Check one page, read with `max_page_size=limit`, and note it down."""
        self._note()
        assert not limit or len(page.events) <= limit, f"{len(page.events)} events on a page of {limit}"
        for event in page.events:
            self._take(event)
        told = page.diagnostics.watermark
        # What a child that is not named yet holds may be older than what is told.
        if told is not None and not self.sim.behaviour.late_siblings:
            assert self._watermark is None or told >= self._watermark, "the watermark went back"
            self._watermark = told
        if page.idle and not page.notices and self.sim.names_all():
            assert not self.missing(), f"idle, but {self.missing()} events are missing"

    def missing(self) -> int:
        """How many events have not come yet."""
        self._note()
        return sum(self._open.values())

    def expected(self) -> set[str]:
        """Ids of all events that the feed has to deliver."""
        self._note()
        return {item.event_id for item in self._truth.values() if item.commit > self.since}

    def undelivered(self, partition_id: str) -> int:
        """How many events of a partition have not come yet."""
        self._note()
        return self._open.get(partition_id, 0)

    def restart(self, since: int) -> None:
        """The feed starts later than was thought: nothing has been delivered yet."""
        assert not self.first
        self.since, self._noted = since, 0
        self._open.clear()

    def _note(self) -> None:
        for item in self.sim.history[self._noted :]:
            self._truth[item.event_id] = item
            if item.commit > self.since:
                self._open[item.partition_id] = self._open.get(item.partition_id, 0) + 1
        self._noted = len(self.sim.history)

    def _take(self, event: ChangeEvent) -> None:
        item = self._truth[event.event_id]
        assert (event.key, event.type, event.timestamp) == (item.key, item.type, item.timestamp)
        assert event.partition_id == self.sim.public_id(item.partition_id)
        if event.event_id in self.first or item.commit <= self.since:
            self.duplicates += 1
            return
        name, place = item.partition_id, (item.commit, item.index)
        assert place > self._last.get(name, (-1, -1)), f"{item.event_id} is out of order"
        assert self._watermark is None or item.timestamp >= self._watermark, (
            f"{item.event_id} is older than the watermark"
        )
        for parent in self.sim.lineage[name]:
            assert not self._open.get(parent), f"{name} was read before its parent {parent} was drained"
        self.first[event.event_id] = len(self.first)
        self._last[name] = place
        self._open[name] -= 1
