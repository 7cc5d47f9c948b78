"""Tests the category of each failure of boto3 and of the service, and that no secret is shown."""

import pickle

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
    ("AccessDeniedException AccessDenied OptInRequired", 403, AUTHORIZATION, False, "/how-to/dynamodb/"),
    ("UnrecognizedClientException InvalidSignatureException", 400, AUTHENTICATION, False, "credential chain"),
    ("IncompleteSignature IncompleteSignatureException", 400, AUTHENTICATION, False, "credential chain"),
    ("MissingAuthenticationToken InvalidClientTokenId", 403, AUTHENTICATION, False, "credential chain"),
    ("ExpiredToken ExpiredTokenException", 400, AUTHENTICATION, False, "credential chain"),
    ("NewTroubleException", 400, PERMANENT, False, "report"),
    ("404", 404, PERMANENT, False, "report"),  # the page of a proxy, whose code is the status
]
CODES = [(code, *rest) for codes, *rest in MEANINGS for code in codes.split()]
CODES.append(("", 0, PERMANENT, False, "report"))
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
    (boto.DataNotFoundError(data_path="x"), PERMANENT, False, "report"),
    (ConnectionResetError(104, "reset"), TRANSIENT, True, "try again"),
    (TimeoutError("late"), TRANSIENT, True, "try again"),
    (ResponseParserError("no JSON"), PERMANENT, False, "report"),
    (KeyError("Table"), PERMANENT, False, "report"),
    (RuntimeError(), PERMANENT, False, "report"),
]


def answered(code, message="it is so", status=400):
    return boto.ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "GetRecords",
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


@pytest.mark.parametrize(
    ("asked", "seconds"), [("2", 2.0), ("0.5", 0.5), ("-3", 0.0), ("soon", None), ("", None), (None, None)]
)
def test_the_service_may_ask_to_wait(asked, seconds):
    error = answered("ThrottlingException")
    error.response["ResponseMetadata"]["HTTPHeaders"] = {} if asked is None else {"retry-after": asked}
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
