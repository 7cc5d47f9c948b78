"""Injects faults on demand: the given number of next requests fail in the requested way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeAlias

import attrs

from multiclouddb_cosmos_emulator.errors import ServiceError

__all__ = ["Act", "Action", "Drop", "Fail", "Fault", "Faults", "Lag", "Slow"]

_MESSAGES: Final = {
    400: "The request is not valid.",
    403: "The request is forbidden.",
    408: "The operation did not complete within the allowed time.",
    410: "The requested resource is no longer available at the server.",
    429: "The request rate is large. More Request Units may be needed, so no changes were made.",
    449: "Conflicting request to resource has been attempted. Retry to avoid conflicts.",
    500: "An unknown error occurred while processing this request.",
    503: "Service is currently unavailable.",
}


@attrs.frozen
class Fail:
    """Answers the request with an error.

    Attributes:
        status: The HTTP status.
        substatus: The number of the substatus; 0 means none.
        retry_after: The delay, in seconds, that the header `x-ms-retry-after-ms` requests; None: no header.
        message: The message; None means the usual message.
    """

    status: int
    substatus: int = 0
    retry_after: float | None = None
    message: str | None = None

    def error(self) -> ServiceError:
        """Return the error that the server sends to the client."""
        message = self.message or _MESSAGES.get(self.status, "The request has failed.")
        headers = {}
        if self.retry_after is not None:
            headers["x-ms-retry-after-ms"] = f"{self.retry_after * 1000:.0f}"
        return ServiceError(self.status, message, self.substatus, headers)


@attrs.frozen
class Drop:
    """Closes the connection before the answer, or in the middle of the answer."""

    mid_body: bool = False


@attrs.frozen
class Slow:
    """Delays the answer to the request."""

    seconds: float


@attrs.frozen
class Act:
    """Calls a function before the server handles the request."""

    act: Callable[[], object]


@attrs.frozen
class Lag:
    """Answers a read of the change feed like a replica that does not have the newest transactions yet.

    The replica answers with its own LSN as the position, even if the read began at a later position.

    Attributes:
        transactions: The number of the partition's last transactions that the replica lacks.
    """

    transactions: int


Action: TypeAlias = Fail | Drop | Slow | Act | Lag


@attrs.define(eq=False)
class Fault:
    """A requested fault.

    Attributes:
        action: The action.
        operation: The operation that the fault affects, such as `ReadChangeFeed`; None for all.
        container: The fault affects only requests to the container with this id; None for all
            requests.
        partition: The fault affects only requests to the partition with this id; None for all
            requests.
        times: The number of times that the fault happens; None means always.
        after: The number of requests that succeed before the first failure.
        happened: The number of times that the fault has happened.
    """

    action: Action
    operation: str | None = None
    container: str | None = None
    partition: str | None = None
    times: int | None = 1
    after: int = 0
    happened: int = 0

    def strikes(self, operation: str, container: str | None, partition: str | None) -> bool:
        """Return True if the fault must be applied to this request."""
        fits = (
            self.operation in (None, operation)
            and self.container in (None, container)
            and self.partition in (None, partition)
        )
        if not fits or (self.times is not None and self.happened >= self.times):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.happened += 1
        return True


class Faults:
    """The faults that were requested from a server. Several threads can use this object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[Fault] = []

    def add(
        self,
        action: Action,
        operation: str | None = None,
        *,
        container: str | None = None,
        partition: str | None = None,
        times: int | None = 1,
        after: int = 0,
    ) -> Fault:
        """Add a fault. The arguments are the same as for `Fault`."""
        fault = Fault(action, operation, container, partition, times, after)
        with self._lock:
            self._all.append(fault)
        return fault

    def clear(self) -> None:
        """End all faults."""
        with self._lock:
            self._all.clear()

    def striking(self, operation: str, container: str | None, partition: str | None) -> list[Action]:
        """Return the faults to apply to a request, in the order in which they were added.

        After a fault that ends the request, no more faults are returned.
        """
        struck: list[Action] = []
        with self._lock:
            for fault in self._all:
                if fault.strikes(operation, container, partition):
                    struck.append(fault.action)
                    if isinstance(fault.action, Fail | Drop):
                        break
        return struck
