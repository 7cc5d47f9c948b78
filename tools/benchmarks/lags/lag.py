"""Computes how late the changes of a run came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from demo.lags import Lag, quantile

__all__ = ["Lags", "lags_of"]


@attrs.frozen
class Lags:
    """How late the changes of a run came; all times are in seconds.

    Attributes:
        changes: The number of changes.
        again: How many of them came more than once.
        seconds: The time between the first commit and the last.
        median: The lag that half of the changes did not exceed.
        p99: The lag that 99 % of the changes did not exceed.
        largest: The largest lag.
        without_restart: The largest lag without the changes that waited for the restart.
    """

    changes: int
    again: int
    seconds: float
    median: float
    p99: float
    largest: float
    without_restart: float


def lags_of(written: Sequence[Mapping[str, Any]], got: Sequence[Mapping[str, Any]], killed_at: float) -> Lags:
    """Compare the writer's lines with those of the handler.

    A change that came more than once counts at its first arrival. The restart lasts from the kill until the
    first new change arrives. The changes that were committed before its end and came after its beginning have
    waited for it.

    Args:
        written: For each commit, its `number`, and when the database acknowledged it (`at`).
        got: For each call of the handler, the `numbers` of its changes, and when it had them (`at`).
        killed_at: When the reader was killed.

    Raises:
        ValueError: Raised if a change did not arrive, or one arrived that nobody committed, or if none was
            left to arrive after the kill.
    """
    committed = {line["number"]: line["at"] for line in written}
    arrived: dict[int, float] = {}
    again: set[int] = set()
    for line in got:
        for number in line["numbers"]:
            if number in arrived:
                again.add(number)
            else:
                arrived[number] = line["at"]
    if lost := committed.keys() - arrived.keys():
        raise ValueError(f"{len(lost)} of {len(committed)} changes did not arrive, such as {min(lost)}")
    if invented := arrived.keys() - committed.keys():
        raise ValueError(f"{len(invented)} changes arrived that nobody committed, such as {min(invented)}")
    back_at = min((at for at in arrived.values() if at > killed_at), default=None)
    if back_at is None:
        raise ValueError("no change arrived after the reader was killed")
    # The handler may have a change before the writer knows that it is committed.
    lags = [Lag(at, max(0.0, arrived[number] - at), 1) for number, at in committed.items() if number]
    waited = [lag.committed < back_at and lag.committed + lag.seconds > killed_at for lag in lags]
    running = [lag.seconds for lag, has_waited in zip(lags, waited, strict=True) if not has_waited]
    median, p99, largest = (quantile(lags, share) for share in (0.5, 0.99, 1))
    seconds = lags[-1].committed - lags[0].committed
    return Lags(len(lags), len(again), seconds, median, p99, largest, max(running, default=0.0))
