"""Tests the category of each failure of boto3 and of the service, and that no secret is shown."""

import pickle
from string import Formatter

import pytest
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from multiclouddb_api import ErrorCategory
from multiclouddb_dynamo.errors import classify, code_of
from multiclouddb_spi.errors import to_error

INVALID = ErrorCategory.INVALID_REQUEST
AUTHENTICATION = ErrorCategory.AUTHENTICATION_FAILED
AUTHORIZATION = ErrorCategory.AUTHORIZATION_FAILED
TRANSIENT = ErrorCategory.TRANSIENT_FAILURE
PERMANENT = ErrorCategory.PERMANENT_FAILURE
THROTTLED = ErrorCategory.THROTTLED
TOKEN = "IQoJb3JpZ2luX2VjEXAMPLETOKEN"
URL = "https://dynamodb.eu-west-1.amazonaws.com/"

# Each row: codes of the service with a status → the category, whether to retry, and a part of the advice.
MEANINGS = [
    ("ResourceNotFoundException", 400, ErrorCategory.NOT_FOUND, False, "table's name, the region"),
    ("TrimmedDataAccessException", 400, ErrorCategory.CHECKPOINT_EXPIRED, False, "24 hours"),
    ("ExpiredIteratorException", 400, TRANSIENT, True, "15 minutes"),
    ("LimitExceededException ThrottlingException Throttling", 400, THROTTLED, True, "two readers"),
    ("ProvisionedThroughputExceededException RequestLimitExceeded", 400, THROTTLED, True, "two readers"),
    ("TooManyRequestsException", 429, THROTTLED, True, "two readers"),
    ("InternalServerError InternalFailure NewTroubleException 500 504", 500, TRANSIENT, True, "try again"),
    ("ServiceUnavailable ServiceUnavailableException", 503, TRANSIENT, True, "try again"),
    ("RequestTimeout", 408, TRANSIENT, True, "try again"),
    ("ValidationException", 400, INVALID, False, "unchanged"),
    ("SerializationException", 400, INVALID, False, "report"),
    ("AccessDeniedException AccessDenied OptInRequired", 403, AUTHORIZATION, False, "/databases/dynamodb/"),
    ("UnrecognizedClientException InvalidSignatureException", 400, AUTHENTICATION, False, "credential chain"),
    ("SignatureDoesNotMatch InvalidAccessKeyId", 403, AUTHENTICATION, False, "credential chain"),
    ("RequestExpired RequestTimeTooSkewed RequestInTheFuture", 400, AUTHENTICATION, True, "set the clock"),
    ("IncompleteSignature IncompleteSignatureException", 400, AUTHENTICATION, False, "credential chain"),
    ("MissingAuthenticationToken InvalidClientTokenId", 403, AUTHENTICATION, False, "credential chain"),
    ("ExpiredToken ExpiredTokenException", 400, AUTHENTICATION, False, "credential chain"),
    ("NewTroubleException", 400, PERMANENT, False, "API reference"),
    ("NewTroubleException", 401, AUTHENTICATION, False, "credential chain"),
    ("NewTroubleException", 403, AUTHORIZATION, False, "/databases/dynamodb/"),
    ("404", 404, PERMANENT, False, "another program"),  # the page of a proxy, whose code is the status
]
# What boto3 gets when it asks for credentials. The advice is about credentials, and never about a token.
OF_CREDENTIALS = [
    ("IDPCommunicationError", 400, TRANSIENT, True, "try again"),
    ("InvalidIdentityToken RegionDisabledException ValidationError", 400, AUTHENTICATION, False, "profile"),
    ("ResourceNotFoundException UnauthorizedException", 401, AUTHENTICATION, False, "profile"),
    ("SignatureDoesNotMatch InvalidClientTokenId", 403, AUTHENTICATION, False, "profile"),
    ("ExpiredToken ExpiredTokenException", 400, AUTHENTICATION, False, "new credentials"),
    ("AccessDenied AccessDeniedException ForbiddenException", 403, AUTHORIZATION, False, "sts:AssumeRole"),
    ("Throttling TooManyRequestsException", 429, THROTTLED, True, "ask for credentials"),
    ("ServiceUnavailable NewTroubleException", 503, TRANSIENT, True, "try again"),
]
CODES = [(code, *rest) for codes, *rest in MEANINGS for code in codes.split()]
CODES.append(("", 0, PERMANENT, False, "API reference"))
OPERATIONS = [
    "AssumeRole",
    "AssumeRoleWithWebIdentity",
    "AssumeRoleWithSAML",
    "GetRoleCredentials",
    "CreateToken",
]
# Each row: an exception of botocore → the category, whether to retry, and a part of the advice.
EXCEPTIONS = [
    (boto.ParamValidationError(report="Invalid length for ShardId"), INVALID, False, "unchanged"),
    (boto.NoCredentialsError(), AUTHENTICATION, False, "credential chain"),
    (boto.PartialCredentialsError(provider="env", cred_var="x"), AUTHENTICATION, False, "credential chain"),
    (boto.CredentialRetrievalError(provider="x", error_msg="x"), TRANSIENT, True, "credential chain"),
    (boto.UnauthorizedSSOTokenError(), AUTHENTICATION, False, "credential chain"),
    (boto.SSOTokenLoadError(error_msg="x"), AUTHENTICATION, False, "credential chain"),
    (boto.TokenRetrievalError(provider="sso", error_msg="x"), AUTHENTICATION, False, "credential chain"),
    (boto.ProfileNotFound(profile="nobody"), AUTHENTICATION, False, "credential chain"),
    (boto.NoRegionError(), INVALID, False, "dynamo://eu-west-1"),
    (boto.InvalidRegionError(region_name="eu_west"), INVALID, False, "dynamo://eu-west-1"),
    (boto.EndpointConnectionError(endpoint_url=URL), TRANSIENT, True, "endpoint_url"),
    (boto.ConnectTimeoutError(endpoint_url=URL), TRANSIENT, True, "endpoint_url"),
    (boto.ReadTimeoutError(endpoint_url=URL), TRANSIENT, True, "endpoint_url"),
    (boto.ConnectionClosedError(endpoint_url=URL), TRANSIENT, True, "endpoint_url"),
    (boto.ProxyConnectionError(proxy_url="http://proxy"), TRANSIENT, True, "proxy"),
    (boto.SSLError(endpoint_url=URL, error="x"), TRANSIENT, True, "endpoint_url"),
    (boto.ResponseStreamingError(error="x"), TRANSIENT, True, "endpoint_url"),
    (boto.HTTPClientError(error="x"), TRANSIENT, True, "endpoint_url"),
    (boto.ConfigParseError(path="x"), INVALID, False, "settings"),
    (boto.RefreshWithMFAUnsupportedError(), AUTHENTICATION, False, "credential chain"),
    (boto.InfiniteLoopConfigError(source_profile="x", visited_profiles=[]), AUTHENTICATION, False, "profile"),
    (boto.MetadataRetrievalError(error_msg="x"), TRANSIENT, True, "credential chain"),
    (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), TRANSIENT, True, "damaged"),
    (boto.PaginationError(message="x"), PERMANENT, False, "whoever runs the service"),
    (boto.CapacityNotAvailableError(), THROTTLED, True, "fewer processes"),
    (boto.UnknownClientMethodError(method_name="x"), PERMANENT, False, "report"),
    (FileNotFoundError(2, "no such file"), INVALID, False, "settings"),
    (ConnectionResetError(104, "reset"), TRANSIENT, True, "try again"),
    (TimeoutError("late"), TRANSIENT, True, "try again"),
    (ResponseParserError("no JSON"), PERMANENT, False, "another program"),
    (KeyError("Table"), PERMANENT, False, "report"),
    (RuntimeError(), PERMANENT, False, "report"),
]


