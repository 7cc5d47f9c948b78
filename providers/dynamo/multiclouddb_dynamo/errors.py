"""What a failure of boto3 or of the service means; pure."""

from __future__ import annotations

from typing import Final

import attrs
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    InvalidRegionError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
from botocore.exceptions import (
    ConnectionError as BotoConnectionError,
)

from multiclouddb_api import ErrorCategory
from multiclouddb_api.errors import DOCS_URL
from multiclouddb_spi import Fault, ProviderFault

__all__ = [
    "BROKEN",
    "EXPIRED_ITERATOR",
    "GONE",
    "PROVIDER_ID",
    "REJECTED",
    "classify",
    "code_of",
    "expired",
    "fault",
]

PROVIDER_ID: Final = "dynamo"

EXPIRED_ITERATOR: Final = "ExpiredIteratorException"
REJECTED: Final = frozenset({"ValidationException", "ParamValidation"})
BROKEN: Final = frozenset({"InternalFailure", "InternalServerError"})
GONE: Final = frozenset({"TrimmedDataAccessException", "ResourceNotFoundException"})
"""A shard or a record in it is not there any more."""

_DENIED: Final = f"give the identity that boto3 found the permissions of {DOCS_URL}how-to/dynamodb/"
_WHO: Final = (
    "check what boto3's credential chain finds (aws sts get-caller-identity): environment, profile, role"
)
_SLOWER: Final = (
    "read with fewer processes: a shard serves two readers at a time, DescribeStream ten calls a second"
)
_LATER: Final = "the service is in trouble; try again"
_MOST_TEXT: Final = 300
_OURS: Final = "this should not happen; please report it with the text of this error"

_AUTHENTICATION: Final = (ErrorCategory.AUTHENTICATION_FAILED, False, _WHO)
_AUTHORIZATION: Final = (ErrorCategory.AUTHORIZATION_FAILED, False, _DENIED)
_THROTTLED: Final = (ErrorCategory.THROTTLED, True, _SLOWER)
_UNAVAILABLE: Final = (ErrorCategory.TRANSIENT_FAILURE, True, _LATER)

# The service's code → category, retryable, way out.
_CODES: Final[dict[str, tuple[ErrorCategory, bool, str]]] = {
    "ResourceNotFoundException": (
        ErrorCategory.NOT_FOUND,
        False,
        "check the table's name, the region and the account",
    ),
    "TrimmedDataAccessException": (
        ErrorCategory.CHECKPOINT_EXPIRED,
        False,
        "DynamoDB keeps a stream record for 24 hours; start again, or read with on_expired=SkipToOldest()",
    ),
    EXPIRED_ITERATOR: (ErrorCategory.TRANSIENT_FAILURE, True, "an iterator lives 15 minutes; try again"),
    "ValidationException": (
        ErrorCategory.INVALID_REQUEST,
        False,
        "pass a token or partition id unchanged, and a table name as DynamoDB allows it",
    ),
    "SerializationException": (ErrorCategory.INVALID_REQUEST, False, _OURS),
    "ConditionalCheckFailedException": (ErrorCategory.CONFLICT, False, _OURS),
    "AccessDeniedException": _AUTHORIZATION,
    "AccessDenied": _AUTHORIZATION,
    "OptInRequired": _AUTHORIZATION,
    "UnrecognizedClientException": _AUTHENTICATION,
    "InvalidSignatureException": _AUTHENTICATION,
    "IncompleteSignature": _AUTHENTICATION,
    "IncompleteSignatureException": _AUTHENTICATION,
    "MissingAuthenticationToken": _AUTHENTICATION,
    "MissingAuthenticationTokenException": _AUTHENTICATION,
    "InvalidClientTokenId": _AUTHENTICATION,
    "ExpiredToken": _AUTHENTICATION,
    "ExpiredTokenException": _AUTHENTICATION,
    "LimitExceededException": _THROTTLED,
    "ThrottlingException": _THROTTLED,
    "Throttling": _THROTTLED,
    "ProvisionedThroughputExceededException": _THROTTLED,
    "RequestLimitExceeded": _THROTTLED,
    "TooManyRequestsException": _THROTTLED,
    "InternalServerError": _UNAVAILABLE,
    "InternalFailure": _UNAVAILABLE,
    "ServiceUnavailable": _UNAVAILABLE,
    "ServiceUnavailableException": _UNAVAILABLE,
    "RequestTimeout": _UNAVAILABLE,
    "RequestTimeoutException": _UNAVAILABLE,
}
# Their text may quote the request that was signed, and with it a session token.
_SIGNED: Final = frozenset(
    {"InvalidSignatureException", "IncompleteSignature", "IncompleteSignatureException"}
)


