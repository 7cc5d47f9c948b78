"""Tests the category of each failure of azure-cosmos. A table lists the expected categories."""

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    DecodeError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.cosmos.exceptions import CosmosClientTimeoutError, CosmosHttpResponseError

from multiclouddb_api import ErrorCategory
from multiclouddb_cosmos.errors import classify

C = ErrorCategory
RETRYABLE = (C.THROTTLED, C.TRANSIENT_FAILURE)
ANSWERS = [
    (400, 0, C.INVALID_REQUEST),
    (400, 1001, C.INVALID_REQUEST),
    (401, 0, C.AUTHENTICATION_FAILED),
    (403, 0, C.AUTHORIZATION_FAILED),
    (403, 3, C.TRANSIENT_FAILURE),
    (403, 1008, C.TRANSIENT_FAILURE),
    (403, 5300, C.AUTHORIZATION_FAILED),
    (404, 0, C.NOT_FOUND),
    (404, 1002, C.TRANSIENT_FAILURE),
    (404, 1003, C.NOT_FOUND),
    (404, 1013, C.TRANSIENT_FAILURE),
    (405, 0, C.INVALID_REQUEST),
    (302, 0, C.TRANSIENT_FAILURE),
    (408, 0, C.TRANSIENT_FAILURE),
    (409, 0, C.CONFLICT),
    (410, 0, C.TRANSIENT_FAILURE),
    (410, 1000, C.TRANSIENT_FAILURE),
    (410, 1002, C.TRANSIENT_FAILURE),
    (410, 1007, C.TRANSIENT_FAILURE),
    (410, 1008, C.TRANSIENT_FAILURE),
    (412, 0, C.CONFLICT),
    (407, 0, C.AUTHENTICATION_FAILED),
    (413, 0, C.PROVIDER_ERROR),
    (418, 0, C.PERMANENT_FAILURE),
    (429, 3200, C.THROTTLED),
    (429, 0, C.THROTTLED),
    (449, 0, C.TRANSIENT_FAILURE),
    (500, 0, C.TRANSIENT_FAILURE),
    (502, 0, C.TRANSIENT_FAILURE),
    (503, 21015, C.TRANSIENT_FAILURE),
]


class Response:
    reason = "reason"

    def __init__(self, status, **headers):
        self.status_code, self.headers = (
            status,
            {name.replace("_", "-"): text for name, text in headers.items()},
        )

    def text(self, encoding=None):
        return ""


def answer(status, substatus=0, message="what it said", **headers):
    headers = {"x_ms_substatus": str(substatus), **headers}
    return CosmosHttpResponseError(status_code=status, message=message, response=Response(status, **headers))


@pytest.mark.parametrize(("status", "substatus", "category"), ANSWERS)
def test_every_status(status, substatus, category):
    fault = classify(answer(status, substatus))
    assert fault.category == category
    assert fault.retryable == (category in RETRYABLE)
    assert fault.code == (f"{status}/{substatus}" if substatus else str(status))
    assert "; " in fault.message


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (CosmosClientTimeoutError(), C.TRANSIENT_FAILURE),
        (ServiceRequestError("no route"), C.TRANSIENT_FAILURE),
        (ServiceResponseError("closed"), C.TRANSIENT_FAILURE),
        (ClientAuthenticationError("who"), C.AUTHENTICATION_FAILED),
        (DecodeError("cut"), C.TRANSIENT_FAILURE),
        (RecursionError(), C.TRANSIENT_FAILURE),
        (OSError("network"), C.TRANSIENT_FAILURE),
        (KeyError("x"), C.PERMANENT_FAILURE),
    ],
)
def test_every_exception(error, category):
    fault = classify(error)
    assert fault.category == category
    assert fault.retryable == (category in RETRYABLE)


def test_the_service_s_delay_is_kept():
    assert classify(answer(429, x_ms_retry_after_ms="250")).retry_after == 0.25
    assert classify(answer(429, x_ms_retry_after_ms="soon")).retry_after is None
    assert classify(answer(429)).retry_after is None


def test_a_missing_mode_names_the_setting():
    text = "Change Feed 'All Versions and Deletes' mode must be enabled."
    fault = classify(answer(400, message=text))
    assert fault.category == C.INVALID_REQUEST
    assert "enableAllVersionsAndDeletesChangeFeed" in fault.message


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_clock_is_named(status):
    text = (
        "The authorization token is not valid at the current time. Please create another token and retry "
        "(token start time: Thu, 01 Jan 2026 00:00:00 GMT)."
    )
    fault = classify(answer(status, message=text))
    assert (fault.category, fault.retryable) == (C.AUTHENTICATION_FAILED, False)
    assert "clock" in fault.message


@pytest.mark.parametrize(
    "error",
    [
        answer(407, message="who are you"),
        ServiceRequestError("Tunnel connection failed: 407 Proxy Authentication Required"),
    ],
)
def test_a_proxy_that_asks_for_a_password(error):
    fault = classify(error)
    assert (fault.category, fault.retryable) == (C.AUTHENTICATION_FAILED, False)
    assert "HTTPS_PROXY" in fault.message


def test_merged_partitions_are_no_passing_failure():
    fault = classify(answer(500, message="Partition has more than two children"))
    assert (fault.category, fault.retryable) == (C.PERMANENT_FAILURE, False)


def test_what_was_signed_is_not_shown():
    fault = classify(answer(401, message="payload: secret-text"))
    assert fault.confidential
    assert "secret-text" not in fault.message


def test_an_application_s_client_has_retried():
    assert classify(answer(503), vendor_retried=True).vendor_retried
    assert not classify(answer(404), vendor_retried=True).vendor_retried
