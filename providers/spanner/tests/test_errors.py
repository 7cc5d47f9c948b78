"""Tests the category of every gRPC status and of the errors of Google's libraries."""

import grpc
import pytest
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError
from google.rpc.error_details_pb2 import RetryInfo

from multiclouddb_api import ErrorCategory
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


class Failed(grpc.RpcError):
    def __init__(self, code, text="", metadata=()):
        self._code, self._text, self._metadata = code, text, metadata

    def code(self):
        return self._code

    def details(self):
        return self._text

    def trailing_metadata(self):
        return self._metadata


def both(code, text, metadata=()):
    """Return the error as gRPC raises it, and as the vendor's library raises it."""
    failed = Failed(code, text, metadata)
    return failed, exceptions.from_grpc_status(code, text, errors=(failed,))


CATEGORIES = {
    "CANCELLED": ("TRANSIENT_FAILURE", True),
    "UNKNOWN": ("PERMANENT_FAILURE", False),
    "INVALID_ARGUMENT": ("INVALID_REQUEST", False),
    "DEADLINE_EXCEEDED": ("TRANSIENT_FAILURE", True),
    "NOT_FOUND": ("NOT_FOUND", False),
    "ALREADY_EXISTS": ("CONFLICT", False),
    "PERMISSION_DENIED": ("AUTHORIZATION_FAILED", False),
    "UNAUTHENTICATED": ("AUTHENTICATION_FAILED", False),
    "RESOURCE_EXHAUSTED": ("THROTTLED", True),
    "FAILED_PRECONDITION": ("INVALID_REQUEST", False),
    "ABORTED": ("TRANSIENT_FAILURE", True),
    "OUT_OF_RANGE": ("INVALID_REQUEST", False),
    "UNIMPLEMENTED": ("UNSUPPORTED_CAPABILITY", False),
    "INTERNAL": ("PERMANENT_FAILURE", False),
    "UNAVAILABLE": ("TRANSIENT_FAILURE", True),
    "DATA_LOSS": ("PERMANENT_FAILURE", False),
}


class TestStatus:
    def test_there_is_a_row_for_each(self):
        assert set(STATUSES) == set(CODE) - {CODE.OK}
        assert set(CATEGORIES) == {code.name for code in STATUSES}

    @pytest.mark.parametrize("name", CATEGORIES)
    def test_has_its_category(self, name):
        category, retryable = CATEGORIES[name]
        for error in (
            Failed(CODE[name], "some text"),
            exceptions.from_grpc_error(Failed(CODE[name], "some text")),
        ):
            fault = classify(error)
            assert (str(fault.category), fault.retryable, fault.code) == (category, retryable, name)
            assert "some text" in fault.message
            assert "; " in fault.message

    @pytest.mark.parametrize(
        ("code", "text", "category"),
        [
            (CODE.OUT_OF_RANGE, PAST, ErrorCategory.CHECKPOINT_EXPIRED),
            (CODE.OUT_OF_RANGE, OUTSIDE, ErrorCategory.INVALID_REQUEST),
            (CODE.INVALID_ARGUMENT, MISSING, ErrorCategory.NOT_FOUND),
            (CODE.INVALID_ARGUMENT, FOREIGN, ErrorCategory.INVALID_REQUEST),
            (CODE.NOT_FOUND, "Session not found: projects/…", ErrorCategory.TRANSIENT_FAILURE),
            (CODE.INTERNAL, "Received RST_STREAM with error code 2", ErrorCategory.TRANSIENT_FAILURE),
            (CODE.INTERNAL, "Received unexpected EOS on DATA frame", ErrorCategory.TRANSIENT_FAILURE),
            (CODE.UNKNOWN, "Stream removed", ErrorCategory.TRANSIENT_FAILURE),
            (CODE.UNKNOWN, "Socket closed", ErrorCategory.TRANSIENT_FAILURE),
            (CODE.UNKNOWN, "channel closed", ErrorCategory.TRANSIENT_FAILURE),
            (CODE.UNKNOWN, "recvmsg:Connection reset by peer", ErrorCategory.TRANSIENT_FAILURE),
            (CODE.UNKNOWN, "something else", ErrorCategory.PERMANENT_FAILURE),
            (CODE.INTERNAL, "HTTP/2 error code: INTERNAL_ERROR", ErrorCategory.TRANSIENT_FAILURE),
            (CODE.INTERNAL, "Connection closed with unknown cause", ErrorCategory.TRANSIENT_FAILURE),
            (CODE.INTERNAL, "stream terminated by RST_STREAM.", ErrorCategory.TRANSIENT_FAILURE),
            (CODE.INTERNAL, "Rst Stream", ErrorCategory.TRANSIENT_FAILURE),
            (
                CODE.INTERNAL,
                "Authentication backend internal server error. Please retry.",
                ErrorCategory.TRANSIENT_FAILURE,
            ),
            (CODE.INTERNAL, "something else", ErrorCategory.PERMANENT_FAILURE),
            (CODE.DATA_LOSS, "Connection closed with unknown cause", ErrorCategory.PERMANENT_FAILURE),
            (
                CODE.UNAVAILABLE,
                "Getting metadata from plugin failed with error: invalid_grant",
                ErrorCategory.AUTHENTICATION_FAILED,
            ),
        ],
    )
    def test_some_texts_say_more(self, code, text, category):
        assert classify(Failed(code, text)).category == category

    def test_what_the_service_asks_to_wait_is_passed_on(self):
        info = RetryInfo()
        info.retry_delay.seconds, info.retry_delay.nanos = 2, 500_000_000
        metadata = [("google.rpc.retryinfo-bin", info.SerializeToString())]
        error = Failed(CODE.RESOURCE_EXHAUSTED, "", metadata)
        assert classify(error).retry_after == 2.5
        assert classify(exceptions.from_grpc_error(error)).retry_after == 2.5
        assert (
            classify(Failed(CODE.RESOURCE_EXHAUSTED, "", [("google.rpc.retryinfo-bin", b"\xff")])).retry_after
            is None
        )


class TestOthers:
    @pytest.mark.parametrize(
        ("error", "category"),
        [
            (DefaultCredentialsError("none found"), ErrorCategory.AUTHENTICATION_FAILED),
            (RefreshError("revoked"), ErrorCategory.AUTHENTICATION_FAILED),
            (RefreshError("later", retryable=True), ErrorCategory.TRANSIENT_FAILURE),
            (TransportError("no way there"), ErrorCategory.TRANSIENT_FAILURE),
            (ConnectionResetError("reset"), ErrorCategory.TRANSIENT_FAILURE),
            (ValueError("Cannot invoke RPC on closed channel!"), ErrorCategory.TRANSIENT_FAILURE),
            (grpc.RpcError(), ErrorCategory.TRANSIENT_FAILURE),
            (KeyError("x"), ErrorCategory.PERMANENT_FAILURE),
        ],
    )
    def test_have_a_category(self, error, category):
        fault = classify(error)
        assert fault.category == category
        assert "; " in fault.message
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

    def test_moments_are_found_in_them(self):
        assert earliest_of(Failed(CODE.OUT_OF_RANGE, PAST)) == "2026-11-21T09:45:22.184457664+00:00"
        assert interval_of(Failed(CODE.OUT_OF_RANGE, OUTSIDE)) == (
            "2026-11-21T09:45:22.184457664+00:00", "2026-11-21T09:45:25.19107+00:00",
        )  # fmt: skip
        assert earliest_of(Failed(CODE.OUT_OF_RANGE, "too far in the past")) is None
        assert interval_of(Failed(CODE.OUT_OF_RANGE, "invalid for the partition")) is None
