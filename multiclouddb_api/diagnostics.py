"""The cost and the lag of a call."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import attrs

from multiclouddb_api.snapshot import SnapshotProgress

__all__ = ["OperationDiagnostics"]


@attrs.frozen
class OperationDiagnostics:
    """Measures of one call; each is None if the service does not report it.

    Attributes:
        watermark: No later event is older than this. It is the minimum over every partition in the token,
            including children that wait for their parents. It never goes back. UTC.
        lag_seconds: How far the watermark lags behind the service's clock; 0 when idle.
        retention_headroom_seconds: How long the oldest position in the token is still kept; the smallest
            value that the service reported in this call.
        requests: Calls to the service.
        native_charge: The cost that the service reported, in its own unit (request units, read units).
        retries: How often a call was repeated after a failure.
        open_watches: How many ended partitions are still watched for more children. During this time `idle`
            may be true. If a child is found then, its events may be older than the watermark.
        found_late: How many partitions an audit found in this call. The page contains a `PartitionFoundLate`
            notice for each.
        partition_errors: Partition id → its failure in this call. The position of such a partition does not
            move.
        elapsed_seconds: Wall time of the call.
        snapshot: The progress of the scan of a `Snapshot()`; None if no scan is running.
    """

    watermark: datetime | None = None
    lag_seconds: float | None = None
    retention_headroom_seconds: float | None = None
    requests: int = 0
    native_charge: float | None = None
    retries: int = 0
    open_watches: int = 0
    found_late: int = 0
    partition_errors: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    elapsed_seconds: float = 0.0
    snapshot: SnapshotProgress | None = None
