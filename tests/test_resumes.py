"""Tests that only an error about the token proves that it cannot be resumed."""

import pytest

import multiclouddb_api as api
from multiclouddb_api import ErrorCategory, ErrorReason
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_spi import ProviderFault
from multiclouddb_spi.token_report import resumes_after


def error(category, reason=None):
    return api.MulticloudDbError("no", api.ErrorDetail(category, reason=reason))


@pytest.mark.parametrize(
    ("category", "reason", "resumes"),
    [
        (ErrorCategory.CHECKPOINT_EXPIRED, None, False),
        (ErrorCategory.NOT_FOUND, None, False),
        (ErrorCategory.INVALID_REQUEST, ErrorReason.RECREATED, False),
        (ErrorCategory.INVALID_REQUEST, ErrorReason.MALFORMED, False),
        (ErrorCategory.INVALID_REQUEST, ErrorReason.UNKNOWN_HOST, None),
        (ErrorCategory.INVALID_REQUEST, None, None),
        (ErrorCategory.AUTHORIZATION_FAILED, None, None),
        (ErrorCategory.TRANSIENT_FAILURE, None, None),
        (ErrorCategory.THROTTLED, None, None),
        (ErrorCategory.PROVIDER_ERROR, ErrorReason.UNDECODABLE, None),
    ],
)
def test_an_error_proves_it_only_by_what_it_says(category, reason, resumes):
    assert resumes_after(error(category, reason)) is resumes


def test_a_report_of_a_token_that_nobody_may_read_does_not_call_it_lost(tmp_path, monkeypatch):
    with EmbeddedStore(tmp_path / "shop.db") as store:
        store.create_collection("orders")
        with api.connect(f"embedded://{store.path}") as client:
            request = api.ChangeFeedRequest("main/orders", api.Beginning())
            token = client.read_changes(request).continuation_token
            assert client.inspect(token).resumes is True

        def refuse(*arguments, **named):
            raise ProviderFault.of(ErrorCategory.AUTHORIZATION_FAILED, "a right is missing; grant it")

        monkeypatch.setattr(EmbeddedFeed, "open", refuse)
        with api.connect(f"embedded://{store.path}") as client:
            report = client.inspect(token)
    assert (report.resumes, report.error) == (None, ErrorCategory.AUTHORIZATION_FAILED)
