"""Tests the category of every gRPC status and of the errors of Google's libraries."""

from types import SimpleNamespace

import grpc
import pytest
from google.api_core import exceptions
from google.auth import compute_engine
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError
from google.rpc.error_details_pb2 import RetryInfo

from multiclouddb_api import (
    ChangeFeedRequest,
    ErrorCategory,
    Now,
    OperationOptions,
    ResourceAddress,
    connect,
)
from multiclouddb_conformance.refusals import refused
from multiclouddb_spanner import errors
from multiclouddb_spanner.errors import (
    STATUSES,
    classify,
    earliest_of,
    interval_of,
    is_foreign_partition,
    is_lost_session,
    is_outside_partition,
    is_past,
    is_without_stream,
    status_of,
)
from multiclouddb_spi.machine_role import MachineRole

CODE = grpc.StatusCode
PAST = (
    "Specified start_timestamp is too far in the past. Please specify a start_timestamp within the earliest "
    "read timestamp: 2026-11-21T09:45:22.184457664+00:00. Received start_timestamp: "
    "2026-11-21T06:58:42.195771+00:00."
)
OUTSIDE = (
    "Specified start_timestamp is invalid for the partition. Please specify a start_timestamp within "
    "2026-11-21T09:45:22.184457664+00:00 and 2026-11-21T09:45:25.19107+00:00. Received start_timestamp: "
    "2026-11-21T09:45:25.191071+00:00."
)
MISSING = "Table-valued function not found: READ_nope [at 1:26]\nSELECT ChangeRecord FROM READ_nope(…)"
FOREIGN = "Specified partition_token is invalid, as it does not belong to the Change Stream of the TVF."
# The texts of cloud-spanner-emulator's common/errors.cc.
STALE = (
    "This partition is no longer valid. All Change Stream records associated with this partition have "
    "expired and have been deleted, as specified by the Change Stream retention period."
)
NO_FUNCTION = (
    'function spanner."read_json_items_stream"(timestamp with time zone, timestamp with time zone, text, '
    "bigint, unknown) does not exist"
)
ARGUMENT = (
    "Invalid argument of change stream TVF read_json_items_stream. Argument 3 is not a literal or parameter. "
    "Implicit type conversions are not supported."
)
NOT_TEXT = "Argument partition_token of READ_items_stream must be STRING"
HTTP = "Received http2 header with status: "


DOWN = (
    "Failed to retrieve http://metadata.google.internal/… from the Google Compute Engine metadata service. "
    "Compute Engine Metadata server unavailable. Response status: 503"
)
NO_ACCOUNT = (
    "Failed to retrieve http://metadata.google.internal/… Status: 404 Response: service account not found"
)
PLUGIN = "Getting metadata from plugin failed with error: "


class Failed(grpc.RpcError):
    def __init__(self, code, text="", metadata=()):
        self._code, self._text, self._metadata = code, text, metadata

    def code(self):
        return self._code

    def details(self):
        return self._text

    def trailing_metadata(self):
        return self._metadata


