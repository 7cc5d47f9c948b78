"""Maps each failure of boto3 or of the service to its category."""

from __future__ import annotations

from contextlib import suppress
from traceback import walk_tb
from typing import Final

from botocore import exceptions as boto
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
from botocore.parsers import ResponseParserError

from multiclouddb_api import ErrorCategory, ErrorReason
from multiclouddb_api.errors import DOCS_URL
from multiclouddb_spi import Fault, ProviderFault, expired
from multiclouddb_spi.faults import (
    REPORT,
    START_AGAIN,
    UNAVAILABLE,
    FaultRule,
    clock_row,
    one_line,
    row_of_clock,
    row_of_connection,
    row_of_status,
    unexpected,
)
from multiclouddb_spi.machine_role import MachineRole, aws_fails

PROVIDER_ID: Final = "dynamo"

EXPIRED_ITERATOR: Final = "ExpiredIteratorException"
REJECTED: Final = frozenset({"ValidationException", "ParamValidation"})
BROKEN: Final = frozenset({"InternalFailure", "InternalServerError"})
_NO_OPERATION: Final = "UnknownOperationException"
MISSING: Final = "ResourceNotFoundException"
TRIMMED: Final = "TrimmedDataAccessException"
GONE: Final = frozenset({TRIMMED, MISSING})
"""The error codes for a shard, or a record in a shard, that no longer exists."""

ITS_OPERATOR: Final = "report it to whoever runs the service at this endpoint"
"""The advice for an answer that contradicts itself."""
_DENIED: Final = (
    "if the service names no other reason, such as a KMS key, grant the permissions in "
    f"{DOCS_URL}databases/dynamodb/ to the identity that boto3 found"
)
_WHO: Final = (
    "check what boto3's credential chain finds (aws sts get-caller-identity): environment, profile, role"
)
_SLOWER: Final = (
    "read with fewer processes: a shard serves two readers at a time, and DescribeStream allows ten calls a "
    "second"
)
_ASKED: Final = "pass a token or partition id unchanged, and a table name that DynamoDB allows"
STREAMS_ENDPOINT: Final = "AWS_ENDPOINT_URL_DYNAMODB_STREAMS"
"""The variable with which boto3 finds another endpoint for streams than for tables."""
_KEPT: Final = "DynamoDB keeps a stream record for 24 hours"

# A key that was replaced is refused by another code than a token that has expired.
_AUTHENTICATION: Final = FaultRule(ErrorCategory.AUTHENTICATION_FAILED, _WHO, renewable=True)
_CREDENTIALS_LATE: Final = FaultRule(
    ErrorCategory.TRANSIENT_FAILURE, f"try again; if that does not help, {_WHO}"
)
# New clients are made for the next attempt, because boto3's keep that they have found no credentials.
_ROLE_LATE: Final = FaultRule(
    ErrorCategory.TRANSIENT_FAILURE,
    f"the machine's metadata service, which has them, fails; try again; if that does not help, {_WHO}",
    renewable=True,
)
_ROLE: Final = MachineRole(aws_fails)
_AUTHORIZATION: Final = FaultRule(ErrorCategory.AUTHORIZATION_FAILED, _DENIED)
# The messages of these errors may quote the signed request, which may contain a session token.
_SIGNED: Final = FaultRule(ErrorCategory.AUTHENTICATION_FAILED, _WHO, confidential=True, renewable=True)
_THROTTLED: Final = FaultRule(ErrorCategory.THROTTLED, _SLOWER)
_REFUSED: Final = FaultRule(ErrorCategory.INVALID_REQUEST, _ASKED)
_SCANNED_SLOWER: Final = FaultRule(
    ErrorCategory.THROTTLED,
    "scan slower, with Snapshot(max_scan_rate=…), or give the table more read capacity",
)
_BROKEN: Final = FaultRule(ErrorCategory.PERMANENT_FAILURE, REPORT)
_UNKNOWN: Final = FaultRule(
    ErrorCategory.PERMANENT_FAILURE,
    "look this code up in DynamoDB's API reference; if it is not there, another program answers at this "
    "endpoint_url",
)
_EXPIRED: Final = FaultRule(
    ErrorCategory.AUTHENTICATION_FAILED, f"get new credentials; {_WHO}", renewable=True
)
_SETTINGS: Final = FaultRule(
    ErrorCategory.INVALID_REQUEST,
    "check boto3's settings that this text names: variables (AWS_…), the profile, the connection's options",
)
_DAMAGED: Final = FaultRule(ErrorCategory.TRANSIENT_FAILURE, "the answer arrived damaged; try again")
_STREAMLESS: Final = FaultRule(
    ErrorCategory.INVALID_REQUEST,
    "streams are not at this endpoint: a VPC (PrivateLink) has another one for them, so set "
    f"AWS_ENDPOINT_URL_DYNAMODB and {STREAMS_ENDPOINT} in place of endpoint_url; a server without streams "
    "has no changes to read",
)
_SHORT: Final = FaultRule(
    ErrorCategory.INVALID_REQUEST,
    "pass a token or partition id unchanged; or if the server at this endpoint has ids of shards that boto3 "
    "refuses, let multiclouddb make the client, or make it with Config(parameter_validation=False)",
)
_LOOKED_UP: Final = FaultRule(
    ErrorCategory.INVALID_REQUEST, "look up keys of the table's own types, as event.key has"
)

