"""Keeps the lag, the headroom and the watermark of each partition, for the observers of metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import attrs

from multiclouddb_api import invalid_request

if TYPE_CHECKING:
    from multiclouddb_api import ChangeFeedPage, OperationDiagnostics, ResourceAddress

_FORGET_SECONDS: Final = 600.0
_MOST_KNOWN: Final = 100_000


@attrs.frozen
class PartitionState:
    """How far one partition was read; None where the service does not tell."""

    lag_seconds: float | None
    headroom_seconds: float | None
    watermark: float | None
    """In seconds since 1970."""
    told_at: float
    """The monotonic time of the page."""


class Partitions:
    """The partitions of the last pages of all feeds; several threads may use it.

    Args:
        most: How many partitions of each collection are shown for each measurement.
    """

    def __init__(self, most: int) -> None:
        if type(most) is not int or most < 0:
            raise invalid_request("partitions", f"is {most!r}", "pass a number that is 0 or more")
        self.most = most
        # A lock could be held by another thread when the process forks. Each step below is one operation
        # on a dict.
        self._known: dict[tuple[ResourceAddress, str], PartitionState] = {}

    def page(self, address: ResourceAddress, page: ChangeFeedPage) -> None:
        """Keep what a page tells."""
        if self.most == 0:
            return
        if len(self._known) > _MOST_KNOWN:
            self._known = {}
        known = self._known
        for name, state in _states(page.diagnostics):
            known[address, name] = state

    def retired(self, address: ResourceAddress, partition_id: str) -> None:
        """Forget a partition that has ended."""
        self._known.pop((address, partition_id), None)

    def lags(self) -> Iterator[tuple[ResourceAddress, str, float]]:
        """Return the partitions with the greatest lag, which grows until the next page."""
        return self._first(lambda state, age: _plus(state.lag_seconds, age), greatest=True)

    def headrooms(self) -> Iterator[tuple[ResourceAddress, str, float]]:
        """Return the partitions with the least headroom, which shrinks until the next page."""
        return self._first(lambda state, age: _plus(state.headroom_seconds, -age), greatest=False)

    def watermarks(self) -> Iterator[tuple[ResourceAddress, str, float]]:
        """Return the partitions with the oldest watermark."""
        return self._first(lambda state, _: state.watermark, greatest=False)

    def _first(
        self, measure: Callable[[PartitionState, float], float | None], *, greatest: bool
    ) -> Iterator[tuple[ResourceAddress, str, float]]:
        found: dict[ResourceAddress, list[tuple[float, str]]] = {}
        now, known = time.monotonic(), self._known
        for (address, name), state in known.copy().items():
            age = now - state.told_at
            if age > _FORGET_SECONDS:
                # Another process follows it now, or its feed was closed.
                known.pop((address, name), None)
            elif (value := measure(state, age)) is not None:
                found.setdefault(address, []).append((value, name))
        for address, values in found.items():
            for value, name in sorted(values, reverse=greatest)[: self.most]:
                yield address, name, value


def _states(told: OperationDiagnostics) -> Iterator[tuple[str, PartitionState]]:
    until, marks, headrooms = (
        told.partitions_read_until,
        told.partitions_watermark,
        told.partitions_headroom_seconds,
    )
    now = time.monotonic()
    for name in until.keys() | marks.keys() | headrooms.keys():
        lag = None
        if name in until and told.read_until is not None and told.lag_seconds is not None:
            # The service's time is that of the feed's lag.
            lag = max(0.0, told.lag_seconds - (until[name] - told.read_until).total_seconds())
        mark = marks.get(name)
        yield (
            name,
            PartitionState(lag, headrooms.get(name), None if mark is None else mark.timestamp(), now),
        )


def _plus(value: float | None, seconds: float) -> float | None:
    return None if value is None else max(0.0, value + seconds)
