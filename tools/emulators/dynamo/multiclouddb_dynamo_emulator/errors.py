"""Defines the errors of DynamoDB and DynamoDB Streams, in the form that the protocol uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
import orjson

__all__ = ["KNOWN", "Known", "ServiceError", "invalid", "not_found"]

_DYNAMO: Final = "com.amazonaws.dynamodb.v20120810"
_CORAL: Final = "com.amazon.coral.service"
_VALIDATE: Final = "com.amazon.coral.validate"


@attrs.frozen
class Known:
    """The properties of an error.

    Attributes:
        message: The usual message of the error.
        status: The HTTP status of the answer.
        namespace: The text before the error code in an answer.
    """

    message: str
    status: int = 400
    namespace: str = _DYNAMO


KNOWN: Final[Mapping[str, Known]] = {
    "ResourceNotFoundException": Known("Requested resource not found"),
    "ResourceInUseException": Known("Table already exists"),
    "TrimmedDataAccessException": Known("The operation attempted to read past the oldest stream record."),
    "ExpiredIteratorException": Known("The shard iterator is older than 15 minutes."),
    "LimitExceededException": Known("Too many operations for a given subscriber."),
    "ProvisionedThroughputExceededException": Known(
        "The level of configured provisioned throughput was exceeded."
    ),
    "RequestLimitExceeded": Known("Throughput exceeds the current throughput limit for your account."),
    "ThrottlingException": Known("Rate of requests exceeds the allowed throughput.", namespace=_CORAL),
    "InternalServerError": Known("An error occurred on the server side.", status=500),
    "InternalFailure": Known("The request processing has failed.", status=500, namespace=_CORAL),
    "ServiceUnavailable": Known("The service is unavailable.", status=503, namespace=_CORAL),
    "ValidationException": Known("The request is not valid.", namespace=_VALIDATE),
    "SerializationException": Known("The request cannot be read.", namespace=_CORAL),
    "UnknownOperationException": Known("There is no such operation.", namespace=_CORAL),
    "AccessDeniedException": Known(
        "User: arn:aws:iam::000000000000:user/reader is not authorized to perform this operation",
        namespace=_CORAL,
    ),
    "UnrecognizedClientException": Known(
        "The security token included in the request is invalid.", namespace=_CORAL
    ),
    "ExpiredTokenException": Known("The security token included in the request is expired", namespace=_CORAL),
    "InvalidSignatureException": Known(
        "The request signature we calculated does not match the signature you provided.", namespace=_CORAL
    ),
    "MissingAuthenticationTokenException": Known("Request is missing Authentication Token", namespace=_CORAL),
}
"""Maps each error code to its properties."""


class ServiceError(Exception):
    """An answer that is an error.

    Args:
        code: The error code, for example `ThrottlingException`; a code that is not in `KNOWN` is also
            allowed.
        message: The message; None means the usual message.
        status: The HTTP status; None means the usual status.
        retry_after: The number of seconds for an `x-amz-retry-after` header, which is in milliseconds
            (boto/botocore#3678).
    """

    def __init__(
        self,
        code: str,
        message: str | None = None,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        known = KNOWN.get(code, Known("Scripted."))
        self.code = code
        self.message = known.message if message is None else message
        self.status = known.status if status is None else status
        self.retry_after = retry_after
        self._namespace = known.namespace
        super().__init__(f"{code}: {self.message}")

    def body(self) -> bytes:
        """The answer's body."""
        return orjson.dumps({"__type": f"{self._namespace}#{self.code}", "message": self.message})


def invalid(message: str) -> ServiceError:
    """Return a `ValidationException`."""
    return ServiceError("ValidationException", message)


def not_found(message: str) -> ServiceError:
    """Return a `ResourceNotFoundException`."""
    return ServiceError("ResourceNotFoundException", message)
