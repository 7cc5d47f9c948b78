"""Reports the cost and the lag of a call."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import attrs

from multiclouddb_api.snapshot import SnapshotProgress

__all__ = ["OperationDiagnostics"]


@attrs.frozen
class OperationDiagnostics:
    """Measurements of one call; a value is None if the service does not report the value."""

    watermark: datetime | None = None
    """The watermark in UTC: no later event is older than this time. It is the minimum over all partitions in
    the token, including children that wait for their parents. The watermark never goes back."""
    read_until: datetime | None = None
    """Every change that was committed before this time has been returned, on this page or an earlier one.
    The time is of the service's clock, in UTC, and it never goes back. None during the scan of a
    `Snapshot()`, and if the service does not report enough."""
    read_until_estimated: bool = False
    """True if `read_until` is likely, but not proven, because the service does not report whether records
    follow (DynamoDB)."""
    partitions_read_until: Mapping[str, datetime] = attrs.field(factory=dict, hash=False)
    """Maps the id of each partition in the token to its own `read_until`, if that is known."""
    lag_seconds: float | None = None
    """The time by which `read_until` lags behind the service's clock. It is an estimate if
    `read_until_estimated` is true."""
    retention_headroom_seconds: float | None = None
    """How long the service will still keep the oldest position in the token; the shortest time that the
    service reported during this call."""
    requests: int = 0
    """The number of requests sent to the service."""
    native_charge: float | None = None
    """The cost that the service reported, in the service's own unit (for example request units or read
    units)."""
    retries: int = 0
    """The number of times that a request was repeated after a failure."""
    open_watches: int = 0
    """The number of ended partitions that are still watched for more children. `idle` may be true while ended
    partitions are watched. The events of a child partition that is found in this way may be older than the
    watermark."""
    found_late: int = 0
    """The number of partitions that an audit found during this call. For each of these partitions, the
    page contains a `PartitionFoundLate` notice."""
    partition_errors: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    """Maps the id of each partition that failed during this call to its failure. The position of a failed
    partition does not move."""
    elapsed_seconds: float = 0.0
    """The duration of the call."""
    snapshot: SnapshotProgress | None = None
    """The progress of the scan of a `Snapshot()`; None if no scan is running."""
