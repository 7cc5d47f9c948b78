"""The lag of every change of a run: the time from its commit in the database until it is in the table."""

from __future__ import annotations

from typing import Any, Final

import attrs

__all__ = ["BUCKET_SECONDS", "Lag", "lags_of", "quantile"]

BUCKET_SECONDS: Final = 0.1
"""Changes that were committed within this time are counted together, with the lag of the earliest moment."""


@attrs.frozen
class Lag:
    """The lag of some changes.

    Attributes:
        committed: When the changes were committed, in seconds since 1970.
        seconds: How long after that they were in the table.
        changes: The number of changes.
    """

    committed: float
    seconds: float
    changes: int


def lags_of(merged: list[dict[str, Any]]) -> list[Lag]:
    """Return the lags of all changes in the order of their commits.

    Args:
        merged: The lines of the merged micro-batches.
    """
    found = [
        Lag(bucket * BUCKET_SECONDS, max(0.0, line["at"] - bucket * BUCKET_SECONDS), changes)
        for line in merged
        for bucket, changes in line["changes"]
    ]
    return sorted(found, key=lambda lag: lag.committed)


def quantile(lags: list[Lag], share: float) -> float:
    """Return the lag, in seconds, that this share of the changes does not exceed.

    Args:
        lags: The lags, at least one.
        share: From 0 to 1; with 1, the largest lag is returned.
    """
    left = share * sum(lag.changes for lag in lags)
    ordered = sorted(lags, key=lambda lag: lag.seconds)
    for lag in ordered:
        left -= lag.changes
        if left <= 0:
            return lag.seconds
    return ordered[-1].seconds
