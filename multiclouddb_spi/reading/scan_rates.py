"""Limits the rate of each scan."""

from __future__ import annotations

import threading
import time
from typing import Final

__all__ = ["ScanRates"]

_MOST_SCANS: Final = 1024


class ScanRates:
    """The times at which scans with a rate limit may read again; all calls of a client share them."""

    def __init__(self) -> None:
        self._not_before: dict[str, float] = {}
        self._lock = threading.Lock()

    def not_before(self, plan_id: str) -> float:
        """Return the monotonic time before which a scan reads nothing.

        Args:
            plan_id: The id under which the lineage contains the scan's plan.
        """
        return self._not_before.get(plan_id, 0.0)

    def spend(self, plan_id: str, seconds: float) -> None:
        """Postpone the next read of a scan; `not_before` returns the new time of this read.

        Args:
            plan_id: The id under which the lineage contains the scan's plan.
            seconds: The number of seconds to add; negative if a read was cheaper than expected.
        """
        with self._lock:
            last = self._not_before.get(plan_id, 0.0)
            self._not_before[plan_id] = max(last, time.monotonic() if seconds > 0 else 0.0) + seconds
            while len(self._not_before) > _MOST_SCANS:
                self._not_before.pop(next(iter(self._not_before)))