_TRIMMED: Final = FaultRule(
    ErrorCategory.CHECKPOINT_EXPIRED, f"{_KEPT}; {START_AGAIN}", reason=ErrorReason.AGED_OUT
)
_MEANINGS: Final[list[tuple[FaultRule, str]]] = [
    (FaultRule(ErrorCategory.NOT_FOUND, "check the table's name, the region and the account"), MISSING),
    (_TRIMMED, TRIMMED),
    (
        FaultRule(ErrorCategory.TRANSIENT_FAILURE, "an iterator expires after 15 minutes; try again"),
        EXPIRED_ITERATOR,
    ),
    (_REFUSED, "ValidationException"),
    (FaultRule(ErrorCategory.INVALID_REQUEST, REPORT), "SerializationException"),
    (FaultRule(ErrorCategory.CONFLICT, REPORT), "ConditionalCheckFailedException"),
    (_AUTHORIZATION, "AccessDeniedException AccessDenied OptInRequired"),
    (_AUTHENTICATION, "UnrecognizedClientException InvalidClientTokenId InvalidAccessKeyId"),
    (_EXPIRED, "ExpiredToken ExpiredTokenException"),
    (_AUTHENTICATION, "MissingAuthenticationToken MissingAuthenticationTokenException"),
    (_SIGNED, "InvalidSignatureException SignatureDoesNotMatch"),
    (_SIGNED, "IncompleteSignature IncompleteSignatureException"),
    (_THROTTLED, "LimitExceededException ThrottlingException Throttling RequestLimitExceeded"),
    (_THROTTLED, "ProvisionedThroughputExceededException TooManyRequestsException"),
    (UNAVAILABLE, "InternalServerError InternalFailure ServiceUnavailable ServiceUnavailableException"),
    (UNAVAILABLE, "RequestTimeout RequestTimeoutException"),
]
_CODES: Final = {code: row for row, codes in _MEANINGS for code in codes.split()}
"""Maps each error code of the service to its meaning."""

_OPERATIONS: Final = frozenset(
    {
        "ListTables",
        "DescribeTable",
        "Scan",
        "BatchGetItem",
        "DescribeStream",
        "GetShardIterator",
        "GetRecords",
    }
)
"""The calls of this provider; the other calls are made by boto3 to get credentials, for example of STS."""
_ASSUMED: Final = FaultRule(
    ErrorCategory.AUTHORIZATION_FAILED,
    "let this identity assume the role: in the role's trust policy and with sts:AssumeRole",
)
_ASKED_OFTEN: Final = FaultRule(
    ErrorCategory.THROTTLED, "too many processes ask for credentials at the same time; try again"
)
_CREDENTIAL_CODES: Final = {
    "AccessDenied": _ASSUMED,
    "AccessDeniedException": _ASSUMED,
    "ForbiddenException": _ASSUMED,
    "IDPCommunicationError": _CREDENTIALS_LATE,
    **{code: _ASKED_OFTEN for code, row in _CODES.items() if row is _THROTTLED},
    **{code: row for code, row in _CODES.items() if row in (_EXPIRED, _SIGNED, UNAVAILABLE)},
}
_CLOCK_CODES: Final = frozenset({"RequestExpired", "RequestTimeTooSkewed", "RequestInTheFuture"})