def fault(category: ErrorCategory, message: str, *, retryable: bool = False) -> ProviderFault:
    """The failure for what the provider found out itself."""
    return ProviderFault(Fault(category, message, retryable=retryable))


def expired(what: str) -> ProviderFault:
    """The fault for a position that the stream does not hold any more."""
    return fault(
        ErrorCategory.CHECKPOINT_EXPIRED,
        f"{what}: DynamoDB keeps a stream record for 24 hours; start again, or read with "
        "on_expired=SkipToOldest() to go on behind the gap",
    )


def code_of(error: BaseException) -> str:
    """The service's code; `ParamValidation` for what botocore refuses itself; empty for anything else."""
    if isinstance(error, ParamValidationError):
        return "ParamValidation"
    if isinstance(error, ClientError):
        return str(error.response.get("Error", {}).get("Code", ""))
    return ""


def classify(error: Exception, *, vendor_retried: bool = False) -> Fault:
    """Say what an exception means; raises nothing, also for unknown exceptions.

    Args:
        error: The exception.
        vendor_retried: True when botocore was configured to retry by itself.
    """
    match error:
        case ClientError():
            return _service_fault(error, vendor_retried)
        case BotoCoreError():
            return _client_fault(error, vendor_retried)
        case OSError():
            return _fault(_UNAVAILABLE, _short(f"{type(error).__name__}: {error}"), None, vendor_retried)
        case _:
            text = _short(f"{type(error).__name__}: {error}")
            return Fault(ErrorCategory.PERMANENT_FAILURE, f"{text}; {_OURS}")


def _short(text: str) -> str:
    """On one line, and not too long."""
    return " ".join(text.split())[:_MOST_TEXT]


def _fault(
    row: tuple[ErrorCategory, bool, str],
    text: str,
    code: str | None,
    vendor_retried: bool,
    retry_after: float | None = None,
) -> Fault:
    category, retryable, way_out = row
    return Fault(category, f"{text}; {way_out}", code, retryable, retry_after, retryable and vendor_retried)


def _service_fault(error: ClientError, vendor_retried: bool) -> Fault:
    code = code_of(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    row = _CODES.get(code)
    if row is None and status == 429:  # a proxy's, or what is in front of the service: its text is no JSON
        row = _THROTTLED
    if row is None:
        row = _UNAVAILABLE if status >= 500 else (ErrorCategory.PERMANENT_FAILURE, False, _OURS)
    text = "" if code in _SIGNED else str(error.response.get("Error", {}).get("Message", "")).strip()
    words = f"{error.operation_name}: {code}" + (f" ({text.splitlines()[0][:_MOST_TEXT]})" if text else "")
    found = _fault(row, words, code, vendor_retried, _retry_after(error))
    return attrs.evolve(found, confidential=code in _SIGNED)


def _retry_after(error: ClientError) -> float | None:
    """Seconds that the service asked to wait."""
    asked = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("retry-after", "")
    try:
        return max(0.0, float(asked))
    except ValueError:
        return None


def _client_fault(error: BotoCoreError, vendor_retried: bool) -> Fault:
    text, code = _short(str(error)), type(error).__name__
    match error:
        case NoCredentialsError() | PartialCredentialsError() | CredentialRetrievalError():
            return _fault(_AUTHENTICATION, text, code, False)
        case SSOError() | TokenRetrievalError() | ProfileNotFound():
            return _fault(_AUTHENTICATION, text, code, False)
        case NoRegionError() | InvalidRegionError():
            row = (ErrorCategory.INVALID_REQUEST, False, "name the region: dynamo://eu-west-1")
            return _fault(row, text, code, False)
        case ParamValidationError():
            row = (
                ErrorCategory.INVALID_REQUEST,
                False,
                "pass a token or partition id unchanged, and a table name as DynamoDB allows it",
            )
            return _fault(row, text, code, False)
        case BotoConnectionError() | HTTPClientError():
            way_out = "check the region, the endpoint_url and the way there (proxy, VPC endpoint)"
            return _fault((ErrorCategory.TRANSIENT_FAILURE, True, way_out), text, code, vendor_retried)
        case _:
            return _fault((ErrorCategory.PERMANENT_FAILURE, False, _OURS), text, code, False)