# The category of each status, and of texts that say more than their status.
CATEGORIES = {
    ErrorCategory.TRANSIENT_FAILURE: [
        "CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "UNAVAILABLE",
        ("UNAVAILABLE", f"{PLUGIN}{DOWN}"),
        ("UNAVAILABLE", f"{PLUGIN}HTTPSConnectionPool(host='oauth2.googleapis.com'): Max retries exceeded"),
        ("UNAVAILABLE", f"{PLUGIN}('internal_failure: Try again', {{'error': 'internal_failure'}})"),
        ("UNAVAILABLE", f"{PLUGIN}Unable to acquire credentials {{\"error\": {{\"code\": 503}}}}"),
        ("UNAVAILABLE", f"{HTTP}503"),
        ("NOT_FOUND", "Session not found: projects/…"),
        ("NOT_FOUND", "Session was concurrently deleted: projects/…"),  # google-cloud-go 12821
        ("INTERNAL", "Received RST_STREAM with error code 2"), ("INTERNAL", "Rst Stream"),
        ("INTERNAL", "Received unexpected EOS on DATA frame"),
        ("INTERNAL", "HTTP/2 error code: INTERNAL_ERROR"),
        ("INTERNAL", "Connection closed with unknown cause"),
        ("INTERNAL", "stream terminated by RST_STREAM."),
        ("INTERNAL", "Authentication backend internal server error. Please retry."),
        ("UNKNOWN", "Stream removed"), ("UNKNOWN", "Socket closed"), ("UNKNOWN", "channel closed"),
        ("UNKNOWN", "recvmsg:Connection reset by peer"),
    ],
    ErrorCategory.PERMANENT_FAILURE: [
        "UNKNOWN", "INTERNAL", "DATA_LOSS", ("DATA_LOSS", "Connection closed with unknown cause"),
        ("UNAUTHENTICATED", f"{HTTP}401"), ("PERMISSION_DENIED", f"{HTTP}403"),
        ("UNIMPLEMENTED", f"{HTTP}404"),
    ],
    ErrorCategory.INVALID_REQUEST: [
        "INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE", ("OUT_OF_RANGE", OUTSIDE),
        ("INVALID_ARGUMENT", FOREIGN), ("INVALID_ARGUMENT", ARGUMENT), ("INVALID_ARGUMENT", NOT_TEXT),
        ("OUT_OF_RANGE", "Specified start_timestamp is too far in the future."),
    ],
    ErrorCategory.NOT_FOUND: ["NOT_FOUND", ("INVALID_ARGUMENT", MISSING), ("NOT_FOUND", NO_FUNCTION)],
    ErrorCategory.CONFLICT: ["ALREADY_EXISTS"],
    ErrorCategory.AUTHORIZATION_FAILED: ["PERMISSION_DENIED"],
    ErrorCategory.AUTHENTICATION_FAILED: [
        "UNAUTHENTICATED", ("UNAVAILABLE", f"{PLUGIN}invalid_grant"),
        ("UNAVAILABLE", f"{PLUGIN}{NO_ACCOUNT}"),
    ],
    ErrorCategory.THROTTLED: ["RESOURCE_EXHAUSTED"],
    ErrorCategory.UNSUPPORTED_CAPABILITY: ["UNIMPLEMENTED"],
    ErrorCategory.CHECKPOINT_EXPIRED: [("OUT_OF_RANGE", PAST), ("OUT_OF_RANGE", STALE)],
}  # fmt: skip
CASES = [
    (category, *((case, "some text") if isinstance(case, str) else case))
    for category, cases in CATEGORIES.items()
    for case in cases
]
RETRYABLE = {ErrorCategory.TRANSIENT_FAILURE, ErrorCategory.THROTTLED}


class TestStatus:
    def test_there_is_a_row_for_each(self):
        assert set(STATUSES) == set(CODE) - {CODE.OK}
        assert {code for _, code, _ in CASES} == {code.name for code in STATUSES}

    def test_has_its_category(self):
        for category, name, text in CASES:
            failed = Failed(CODE[name], text)
            for error in (failed, exceptions.from_grpc_error(failed)):
                fault = classify(error)
                assert (fault.category, fault.code) == (category, name), text
                assert fault.retryable == (category in RETRYABLE)
                assert text[:20] in fault.message
                assert "; " in fault.message

    def test_what_the_service_asks_to_wait_is_passed_on(self):
        info = RetryInfo()
        info.retry_delay.seconds, info.retry_delay.nanos = 2, 500_000_000
        metadata = [("google.rpc.retryinfo-bin", info.SerializeToString())]
        error = Failed(CODE.RESOURCE_EXHAUSTED, "", metadata)
        assert classify(error).retry_after == 2.5
        assert classify(exceptions.from_grpc_error(error)).retry_after == 2.5
        damaged = Failed(CODE.RESOURCE_EXHAUSTED, "", [("google.rpc.retryinfo-bin", b"\xff")])
        assert classify(damaged).retry_after is None


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (DefaultCredentialsError("none found"), ErrorCategory.AUTHENTICATION_FAILED),
        (RefreshError("revoked"), ErrorCategory.AUTHENTICATION_FAILED),
        (RefreshError("later", retryable=True), ErrorCategory.TRANSIENT_FAILURE),
        (RefreshError(TransportError(DOWN)), ErrorCategory.TRANSIENT_FAILURE),
        (RefreshError(TransportError(NO_ACCOUNT)), ErrorCategory.AUTHENTICATION_FAILED),
        (TransportError("no way there"), ErrorCategory.TRANSIENT_FAILURE),
        (ConnectionResetError("reset"), ErrorCategory.TRANSIENT_FAILURE),
        (ValueError("Cannot invoke RPC on closed channel!"), ErrorCategory.TRANSIENT_FAILURE),
        (grpc.RpcError(), ErrorCategory.TRANSIENT_FAILURE),
        (KeyError("x"), ErrorCategory.PERMANENT_FAILURE),
    ],
)
def test_other_exceptions_have_a_category(error, category):
    assert classify(error).category == category
    assert "; " in classify(error).message
    assert status_of(error) is None


