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
MEANINGS = {
    C.INVALID_REQUEST: [(400, 0), (400, 1001), (405, 0)],
    C.AUTHENTICATION_FAILED: [(401, 0), (407, 0)],
    C.AUTHORIZATION_FAILED: [(403, 0), (403, 5300)],
    C.NOT_FOUND: [(404, 0), (404, 1003)],
    C.CONFLICT: [(409, 0), (412, 0)],
    C.PROVIDER_ERROR: [(413, 0)],
    C.PERMANENT_FAILURE: [(418, 0)],
    C.THROTTLED: [(429, 3200), (429, 0)],
    C.TRANSIENT_FAILURE: [
        (302, 0), (403, 3), (403, 1008), (404, 1002), (404, 1013), (408, 0), (410, 0), (410, 1000),
        (410, 1002), (410, 1007), (410, 1008), (449, 0), (500, 0), (502, 0), (503, 21015),
    ],
}  # fmt: skip
ANSWERS = [(*code, category) for category, codes in MEANINGS.items() for code in codes]


class Response:
    reason = "reason"

    def __init__(self, status, **headers):
        self.status_code = status
        self.headers = {name.replace("_", "-"): text for name, text in headers.items()}

    def text(self, encoding=None):
        return ""


def answer(status, substatus=0, message="what it said", **headers):
    headers = {"x_ms_substatus": str(substatus), **headers}
    return CosmosHttpResponseError(status_code=status, message=message, response=Response(status, **headers))


@pytest.mark.parametrize(("status", "substatus", "category"), ANSWERS)
def test_every_status(status, substatus, category):
    fault = classify(answer(status, substatus))
    assert (fault.category, fault.retryable) == (category, category in RETRYABLE)
    assert fault.code == (f"{status}/{substatus}" if substatus else str(status))
    assert "; " in fault.message


UNPROVEN = "Tunnel connection failed: 407 Proxy Authentication Required"
KEYLESS = "Local Authorization is disabled. Use an AAD token to authorize all requests."
METADATA = "due to a high rate of metadata requests."
TRANSIENT = "The request did not complete due to a transient service error."
UNTIMELY = (
    "The authorization token is not valid at the current time. Please create another token and retry "
    "(token start time: Thu, 01 Jan 2026 00:00:00 GMT)."
)


@pytest.mark.parametrize(
    ("error", "category", "word"),
    [
        (CosmosClientTimeoutError(), C.TRANSIENT_FAILURE, ""),
        (ServiceRequestError("no route"), C.TRANSIENT_FAILURE, ""),
        (ServiceRequestError(UNPROVEN), C.AUTHENTICATION_FAILED, "HTTPS_PROXY"),
        (ServiceResponseError("closed"), C.TRANSIENT_FAILURE, ""),
        (ClientAuthenticationError("who"), C.AUTHENTICATION_FAILED, ""),
        (DecodeError("cut"), C.TRANSIENT_FAILURE, ""),
        (RecursionError(), C.TRANSIENT_FAILURE, ""),
        (OSError("network"), C.TRANSIENT_FAILURE, ""),
        (KeyError("x"), C.PERMANENT_FAILURE, ""),
        (answer(407, message="who are you"), C.AUTHENTICATION_FAILED, "HTTPS_PROXY"),
        (answer(401, 5202, KEYLESS), C.AUTHENTICATION_FAILED, "unset AZURE_COSMOS_KEY"),
        (answer(401, message=KEYLESS), C.AUTHENTICATION_FAILED, "unset AZURE_COSMOS_KEY"),
        (answer(401, message=UNTIMELY), C.AUTHENTICATION_FAILED, "clock"),
        (answer(403, message=UNTIMELY), C.AUTHENTICATION_FAILED, "clock"),
        (answer(500, message="Partition has more than two children"), C.PERMANENT_FAILURE, "merge"),
        (answer(429, 3200, f"The request did not complete {METADATA}"), C.THROTTLED, "keep clients open"),
        (answer(429, message=f"The request didn't complete {METADATA}"), C.THROTTLED, "keep clients open"),
        (answer(429, message=TRANSIENT), C.THROTTLED, "do not help"),
        (answer(429, 3200, "Request rate is large."), C.THROTTLED, "raise the container's request units"),
        (
            answer(400, message="Change Feed 'All Versions and Deletes' mode must be enabled."),
            C.INVALID_REQUEST,
            "enableAllVersionsAndDeletesChangeFeed",
        ),
    ],
    ids=range(20),
)
def test_every_exception(error, category, word):
    fault = classify(error)
    assert (fault.category, fault.retryable) == (category, category in RETRYABLE)
    assert word in fault.message


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({"x_ms_retry_after_ms": "250"}, 0.25), ({"x_ms_retry_after_ms": "soon"}, None), ({}, None)],
)
def test_the_service_s_delay_is_kept(headers, seconds):
    assert classify(answer(429, **headers)).retry_after == seconds


def test_what_was_signed_is_not_shown():
    fault = classify(answer(401, message="payload: secret-text"))
    assert fault.confidential
    assert "secret-text" not in fault.message


def test_an_application_s_client_has_retried():
    assert classify(answer(503), vendor_retried=True).vendor_retried
    assert not classify(answer(404), vendor_retried=True).vendor_retried
