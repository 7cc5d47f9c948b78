"""Maps each failure of boto3 or of the service to its category. The functions are pure."""

from __future__ import annotations

from typing import Final

from botocore import exceptions as boto
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from multiclouddb_api import ErrorCategory
from multiclouddb_api.errors import DOCS_URL
from multiclouddb_spi import Fault, ProviderFault, expired
from multiclouddb_spi.faults import (
    REPORT,
    START_AGAIN,
    UNAVAILABLE,
    Row,
    one_line,
    row_of_connection,
    row_of_status,
    unexpected,
)

PROVIDER_ID: Final = "dynamo"

EXPIRED_ITERATOR: Final = "ExpiredIteratorException"
REJECTED: Final = frozenset({"ValidationException", "ParamValidation"})
BROKEN: Final = frozenset({"InternalFailure", "InternalServerError"})
MISSING: Final = "ResourceNotFoundException"
GONE: Final = frozenset({"TrimmedDataAccessException", MISSING})
"""The error codes for a shard, or a record in a shard, that no longer exists."""

ITS_OPERATOR: Final = "report it to whoever runs the service at this endpoint"
"""The advice for an answer that contradicts itself."""
_DENIED: Final = f"grant the permissions in {DOCS_URL}how-to/dynamodb/ to the identity that boto3 found"
_WHO: Final = (
    "check what boto3's credential chain finds (aws sts get-caller-identity): environment, profile, role"
)
_SLOWER: Final = (
    "read with fewer processes: a shard serves two readers at a time, and DescribeStream allows ten calls a "
    "second"
)
_ASKED: Final = "pass a token or partition id unchanged, and a table name that DynamoDB allows"
_KEPT: Final = "DynamoDB keeps a stream record for 24 hours"

_AUTHENTICATION: Final = Row(ErrorCategory.AUTHENTICATION_FAILED, _WHO)
_CREDENTIALS_LATE: Final = Row(ErrorCategory.TRANSIENT_FAILURE, f"try again; if that does not help, {_WHO}")
_AUTHORIZATION: Final = Row(ErrorCategory.AUTHORIZATION_FAILED, _DENIED)
# The messages of these errors may quote the signed request, which may contain a session token.
_SIGNED: Final = Row(ErrorCategory.AUTHENTICATION_FAILED, _WHO, confidential=True)
_THROTTLED: Final = Row(ErrorCategory.THROTTLED, _SLOWER)
_REFUSED: Final = Row(ErrorCategory.INVALID_REQUEST, _ASKED)
_SCANNED_SLOWER: Final = Row(
    ErrorCategory.THROTTLED,
    "scan slower, with Snapshot(max_scan_rate=…), or give the table more read capacity",
)
_BROKEN: Final = Row(ErrorCategory.PERMANENT_FAILURE, REPORT)

_TRIMMED: Final = Row(ErrorCategory.CHECKPOINT_EXPIRED, f"{_KEPT}; {START_AGAIN}")
_MEANINGS: Final[list[tuple[Row, str]]] = [
    (Row(ErrorCategory.NOT_FOUND, "check the table's name, the region and the account"), MISSING),
    (_TRIMMED, "TrimmedDataAccessException"),
    (
        Row(ErrorCategory.TRANSIENT_FAILURE, "an iterator expires after 15 minutes; try again"),
        EXPIRED_ITERATOR,
    ),
    (_REFUSED, "ValidationException"),
    (Row(ErrorCategory.INVALID_REQUEST, REPORT), "SerializationException"),
    (Row(ErrorCategory.CONFLICT, REPORT), "ConditionalCheckFailedException"),
    (_AUTHORIZATION, "AccessDeniedException AccessDenied OptInRequired"),
    (_AUTHENTICATION, "UnrecognizedClientException InvalidClientTokenId ExpiredToken ExpiredTokenException"),
    (_AUTHENTICATION, "MissingAuthenticationToken MissingAuthenticationTokenException"),
    (_SIGNED, "InvalidSignatureException IncompleteSignature IncompleteSignatureException"),
    (_THROTTLED, "LimitExceededException ThrottlingException Throttling RequestLimitExceeded"),
    (_THROTTLED, "ProvisionedThroughputExceededException TooManyRequestsException"),
    (UNAVAILABLE, "InternalServerError InternalFailure ServiceUnavailable ServiceUnavailableException"),
    (UNAVAILABLE, "RequestTimeout RequestTimeoutException"),
]
_CODES: Final = {code: row for row, codes in _MEANINGS for code in codes.split()}
"""Maps each error code of the service to its meaning."""


def expired_records(what: str) -> ProviderFault:
    """Return the fault for a position whose records the stream no longer contains."""
    return expired(f"{what}: {_KEPT}")


def code_of(error: BaseException) -> str:
    """Return the error code of the service."""
    if isinstance(error, ParamValidationError):
        return "ParamValidation"
    if isinstance(error, ClientError):
        return str(error.response.get("Error", {}).get("Code", ""))
    return ""


def classify(error: Exception, *, vendor_retried: bool = False) -> Fault:
    """Classify a failure. This function never raises an exception, even if the failure is unknown."""
    match error:
        case ClientError():
            code = code_of(error)
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            row = _CODES.get(code) or row_of_status(status) or _BROKEN
            if row is _THROTTLED and error.operation_name == "Scan":
                row = _SCANNED_SLOWER
            text = "" if row.confidential else str(error.response.get("Error", {}).get("Message", "")).strip()
            text = one_line(text.splitlines()[0]) if text else ""
            said = f"{error.operation_name}: {code}" + (f" ({text})" if text else "")
            return row.fault(said, code, retry_after=_retry_after(error), vendor_retried=vendor_retried)
        case boto.CredentialRetrievalError():  # for example, the metadata service did not answer in time
            row = _CREDENTIALS_LATE
        case (
            boto.NoCredentialsError()
            | boto.PartialCredentialsError()
            | boto.SSOError()
            | boto.TokenRetrievalError()
            | boto.ProfileNotFound()
        ):
            row = _AUTHENTICATION
        case boto.NoRegionError() | boto.InvalidRegionError():
            row = Row(ErrorCategory.INVALID_REQUEST, "name the region: dynamo://eu-west-1")
        case ParamValidationError():
            row = _REFUSED
        case boto.ConnectionError() | boto.HTTPClientError():
            way_out = "check the region, the endpoint_url and the network (proxy, VPC endpoint)"
            row = row_of_connection(error) or Row(ErrorCategory.TRANSIENT_FAILURE, way_out)
        case boto.PaginationError():
            row = Row(ErrorCategory.PERMANENT_FAILURE, ITS_OPERATOR)
        case BotoCoreError():
            row = _BROKEN
        case OSError():
            said = one_line(f"{type(error).__name__}: {error}")
            return UNAVAILABLE.fault(said, vendor_retried=vendor_retried)
        case _:
            return unexpected(error)
    return row.fault(one_line(str(error)), type(error).__name__, vendor_retried=vendor_retried)


def _retry_after(error: ClientError) -> float | None:
    """Return the number of seconds that the service asked the client to wait."""
    asked = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("retry-after", "")
    try:
        return max(0.0, float(asked))
    except ValueError:
        return None