class TestTexts:
    def test_are_told_apart(self):
        errors = [
            Failed(CODE.OUT_OF_RANGE, PAST), Failed(CODE.OUT_OF_RANGE, OUTSIDE),
            Failed(CODE.INVALID_ARGUMENT, FOREIGN), Failed(CODE.INVALID_ARGUMENT, MISSING),
            Failed(CODE.NOT_FOUND, "Session not found"),
        ]  # fmt: skip
        tests = [is_past, is_outside_partition, is_foreign_partition, is_without_stream, is_lost_session]
        for number, test in enumerate(tests):
            assert [test(error) for error in errors] == [number == other for other in range(5)]

    def test_more_forms_of_one_meaning(self):
        assert is_past(Failed(CODE.OUT_OF_RANGE, STALE))
        assert is_without_stream(Failed(CODE.NOT_FOUND, NO_FUNCTION))
        for text in (ARGUMENT, NOT_TEXT):
            error = Failed(CODE.INVALID_ARGUMENT, text)
            assert not is_without_stream(error)
            assert not is_foreign_partition(error)

    @pytest.mark.parametrize(
        ("status", "text"),
        [
            (
                CODE.PERMISSION_DENIED,
                "Cloud Spanner API has not been used in project p before or it is disabled.",
            ),
            (CODE.PERMISSION_DENIED, "Request is prohibited by organization's policy."),
            (CODE.PERMISSION_DENIED, "This API method requires billing to be enabled."),
            (CODE.NOT_FOUND, "Table not found: items"),
            (CODE.NOT_FOUND, "Database role not found: reader"),
            (CODE.OUT_OF_RANGE, "division by zero: 1 / 0"),
            (CODE.INVALID_ARGUMENT, "API key not valid."),
        ],
    )
    def test_a_status_with_many_meanings_leaves_the_word_to_the_service(self, status, text):
        message = classify(Failed(status, text)).message
        assert text in message
        assert "service's message" in message.partition("; ")[2]

    def test_moments_are_found_in_them(self):
        assert earliest_of(Failed(CODE.OUT_OF_RANGE, PAST)) == "2026-11-21T09:45:22.184457664+00:00"
        assert interval_of(Failed(CODE.OUT_OF_RANGE, OUTSIDE)) == (
            "2026-11-21T09:45:22.184457664+00:00", "2026-11-21T09:45:25.19107+00:00",
        )  # fmt: skip
        assert earliest_of(Failed(CODE.OUT_OF_RANGE, "too far in the past")) is None
        assert interval_of(Failed(CODE.OUT_OF_RANGE, "invalid for the partition")) is None


@pytest.mark.parametrize(
    ("status", "category"),
    [
        (500, ErrorCategory.TRANSIENT_FAILURE),
        (503, ErrorCategory.TRANSIENT_FAILURE),
        (404, ErrorCategory.AUTHENTICATION_FAILED),
    ],
)
def test_a_metadata_server_that_fails_is_no_missing_account(monkeypatch, status, category):
    monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda seconds: None)

    def request(**_):
        return SimpleNamespace(status=status, headers={"content-type": "text/plain"}, data=b"what it says")

    with pytest.raises(RefreshError) as caught:
        compute_engine.Credentials().refresh(request)
    assert classify(caught.value).category == category


@pytest.mark.parametrize("is_down", [True, False])
def test_a_first_look_for_credentials_may_meet_an_outage(monkeypatch, is_down):
    """google-auth takes a metadata server that fails for none, and says that there are no credentials."""
    asked = []

    def default(*_, **__):
        asked.append(0)
        raise DefaultCredentialsError("Your default credentials were not found.")

    monkeypatch.setattr("google.auth.default", default)
    monkeypatch.setattr(errors, "_ACCOUNT", MachineRole(lambda: is_down))
    category = ErrorCategory.TRANSIENT_FAILURE if is_down else ErrorCategory.AUTHENTICATION_FAILED
    address = ResourceAddress("shop", "orders")
    with refused(category, "default credentials"), connect("spanner://project/instance") as client:
        client.read_changes(ChangeFeedRequest(address, Now()), OperationOptions(timeout_seconds=2))
    assert (len(asked) > 1) is is_down
