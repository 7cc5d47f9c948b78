"""Sends the metrics of a client to OpenTelemetry: `from multiclouddb.otel import OpenTelemetryObserver`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

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
    from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter
except ImportError as missing:
    raise invalid_request(
        "multiclouddb.otel", "needs opentelemetry", 'pip install "multiclouddb[otel]"'
    ) from missing

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OpenTelemetryObserver"]


class OpenTelemetryObserver(Observer):
    """Records the metrics of the page *Metrics* with a meter of OpenTelemetry.

    The attributes are the database and the collection, as `db.namespace` and `db.collection.name`. Each value
    of an attribute makes a series of its own, so no attribute has a key, and none a partition unless you ask
    for it.

    Args:
        meter: The meter; by default the one named `multiclouddb` of the global provider.
        partitions: How many partitions of each collection get series of their own for lag, headroom and
            watermark: those with the greatest lag, the least headroom and the oldest watermark. 0 by default.
            Their attribute is `messaging.destination.partition.id`.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if `partitions` is not a number that is 0 or more.
    """

    def __init__(self, meter: Meter | None = None, partitions: int = 0) -> None:
        meter = meter or get_meter("multiclouddb")
        self._partitions = Partitions(partitions)
        self._pages = meter.create_counter("multiclouddb.feed.pages", "{page}")
        self._events = meter.create_counter("multiclouddb.feed.events", "{event}")
        self._lag = meter.create_gauge("multiclouddb.feed.lag", "s")
        self._headroom = meter.create_gauge("multiclouddb.feed.retention.headroom", "s")
        self._watermark = meter.create_gauge("multiclouddb.feed.watermark", "s")
        self._duration = meter.create_histogram("multiclouddb.feed.read.duration", "s")
        self._errors = meter.create_counter("multiclouddb.feed.partition.errors", "{error}")
        self._retries = meter.create_counter("multiclouddb.feed.retries", "{retry}")
        self._retired = meter.create_counter("multiclouddb.feed.partitions.retired", "{partition}")
        self._gaps = meter.create_counter("multiclouddb.feed.gaps", "{gap}")
        self._late = meter.create_counter("multiclouddb.feed.partitions.found_late", "{partition}")
        self._outage = meter.create_gauge("multiclouddb.feed.outage", "s")
        if partitions:
            for name, measure in (
                ("lag", self._partitions.lags),
                ("retention.headroom", self._partitions.headrooms),
                ("watermark", self._partitions.watermarks),
            ):
                meter.create_observable_gauge(
                    f"multiclouddb.feed.partition.{name}", [_observed(measure)], "s"
                )

    def page(self, address: ResourceAddress, page: ChangeFeedPage) -> None:
        """Record the page, its events, the lag, the headroom and the watermark."""
        where, diagnostics = _where(address), page.diagnostics
        self._pages.add(1, where)
        for kind, count in Counter(event.type.value for event in page.events).items():
            self._events.add(count, {**where, "multiclouddb.change.type": kind})
        if diagnostics.lag_seconds is not None:
            self._lag.set(diagnostics.lag_seconds, where)
        if diagnostics.retention_headroom_seconds is not None:
            self._headroom.set(diagnostics.retention_headroom_seconds, where)
        if diagnostics.watermark is not None:
            self._watermark.set(diagnostics.watermark.timestamp(), where)
        self._partitions.page(address, page)
        self._duration.record(diagnostics.elapsed_seconds, where)
        self._errors.add(len(diagnostics.partition_errors), where)

    def retry(
        self, address: ResourceAddress, partition_id: str, attempt: int, wait_seconds: float, reason: str
    ) -> None:
        """Count the retry."""
        self._retries.add(1, _where(address))

    def partition_retired(
        self, address: ResourceAddress, partition_id: str, children: tuple[str, ...]
    ) -> None:
        """Count the ended partition, and remove its series."""
        self._partitions.retired(address, partition_id)
        self._retired.add(1, _where(address))

    def gap(self, address: ResourceAddress, gap: Gap) -> None:
        """Count the gap."""
        self._gaps.add(1, _where(address))

    def partition_found_late(self, address: ResourceAddress, found: PartitionFoundLate) -> None:
        """Count the partition."""
        self._late.add(1, _where(address))

    def outage(self, address: ResourceAddress, seconds: float, reason: str) -> None:
        """Record how long the service has not answered."""
        self._outage.set(seconds, _where(address))

    def outage_ended(self, address: ResourceAddress, seconds: float) -> None:
        """Record that the service answers again."""
        self._outage.set(0, _where(address))


def _observed(
    measure: Callable[[], Iterator[tuple[ResourceAddress, str, float]]],
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        for address, partition_id, value in measure():
            yield Observation(value, {**_where(address), "messaging.destination.partition.id": partition_id})

    return observe


def _where(address: ResourceAddress) -> Mapping[str, str]:
    return {"db.namespace": address.database or "", "db.collection.name": address.collection or ""}
