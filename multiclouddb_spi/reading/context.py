"""Defines the objects that all calls of one client share."""

from __future__ import annotations

import threading
import time
from typing import Final

import attrs

from multiclouddb_api.pacing import check_stopped
from multiclouddb_spi.continuation.follow import Looks
from multiclouddb_spi.observing import Observing
from multiclouddb_spi.reading.fetcher import Fetcher, closed_fault
from multiclouddb_spi.reading.partition_reader import Budget
from multiclouddb_spi.reading.reader_cache import ReaderCache
from multiclouddb_spi.reading.scan_rates import ScanRates

__all__ = ["ReadContext"]

_LOOK_SECONDS: Final = 0.25


@attrs.frozen
class ReadContext:
    """The objects that all calls of one client share.

    Attributes:
        fetcher: Runs reads.
        cache: Keeps readers and their fetched records between calls.
        budget: The limit on the number of buffered bytes.
        observing: The object that reports events to the observer and to the logs.
        closed: An event that is set when the client is closed.
        width: The number of partitions that one call reads at the same time.
        page_records: The provider's own page size.
        watch_seconds: How long to search for more children of an ended partition.
        audit_seconds: How often the coverage of a collection is audited.
        rates: The object that limits the rates of scans.
        looks: When the client last looked for more children of an ended partition.
    """

    fetcher: Fetcher
    cache: ReaderCache
    budget: Budget
    observing: Observing
    closed: threading.Event
    width: int
    page_records: int
    watch_seconds: float
    audit_seconds: float
    rates: ScanRates = attrs.field(factory=ScanRates)
    looks: Looks = attrs.field(factory=Looks)

    def pause(self, seconds: float) -> None:
        """Wait until the time has passed.

        Raises:
            ProviderFault: Raised if the client was closed.
            Stopped: Raised if the iterator that reads was stopped.
        """
        until = time.monotonic() + seconds
        while True:
            check_stopped()
            left = until - time.monotonic()
            if self.closed.wait(max(0.0, min(_LOOK_SECONDS, left))):
                raise closed_fault()
            if left <= _LOOK_SECONDS:
                return
