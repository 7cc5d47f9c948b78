"""Defines the errors of the service, in the form of its HTTP protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

__all__ = [
    "CODES",
    "ServiceError",
    "bad_request",
    "conflict",
    "gone",
    "not_found",
    "not_offered",
    "precondition_failed",
]

CODES: Final[Mapping[int, str]] = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    408: "RequestTimeout",
    409: "Conflict",
    410: "Gone",
    412: "PreconditionFailed",
    413: "RequestEntityTooLarge",
    429: "TooManyRequests",
    449: "RetryWith",
    500: "InternalServerError",
    501: "NotImplemented",
    503: "ServiceUnavailable",
}
"""Maps each status to the code in the body of the answer."""


class ServiceError(Exception):
    """An answer that is an error.

    Args:
        status: The HTTP status of the answer.
        message: The message in the body.
        substatus: The header `x-ms-substatus`; 0 means none.
        headers: Additional headers.
    """

    def __init__(
        self, status: int, message: str, substatus: int = 0, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status, self.message, self.substatus = status, message, substatus
        self.headers = dict(headers or {})
        super().__init__(f"{status}/{substatus}: {message}")

    def body(self, activity_id: str) -> bytes:
        """The answer's body."""
        text = f"{self.message}\r\nActivityId: {activity_id}, multiclouddb-cosmos-emulator"
        return orjson.dumps({"code": CODES.get(self.status, str(self.status)), "message": text})


def _errors(text: str) -> str:
    return f"Message: {orjson.dumps({'Errors': [text]}).decode()}"


def bad_request(text: str, substatus: int = 0) -> ServiceError:
    """Return a 400 error."""
    return ServiceError(400, _errors(text), substatus)


def not_found(text: str = "Resource Not Found.", substatus: int = 0) -> ServiceError:
    """Return a 404 error."""
    return ServiceError(404, _errors(text), substatus)


def conflict(text: str = "Resource with specified id or name already exists.") -> ServiceError:
    """Return a 409 error."""
    return ServiceError(409, _errors(text))


def precondition_failed() -> ServiceError:
    """Return a 412 error."""
    return ServiceError(412, _errors("One of the specified pre-condition is not met"))


def gone(substatus: int, text: str) -> ServiceError:
    """Return a 410 error."""
    return ServiceError(410, _errors(text), substatus)


def not_offered(what: str) -> ServiceError:
    """Return a 501 error for a feature that the service offers, but the emulator does not."""
    return ServiceError(501, f"multiclouddb-cosmos-emulator does not offer {what}.")
