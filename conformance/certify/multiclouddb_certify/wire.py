"""Shows an observer each request of the vendor's SDK; `Meter` counts them and ends the run at its bound."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.sharedctypes import RawValue
from typing import Any, Final, Protocol

import attrs

from multiclouddb_api import invalid_request

__all__ = [
    "AT_THE_BOUND",
    "REQUEST",
    "Call",
    "Meter",
    "Price",
    "WireObserver",
    "WireResponse",
    "add",
    "cost",
    "dollars",
    "http_wire",
    "priced",
]

REQUEST: Final = "request"
"""The unit that counts every request."""
AT_THE_BOUND: Final = 75
"""The status with which a process ends at the bound of its budget."""


@attrs.frozen
class Price:
    """What one unit costs."""

    unit: str
    """The service's own unit, for example `write request unit`."""
    usd: float
    """The price of one unit, in US dollars."""
    source: str
    """Which price is assumed, and where it is published."""


@attrs.frozen
class Call:
    """One request.

    Attributes:
        operation: The service's name of the operation.
        headers: The headers or metadata.
        body: The body of an HTTP request, or the message of gRPC, or the command of MongoDB.
    """

    operation: str
    headers: Mapping[str, str]
    body: Any


@attrs.frozen
class WireResponse:
    """The answer to one request.

    Attributes:
        status: The HTTP status, or 0 without HTTP.
        headers: The headers.
    """

    status: int
    headers: Mapping[str, str]


class WireObserver(Protocol):
    """Sees what goes over the wire. Several threads call it."""

    def asked(self, call: Call) -> None:
        """Take note of a request, before it is sent; an error of this method ends the request."""

    def answered(self, call: Call, answer: WireResponse) -> None:
        """Take note of an answer. A request whose connection broke has none."""


class Meter:
    """Counts requests and the service's units, and ends the process when they have cost the budget.

    Args:
        budget: The most that may be spent, in US dollars.
        prices: The price of each unit.
        units_of: Returns the units of one request.
        tell: Is called with the operation and the units of each request.
        stop: Is called when the budget is spent; it must not return.
    """

    def __init__(
        self,
        budget: float,
        prices: Sequence[Price],
        units_of: Callable[[Call, WireResponse], Mapping[str, float]],
        tell: Callable[[str, Mapping[str, float]], None],
        stop: Callable[[], None] = lambda: os._exit(AT_THE_BOUND),
    ) -> None:
        self._budget, self._units_of, self._tell, self._stop = budget, units_of, tell, stop
        self._prices = {each.unit: each.usd for each in prices}
        self._lock = threading.Lock()
        # A process that a test forks counts into the same memory.
        self._spent = RawValue("d", 0.0)

    @property
    def spent(self) -> float:
        """What was spent so far, in US dollars."""
        return float(self._spent.value)

    @spent.setter
    def spent(self, usd: float) -> None:
        self._spent.value = usd

    def asked(self, call: Call) -> None:
        """Count a request, or end the run."""
        if self._spent.value > self._budget:
            self._stop()
        self._tell(call.operation, {REQUEST: 1})

    def answered(self, call: Call, answer: WireResponse) -> None:
        """Count the units of an answer."""
        units = self._units_of(call, answer)
        if units:
            with self._lock:
                self._spent.value += cost(units, self._prices)
            self._tell(call.operation, units)


def priced(assumed: Sequence[Price], own: Sequence[str]) -> Sequence[Price]:
    """Return the prices, some of which are replaced.

    Args:
        assumed: The prices that the certification assumes.
        own: Prices of the user, each as `UNIT=USD`.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if a text is no price of one of the units.
    """
    found = {each.unit: each for each in assumed}
    for text in own:
        unit, _, number = text.rpartition("=")
        if unit not in found:
            known = ", ".join(map(repr, found)) or "no unit of this service has a price"
            raise invalid_request("--price", f"{text!r} names no unit that has a price", f"known: {known}")
        try:
            usd = float(number)
        except ValueError:
            usd = -1.0
        if not 0 <= usd < math.inf:
            raise invalid_request("--price", f"{number!r} is no price", f'write it as "{unit}=0.000001"')
        found[unit] = Price(unit, usd, "given with --price")
    return tuple(found.values())


def add(total: dict[str, float], units: Mapping[str, float]) -> None:
    """Add units to a total."""
    for unit, number in units.items():
        total[unit] = total.get(unit, 0.0) + number


def dollars(usd: float) -> str:
    """Return an amount with six digits, rounded up: a budget of this amount is enough."""
    return f"${math.ceil(usd * 1e6) / 1e6:.6f}"


def cost(units: Mapping[str, float], prices: Mapping[str, float]) -> float:
    """Return what units cost, in US dollars."""
    return sum(number * prices.get(unit, 0.0) for unit, number in units.items())


@contextmanager
def http_wire(
    observer: WireObserver, operation_of: Callable[[str, str, Mapping[str, str]], str | None]
) -> Iterator[None]:
    """Show the observer each request that urllib3 sends, which boto3 and azure-cosmos use.

    Args:
        observer: The observer.
        operation_of: Returns the operation for a method, a path and the headers; None for a request that
            is not the service's, for example one for credentials.
    """
    from urllib3.connectionpool import HTTPConnectionPool

    send = HTTPConnectionPool.urlopen

    def urlopen(
        pool: Any, method: str, url: str, body: Any = None, headers: Any = None, *rest: Any, **more: Any
    ) -> Any:
        sent = {str(name).lower(): _text(value) for name, value in (headers or {}).items()}
        operation = operation_of(method, url, sent)
        if operation is None:
            return send(pool, method, url, body, headers, *rest, **more)
        call = Call(operation, sent, body)
        observer.asked(call)
        native = send(pool, method, url, body, headers, *rest, **more)
        got = {str(name).lower(): str(value) for name, value in native.headers.items()}
        observer.answered(call, WireResponse(native.status, got))
        return native

    HTTPConnectionPool.urlopen = urlopen  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        HTTPConnectionPool.urlopen = send  # type: ignore[method-assign]


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
