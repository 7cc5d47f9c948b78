"""Reports events to the application's observer and to the log; if a report fails, the read continues."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from multiclouddb_api import ChangeFeedPage, Gap, Observer, PartitionFoundLate, ResourceAddress
from multiclouddb_api.observer import tell

_log = logging.getLogger("multiclouddb.engine")


class Observing:
    """Calls the observer and the loggers `multiclouddb.*`, and catches the observer's errors."""

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer or Observer()

    def page(self, address: ResourceAddress, page: ChangeFeedPage) -> None:
        """Report that a page is about to be returned."""
        _log.debug("%s: %d events, idle=%s", address, len(page.events), page.idle)
        self._tell(self._observer.page, address, page)

    def retry(
        self, address: ResourceAddress, partition_id: str, attempt: int, seconds: float, reason: str
    ) -> None:
        """Report that a call failed and will be repeated."""
        _log.info("%s: %s failed (%s), try %d in %.2f s", address, partition_id, reason, attempt + 1, seconds)
        self._tell(self._observer.retry, address, partition_id, attempt, seconds, reason)

    def reader_opened(self, address: ResourceAddress, partition_id: str) -> None:
        """Report that a reader was opened."""
        self._tell(self._observer.reader_opened, address, partition_id)

    def reader_closed(self, address: ResourceAddress, partition_id: str) -> None:
        """Report that a reader was closed."""
        self._tell(self._observer.reader_closed, address, partition_id)

    def partition_retired(
        self, address: ResourceAddress, partition_id: str, children: tuple[str, ...]
    ) -> None:
        """Report that a partition was read to its end."""
        _log.info("%s: %s retired, children %s", address, partition_id, ", ".join(children) or "none")
        self._tell(self._observer.partition_retired, address, partition_id, children)

    def gap(self, address: ResourceAddress, gap: Gap) -> None:
        """Report that changes were lost because they were older than the retention."""
        _log.warning("%s: gap in %s from %s to %s", address, gap.partition_id, gap.lost_from, gap.resumed_at)
        self._tell(self._observer.gap, address, gap)

    def partition_found_late(self, address: ResourceAddress, found: PartitionFoundLate) -> None:
        """Report that a partition was found that the service had listed late."""
        _log.warning("%s: the feed did not cover %s, and reads it from now on", address, found.partition_id)
        self._tell(self._observer.partition_found_late, address, found)

    def snapshot_interleaved(self, address: ResourceAddress, seconds: float) -> None:
        """Report that changes are now read during the scan of a snapshot, because the scan takes long."""
        _log.info(
            "%s: positions will be kept for only %.0f s more; changes are now read during the scan",
            address,
            seconds,
        )
        self._tell(self._observer.snapshot_interleaved, address, seconds)

    def audit_failed(self, address: ResourceAddress, reason: str) -> None:
        """Report that an audit of coverage failed; another audit follows soon."""
        _log.warning("%s: the audit of coverage failed (%s)", address, reason)

    def headroom_low(self, address: ResourceAddress, partition_id: str, seconds: float) -> None:
        """Report that a position will soon be older than the retention."""
        _log.warning(
            "%s: the position in %s will be kept for only %.0f s more", address, partition_id, seconds
        )
        self._tell(self._observer.retention_headroom_low, address, partition_id, seconds)

    def _tell(self, method: Callable[..., None], *args: Any) -> None:
        tell(_log.name, method, *args)
