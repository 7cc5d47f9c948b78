"""Compares the events that a consumer received with the changes that were written."""

from __future__ import annotations

from datetime import datetime

from multiclouddb_api import ChangeEvent, ChangeFeedPage
from multiclouddb_conformance.simulation.partition_log import Written
from multiclouddb_conformance.simulation.simulation import Simulation

__all__ = ["Ledger"]


class Ledger:
    """Compares one consumer's events with the written changes, page by page.

    A check raises `AssertionError` in these cases:

    - an event is wrong or out of order;
    - a child comes before its parent;
    - a watermark goes back or is too late;
    - a page is too long;
    - an idle page comes too early.

    An idle page comes too early if events are still missing and the service has already named all children of
    ended partitions.
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
        """Check and record one page, which was read with `max_page_size=limit`."""
        self._note()
        assert not limit or len(page.events) <= limit, f"{len(page.events)} events on a page of {limit}"
        for event in page.events:
            self._take(event)
        watermark = page.diagnostics.watermark
        # A child that is not named yet may have events that are older than the watermark.
        if watermark is not None and not self.sim.behaviour.late_siblings:
            assert self._watermark is None or watermark >= self._watermark, "the watermark went back"
            self._watermark = watermark
        if page.idle and not page.notices and self.sim.names_all():
            assert not self.missing(), f"idle, but {self.missing()} events are missing"

    def missing(self) -> int:
        """Return the number of events that have not been delivered yet."""
        self._note()
        return sum(self._open.values())

    def expected(self) -> set[str]:
        """Return the ids of all events that the feed must deliver."""
        self._note()
        return {item.event_id for item in self._truth.values() if item.commit > self.since}

    def restart(self, since: int) -> None:
        """Move the start of the feed to a later commit."""
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
