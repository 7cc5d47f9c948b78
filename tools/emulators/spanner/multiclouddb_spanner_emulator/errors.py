"""Defines the errors of Cloud Spanner in the form that the protocol uses."""

from __future__ import annotations

from typing import Any, Final

import grpc
from google.rpc.error_details_pb2 import ResourceInfo, RetryInfo
from google.rpc.status_pb2 import Status

__all__ = ["ServiceError", "invalid", "not_found", "out_of_range", "unimplemented"]

_ADMIN: Final = "type.googleapis.com/google.spanner.admin"
_KINDS: Final = {
    "Session": "type.googleapis.com/google.spanner.v1.Session",
    "Database": f"{_ADMIN}.database.v1.Database",
    "Instance": f"{_ADMIN}.instance.v1.Instance",
}


class ServiceError(Exception):
    """An answer that is an error.

    Args:
        status: The status of the error, for example `UNAVAILABLE`.
        message: Its message.
        retry_after: The number of seconds that the client should wait; None to omit this detail.
        resource: The kind and name of the missing resource, or None.
    """

    def __init__(
        self,
        status: str,
        message: str,
        retry_after: float | None = None,
        resource: tuple[str, str] | None = None,
    ) -> None:
        self.status: grpc.StatusCode = grpc.StatusCode[status]
        self.message = message
        self.retry_after = retry_after
        self._resource = resource
        super().__init__(f"{status}: {message}")

    def details(self) -> list[tuple[str, bytes]]:
        """Return the trailing metadata that contains the details."""
        told: list[Any] = []
        found: list[tuple[str, bytes]] = []
        if self.retry_after is not None:
            info = RetryInfo()
            info.retry_delay.FromNanoseconds(round(self.retry_after * 10**9))
            found.append(("google.rpc.retryinfo-bin", info.SerializeToString()))
            told.append(info)
        if self._resource is not None:
            kind, name = self._resource
            told.append(
                ResourceInfo(
                    resource_type=_KINDS[kind], resource_name=name, description=f"{kind} does not exist."
                )
            )
        if told:
            status = Status(code=self.status.value[0], message=self.message)
            for each in told:
                status.details.add().Pack(each)
            found.append(("grpc-status-details-bin", status.SerializeToString()))
        return found


def invalid(message: str) -> ServiceError:
    """Return an `INVALID_ARGUMENT` error."""
    return ServiceError("INVALID_ARGUMENT", message)


def out_of_range(message: str) -> ServiceError:
    """Return an `OUT_OF_RANGE` error."""
    return ServiceError("OUT_OF_RANGE", message)


def unimplemented(what: str) -> ServiceError:
    """Return an `UNIMPLEMENTED` error for a feature that the emulator lacks, but the service may have."""
    return ServiceError("UNIMPLEMENTED", f"The scripted server does not know {what}")


def not_found(kind: str, name: str) -> ServiceError:
    """Return a `NOT_FOUND` error for a session, a database or an instance."""
    return ServiceError("NOT_FOUND", f"{kind} not found: {name}", resource=(kind, name))
