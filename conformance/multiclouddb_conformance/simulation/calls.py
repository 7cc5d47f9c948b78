"""Counts a client's calls to a simulated service, for tests of cost, leaks and correct use."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

__all__ = ["Calls"]


class Calls:
    """Counts the calls on one provider; read the counts while no call is running."""

    def __init__(self) -> None:
        self.feeds = 0
        self.starts = 0
        self.lists = 0
        self.surveys = 0
        self.awaited: Counter[str] = Counter()
        self.joins: Counter[str] = Counter()
        self.heads = 0
        self.lookups = 0
        self.opens: Counter[str] = Counter()
        self.fetches: Counter[str] = Counter()
        self.mapped = 0
        self.cancels = 0
        self.closes = 0
        self.open_readers = 0
        self.most_open_readers = 0
        self.violations: list[str] = []
        self._lock = threading.Lock()

    def count(self, name: str, by: int = 1) -> None:
        """Count a call; `name` is the name of a numeric attribute."""
        with self._lock:
            setattr(self, name, getattr(self, name) + by)

    def count_each(self, name: str, partition_ids: Iterable[str]) -> None:
        """Count a call for several partitions; `name` is the name of a counter attribute."""
        with self._lock:
            getattr(self, name).update(partition_ids)

    def opened(self, partition_id: str) -> None:
        """Record that a reader was opened."""
        with self._lock:
            self.opens[partition_id] += 1
            self.open_readers += 1
            self.most_open_readers = max(self.most_open_readers, self.open_readers)

    def closed(self) -> None:
        """Record that a reader was closed."""
        with self._lock:
            self.closes += 1
            self.open_readers -= 1

    def violated(self, partition_id: str, what: str) -> None:
        """Record a violation of the contract."""
        with self._lock:
            self.violations.append(f"{partition_id}: {what}")

    @property
    def total_fetches(self) -> int:
        """Return the number of fetches of all partitions."""
        return sum(self.fetches.values())