def answered(code, message="it is so", status=400, operation="GetRecords", **more):
    return boto.ClientError(
        {"Error": {"Code": code, "Message": message, **more}, "ResponseMetadata": {"HTTPStatusCode": status}},
        operation,
    )


@pytest.mark.parametrize("vendor_retried", [False, True])
class TestTable:
    @pytest.mark.parametrize(("code", "status", "category", "retryable", "way_out"), CODES)
    def test_a_code(self, code, status, category, retryable, way_out, vendor_retried):
        found = classify(answered(code, status=status), vendor_retried=vendor_retried)
        assert (found.category, found.retryable, found.code) == (category, retryable, code)
        assert found.vendor_retried is (retryable and vendor_retried)
        assert found.message.startswith(f"GetRecords: {code}")
        assert way_out in found.message

    @pytest.mark.parametrize(("error", "category", "retryable", "way_out"), EXCEPTIONS, ids=repr)
    def test_an_exception(self, error, category, retryable, way_out, vendor_retried):
        found = classify(error, vendor_retried=vendor_retried)
        assert (found.category, found.retryable) == (category, retryable)
        assert found.vendor_retried is (retryable and vendor_retried)
        assert way_out in found.message
        assert found.message.isprintable()


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("code", "status", "category", "retryable", "way_out"),
    [(code, *rest) for codes, *rest in OF_CREDENTIALS for code in codes.split()],
)
def test_an_answer_to_a_question_for_credentials(operation, code, status, category, retryable, way_out):
    found = classify(answered(code, status=status, operation=operation))
    assert (found.category, found.retryable) == (category, retryable)
    assert way_out in found.message
    assert "defect" not in found.message
    assert "token or partition id" not in found.message