# The families of botocore's own exceptions. All others say that a setting is wrong.
_OURS: Final = (
    boto.OperationNotPageableError,
    boto.StubResponseError,
    boto.UnknownClientMethodError,
    boto.WaiterError,
    boto.WaiterConfigError,
    boto.InvalidExpressionError,
    boto.MissingParametersError,
    boto.UnseekableStreamError,
)
_CREDENTIALS: Final = (
    boto.NoCredentialsError,
    boto.NoAuthTokenError,
    boto.PartialCredentialsError,
    boto.UnknownCredentialError,
    boto.TokenRetrievalError,
    boto.RefreshWithMFAUnsupportedError,
    boto.InvalidConfigError,
    boto.ProfileNotFound,
    boto.SSOError,
    # Older versions do not have these, so they do not raise them.
    *(getattr(boto, name) for name in ("LoginError", "UnknownTokenProviderError") if hasattr(boto, name)),
)
_CHECKED: Final = (boto.ChecksumError, boto.FlexibleChecksumError, boto.IncompleteReadError)
_CREDENTIAL_MODULES: Final = frozenset({"botocore.credentials", "botocore.tokens"})


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
            code, found = code_of(error), error.response.get("Error", {})
            row, text = _row_of(error, code), str(found.get("Message", "")).strip()
            text = "" if row.confidential or not text else one_line(text.splitlines()[0])
            said = f"{error.operation_name}: {code}" + (f" ({text})" if text else "")
            return row.fault(said, code, retry_after=_retry_after(error), vendor_retried=vendor_retried)
        case boto.CredentialRetrievalError() | boto.MetadataRetrievalError():
            row = _CREDENTIALS_LATE  # for example, the metadata service did not answer in time
        case boto.NoRegionError() | boto.InvalidRegionError():
            row = FaultRule(ErrorCategory.INVALID_REQUEST, "name the region: dynamo://eu-west-1")
        case ParamValidationError():
            row = _SHORT if "ShardId" in str(error) else _REFUSED
        case boto.HTTPClientError() if isinstance(found := error.kwargs.get("error"), ProviderFault):
            return found.fault  # botocore wraps what is raised while an answer is read
        case boto.ConnectionError() | boto.HTTPClientError():
            way_out = (
                "check the region, the endpoint_url and the network (proxy, VPC endpoint; streams need "
                f"another one, {STREAMS_ENDPOINT})"
            )
            row = row_of_connection(error) or FaultRule(ErrorCategory.TRANSIENT_FAILURE, way_out)
        case boto.ChecksumError():  # of our own check, of which botocore's retries know nothing
            row, vendor_retried = _DAMAGED, False
        case boto.PaginationError():
            row = FaultRule(ErrorCategory.PERMANENT_FAILURE, ITS_OPERATOR)
        case boto.CapacityNotAvailableError():
            row = _THROTTLED
        case BotoCoreError():
            row = _row_of_kind(error)
        case ResponseParserError():
            row = _UNKNOWN
        case _:
            return _other(error, vendor_retried)
    return row.fault(one_line(str(error)), type(error).__name__, vendor_retried=vendor_retried)


def _row_of(error: ClientError, code: str) -> FaultRule:
    """Return the meaning of an answer of the service, or of the one from which boto3 gets credentials."""
    found = error.response.get("Error", {})
    metadata = error.response.get("ResponseMetadata", {})
    late = row_of_clock(str(found.get("Message", "")))
    if late is not None:
        return late
    if code in _CLOCK_CODES:
        date = metadata.get("HTTPHeaders", {}).get("date")
        return clock_row(found.get("RequestTime"), found.get("ServerTime") or date)
    status = metadata.get("HTTPStatusCode", 0)
    if error.operation_name not in _OPERATIONS:
        return _CREDENTIAL_CODES.get(code) or row_of_status(status) or _AUTHENTICATION
    row = _CODES.get(code) or row_of_status(status) or {401: _AUTHENTICATION, 403: _AUTHORIZATION}.get(status)
    match row, error.operation_name:
        case None, "DescribeStream" | "GetShardIterator" | "GetRecords" if code == _NO_OPERATION:
            return _STREAMLESS
        case None, _:
            return _UNKNOWN
        case _, "Scan" if row is _THROTTLED:
            return _SCANNED_SLOWER
        case _, "BatchGetItem" if row is _REFUSED:
            return _LOOKED_UP
        case _:
            return row


def _row_of_kind(error: BotoCoreError) -> FaultRule:
    if isinstance(error, _OURS):
        return _BROKEN
    if isinstance(error, boto.NoCredentialsError) and _ROLE.is_down():
        return _ROLE_LATE
    if isinstance(error, _CREDENTIALS):
        return _AUTHENTICATION
    return _DAMAGED if isinstance(error, _CHECKED) else _SETTINGS


def _other(error: Exception, vendor_retried: bool) -> Fault:
    """Classify an exception that is none of botocore's, but may come out of it."""
    said = one_line(f"{type(error).__name__}: {error}")
    is_file = isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError)
    if isinstance(error, OSError) and not is_file:
        return UNAVAILABLE.fault(said, vendor_retried=vendor_retried)
    if any(f.f_globals.get("__name__") in _CREDENTIAL_MODULES for f, _ in walk_tb(error.__traceback__)):
        # For example, a credential_process answers no JSON, or the file of a token does not exist.
        return _AUTHENTICATION.fault(f"boto3 could not get credentials: {said}")
    return _SETTINGS.fault(said) if is_file else unexpected(error)


def _retry_after(error: ClientError) -> float | None:
    """Return the number of seconds that the service asked the client to wait.

    AWS asks in milliseconds (boto/botocore#3678); another server or a proxy may do so in seconds.
    """
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    for name, unit in (("x-amz-retry-after", 1000), ("retry-after", 1)):
        with suppress(ValueError):
            return max(0.0, float(headers.get(name, "")) / unit)
    return None
