"""Gives the metrics of a client to Prometheus: `from multiclouddb.prometheus import PrometheusObserver`."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator
from typing import Final

from multiclouddb.partitions import Partitions
from multiclouddb_api import (
    ChangeFeedPage,
    Gap,
    Observer,
    PartitionFoundLate,
    ResourceAddress,
    invalid_request,
)

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as missing:
    raise invalid_request(
        "multiclouddb.prometheus", "needs prometheus-client", 'pip install "multiclouddb[prometheus]"'
    ) from missing

__all__ = ["PrometheusObserver"]

_LABELS: Final = ("database", "collection")
_TYPES: Final = ("CREATE", "UPDATE", "DELETE")


class PrometheusObserver(Observer):
    """Keeps the metrics of the page *Metrics* in a registry of `prometheus_client`.

    The labels are the database and the collection. Each value of a label makes a series of its own, so no
    label has a key, and none a partition unless you ask for it.

    Args:
        registry: The registry; by default the one of the process, which `start_http_server` serves.
        collections: Addresses whose counters begin at 0 before their first page. Without it, `increase` does
            not see the first gap of a collection.
        partitions: How many partitions of each collection get series of their own for lag, headroom and
            watermark: those with the greatest lag, the least headroom and the oldest watermark. 0 by default.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if `partitions` is not a number that is 0 or more.
        ValueError: The registry has such an observer already (from `prometheus_client`). Use one observer for
            all clients of a process.
    """

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        collections: tuple[ResourceAddress, ...] = (),
        partitions: int = 0,
    ) -> None:
        self._partitions = Partitions(partitions)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"multiclouddb_feed_{name}", text, (*_LABELS, *labels), registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"multiclouddb_feed_{name}", text, _LABELS, registry=registry)

        self._pages = counter("pages", "Pages read")
        self._events = counter("events", "Changes delivered", "type")
        self._lag = gauge("lag_seconds", "Lag of the feed in seconds")
        self._headroom = gauge("retention_headroom_seconds", "How long the position is still kept")
        self._watermark = gauge("watermark_timestamp_seconds", "No later change is older than this time")
        self._duration = Histogram(
            "multiclouddb_feed_read_duration_seconds", "Time of a read", _LABELS, registry=registry
        )
        self._errors = counter("partition_errors", "Partitions that failed on a page")
        self._retries = counter("retries", "Calls that were made again")
        self._retired = counter("partitions_retired", "Partitions that ended")
        self._gaps = counter("gaps", "Times that changes were lost to retention")
        self._late = counter("partitions_found_late", "Partitions that were found late")
        self._outage = gauge("outage_seconds", "Time without an answer of the service, 0 after it")
        for address in collections:
            where = _where(address)
            for each in (self._pages, self._errors, self._retries, self._retired, self._gaps, self._late):
                each.labels(*where)
            for kind in _TYPES:
                self._events.labels(*where, kind)
        if partitions:
            registry.register(_PartitionCollector(self._partitions))

    def page(self, address: ResourceAddress, page: ChangeFeedPage) -> None:
        """Record the page, its events, the lag, the headroom and the watermark."""
        where, diagnostics = _where(address), page.diagnostics
        self._pages.labels(*where).inc()
        for kind, count in Counts(event.type.value for event in page.events).items():
            self._events.labels(*where, kind).inc(count)
        if diagnostics.lag_seconds is not None:
            self._lag.labels(*where).set(diagnostics.lag_seconds)
        if diagnostics.retention_headroom_seconds is not None:
            self._headroom.labels(*where).set(diagnostics.retention_headroom_seconds)
        if diagnostics.watermark is not None:
            self._watermark.labels(*where).set(diagnostics.watermark.timestamp())
        self._partitions.page(address, page)
        self._duration.labels(*where).observe(diagnostics.elapsed_seconds)
        self._errors.labels(*where).inc(len(diagnostics.partition_errors))

    def retry(
        self, address: ResourceAddress, partition_id: str, attempt: int, wait_seconds: float, reason: str
    ) -> None:
        """Count the retry."""
        self._retries.labels(*_where(address)).inc()

    def partition_retired(
        self, address: ResourceAddress, partition_id: str, children: tuple[str, ...]
    ) -> None:
        """Count the ended partition, and remove its series."""
        self._partitions.retired(address, partition_id)
        self._retired.labels(*_where(address)).inc()

    def gap(self, address: ResourceAddress, gap: Gap) -> None:
        """Count the gap."""
        self._gaps.labels(*_where(address)).inc()

    def partition_found_late(self, address: ResourceAddress, found: PartitionFoundLate) -> None:
        """Count the partition."""
        self._late.labels(*_where(address)).inc()

    def outage(self, address: ResourceAddress, seconds: float, reason: str) -> None:
        """Record how long the service has not answered."""
        self._outage.labels(*_where(address)).set(seconds)

    def outage_ended(self, address: ResourceAddress, seconds: float) -> None:
        """Record that the service answers again."""
        self._outage.labels(*_where(address)).set(0)


class _PartitionCollector(Collector):
    """Makes the series of single partitions at each scrape, so that none stays behind."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, text, found in (
            ("lag_seconds", "Lag of the partitions that are last", self._partitions.lags()),
            (
                "retention_headroom_seconds",
                "How long the positions that expire first are kept",
                self._partitions.headrooms(),
            ),
            ("watermark_timestamp_seconds", "The oldest watermarks", self._partitions.watermarks()),
        ):
            family = GaugeMetricFamily(
                f"multiclouddb_feed_partition_{name}", text, labels=(*_LABELS, "partition")
            )
            for address, partition_id, value in found:
                family.add_metric((*_where(address), partition_id), value)
            yield family


def _where(address: ResourceAddress) -> tuple[str, str]:
    return address.database or "", address.collection or ""