def made(kind):
    """Return an exception of botocore with some value in each field of its text."""
    names = {name for _, name, _, _ in Formatter().parse(getattr(kind, "fmt", "")) if name}
    if kind is boto.WaiterError:
        names.add("last_response")
    return kind(**dict.fromkeys(names, "x"))


KINDS = [
    kind
    for kind in vars(boto).values()
    if isinstance(kind, type) and issubclass(kind, boto.BotoCoreError) and kind.__module__ == boto.__name__
]
# The calls of the library, not a user's settings, are wrong if boto3 raises one of these.
MISTAKES_OF_OURS = {
    "OperationNotPageableError", "StubResponseError", "StubAssertionError", "UnStubbedResponseError",
    "UnknownClientMethodError", "WaiterError", "WaiterConfigError", "InvalidExpressionError",
    "MissingParametersError", "UnseekableStreamError",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_only_what_is_ours_is_called_a_defect_among_all_exceptions_of_botocore(kind):
    found = classify(made(kind))
    assert ("defect" in found.message) is (kind.__name__ in MISTAKES_OF_OURS)
    assert (found.category == PERMANENT) is (kind.__name__ in {*MISTAKES_OF_OURS, "PaginationError"})


SIGNED_AT, TOLD, LIMIT = "20260101T000000Z", "20260101T001500Z", "20260101T001000Z"
INVALID_SIGNATURE, MISMATCH = "InvalidSignatureException", "SignatureDoesNotMatch"
CLOCKS = [
    (INVALID_SIGNATURE, f"expired: {SIGNED_AT} is now earlier than {LIMIT} ({TOLD} - 5 min.)"),
    (MISMATCH, f"not yet current: {SIGNED_AT} is still later than {LIMIT} ({TOLD} + 5 min.)"),
    (INVALID_SIGNATURE, f"expired: {SIGNED_AT} is now earlier than {TOLD}"),
]


@pytest.mark.parametrize("operation", ["GetRecords", "Scan", "AssumeRole"])
@pytest.mark.parametrize(("code", "message"), CLOCKS, ids=range(len(CLOCKS)))
def test_a_wrong_clock_is_named_with_both_times(operation, code, message):
    found = classify(answered(code, f"Signature {message} {QUOTED}", operation=operation))
    assert (found.category, found.retryable, found.confidential) == (AUTHENTICATION, True, True)
    assert "signed at 2026-01-01T00:00:00Z" in found.message
    assert "the service's clock says 2026-01-01T00:15:00Z" in found.message
    assert "credential chain" not in found.message
    assert TOKEN not in found.message


def test_the_time_of_the_service_comes_from_its_answer():
    error = answered("RequestExpired", "Request has expired.")
    error.response["ResponseMetadata"]["HTTPHeaders"] = {"date": "Thu, 01 Jan 2026 00:15:00 GMT"}
    assert "the service's clock says Thu, 01 Jan 2026 00:15:00 GMT" in classify(error).message
    times = {"RequestTime": SIGNED_AT, "ServerTime": "2026-01-01T00:15:00Z"}
    found = classify(answered("RequestTimeTooSkewed", status=403, **times)).message
    assert "signed at 2026-01-01T00:00:00Z, and the service's clock says 2026-01-01T00:15:00Z" in found


@pytest.mark.parametrize(
    ("asked", "seconds"), [("2", 2.0), ("0.5", 0.5), ("-3", 0.0), ("soon", None), ("", None), (None, None)]
)
def test_the_service_may_ask_to_wait(asked, seconds):
    error = answered("ThrottlingException")
    error.response["ResponseMetadata"]["HTTPHeaders"] = {} if asked is None else {"retry-after": asked}
    assert classify(error).retry_after == seconds


@pytest.mark.parametrize(
    ("asked", "seconds"), [("2000", 2.0), ("50", 0.05), ("-3", 0.0), ("soon", 9.0), ("", 9.0)]
)
def test_aws_asks_to_wait_in_milliseconds(asked, seconds):
    error = answered("ThrottlingException")
    error.response["ResponseMetadata"]["HTTPHeaders"] = {"x-amz-retry-after": asked, "retry-after": "9"}
    assert classify(error).retry_after == seconds


@pytest.mark.parametrize(
    "message", ["first\nsecond", "first\r\n\r\nsecond", "\n first", "first\x85second", "first\u2028second"]
)
def test_a_message_of_several_lines_is_cut_to_one(message):
    found = classify(answered("ValidationException", message))
    assert "first" in found.message
    assert "second" not in found.message
    assert found.message.isprintable()


def test_an_answer_without_anything_has_no_code():
    error = boto.ClientError({}, "GetRecords")
    assert (classify(error).category, code_of(error)) == (PERMANENT, "")
    assert code_of(KeyError("Code")) == code_of(boto.NoRegionError()) == ""


# If a signature is wrong, the service quotes the request and its headers.
QUOTED = (
    "The request signature we calculated does not match the signature you provided.\n\n"
    "The Canonical String for this request should have been\n'POST\n/\n\nhost:dynamodb\n"
    f"x-amz-security-token:{TOKEN}\n'"
)


@pytest.mark.parametrize(
    "code", ["InvalidSignatureException", "IncompleteSignature", "IncompleteSignatureException"]
)
@pytest.mark.parametrize("message", [QUOTED, QUOTED.replace("\n", " ")], ids=["lines", "one line"])
def test_a_session_token_does_not_get_out(code, message):
    error = to_error("dynamo", "read_changes", classify(answered(code, message)), answered(code, message))
    assert error.detail.category == AUTHENTICATION
    assert (error.detail.native_class, error.detail.native_code) == ("botocore.exceptions.ClientError", code)
    for text in (str(error), repr(error), repr(error.detail), str(pickle.dumps(error))):
        assert TOKEN not in text


def test_the_text_of_other_failures_is_kept():
    cause = answered("AccessDeniedException", "User: arn:aws:iam::1:user/me is not authorized")
    error = to_error("dynamo", "read_changes", classify(cause), cause)
    assert "arn:aws:iam::1:user/me" in error.detail.native_text
    assert "arn:aws:iam::1:user/me" in error.message
