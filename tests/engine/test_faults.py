"""Tests the error-handling code that all providers share: faults, error tables, and shortened texts."""

import pytest

from multiclouddb_api import ClientConfig, ErrorCategory, ErrorDetail, MulticloudDbError
from multiclouddb_conformance.refusals import refused
from multiclouddb_conformance.simulation import Simulation, SimulationProvider
from multiclouddb_spi import InvalidCursor, ProviderFault, expired, open_provider, plugin
from multiclouddb_spi.connection import Location, parse_location
from multiclouddb_spi.errors import fault_of
from multiclouddb_spi.faults import (
    AFTER_AN_OUTAGE,
    THROTTLED,
    UNAVAILABLE,
    FaultRule,
    one_line,
    row_of_status,
    unexpected,
)

INVALID, TRANSIENT = ErrorCategory.INVALID_REQUEST, ErrorCategory.TRANSIENT_FAILURE


class TestOwnFaults:
    def test_an_expired_position_names_the_way_that_repairs_first(self):
        found = expired("changes were trimmed").fault
        assert (found.category, found.retryable) == (ErrorCategory.CHECKPOINT_EXPIRED, False)
        assert found.message.startswith("changes were trimmed; start again")
        ways = [found.message.index(f"on_expired={way}") for way in ("Resnapshot()", "SkipToOldest()")]
        assert ways == sorted(ways)
        assert AFTER_AN_OUTAGE in found.message


class TestMeaning:
    """Errors that this project raises keep their meaning; the provider classifies only other errors."""

    @pytest.fixture
    def provider(self):
        return SimulationProvider(Simulation())

    def test_a_provider_s_own_fault_stays(self, provider):
        made = ProviderFault.of(ErrorCategory.THROTTLED, "slow down", retryable=True)
        assert fault_of(provider, made) is made.fault

    def test_a_user_s_error_stays(self, provider):
        error = MulticloudDbError("gone", ErrorDetail(ErrorCategory.NOT_FOUND))
        found = fault_of(provider, error)
        assert (found.category, found.message, found.retryable) == (ErrorCategory.NOT_FOUND, "gone", False)

    def test_a_damaged_cursor_is_a_wrong_token(self, provider):
        found = fault_of(provider, InvalidCursor("no number"))
        assert found.category == INVALID
        assert "continuation_token" in found.message
        assert "no number" in found.message

    def test_a_classification_that_fails_does_not_hide_the_error(self, provider):
        provider.classify = lambda error: 1 / 0
        found = fault_of(provider, ValueError("what happened"))
        assert found.category == ErrorCategory.PERMANENT_FAILURE
        assert "what happened" in found.message


class TestRow:
    def test_the_service_s_pause_and_the_vendor_s_tries_are_passed_on(self):
        made = THROTTLED.fault("slow down", retry_after=2.0, vendor_retried=True)
        assert (made.retryable, made.retry_after, made.vendor_retried) == (True, 2.0, True)

    def test_what_is_never_tried_again_was_not_retried_either(self):
        assert not FaultRule(INVALID, "x").fault("x", vendor_retried=True).vendor_retried

    def test_a_confidential_row_makes_a_confidential_fault(self):
        assert FaultRule(INVALID, "x", confidential=True).fault("x").confidential
        assert not FaultRule(INVALID, "x").fault("x").confidential

    @pytest.mark.parametrize(
        ("status", "row"),
        [(200, None), (400, None), (404, None), (428, None), (429, THROTTLED), (499, None)]
        + [(status, UNAVAILABLE) for status in (500, 502, 503, 504, 599)],
    )
    def test_a_status_says_whether_to_try_again(self, status, row):
        assert row_of_status(status) is row


class TestText:
    @pytest.mark.parametrize(
        "text", ["a\nb", "a\r\nb", "a\tb", "a\x0bb", "a\u2028b", "a\x1b\x07 b", "  a \n\n b  "], ids=ascii
    )
    def test_it_is_on_one_line_and_can_be_printed(self, text):
        assert one_line(text) == "a b"

    def test_it_is_cut(self):
        assert len(one_line("word " * 1000)) <= 300
        assert len(unexpected(ValueError("x" * 10_000)).message) < 700


SECRET = "hunter2"


def parsed(url):
    return parse_location(
        url, "db", options=["profile", "tls"], form="write db://HOST", credentials="set it in the environment"
    )


class TestLocation:
    @pytest.mark.parametrize(
        ("url", "location"),
        [
            ("db://", Location("", "", {})),
            ("db://host", Location("host", "", {})),
            ("db://host:81/a/b", Location("host:81", "/a/b", {})),
            ("db:///a%20b@c", Location("", "/a%20b@c", {})),
            ("db://host?tls=false", Location("host", "", {"tls": "false"})),
            ("db://host?tls=&profile=x", Location("host", "", {"tls": "", "profile": "x"})),
            ("db://host?profile=http://a:1/b", Location("host", "", {"profile": "http://a:1/b"})),
        ],
    )
    def test_the_parts_of_a_url(self, url, location):
        assert parsed(url) == location

    @pytest.mark.parametrize(
        ("url", "words"),
        [
            (7, ["connection.url", "text", "int", "db://HOST"]),
            (None, ["connection.url", "text", "NoneType"]),
            ("", ["connection.url", "scheme ''", "db://HOST"]),
            ("host", ["connection.url", "scheme", "db://HOST"]),
            ("dbs://host", ["connection.url", "'dbs'", "db://HOST"]),
            ("db://[host", ["connection.url", "no address", "db://HOST"]),
            ("db://host:port", ["connection.url", "no address", "db://HOST"]),
            ("db://host:99999", ["connection.url", "no address"]),
            ("db://host#place", ["connection.url", "after a #"]),
            ("db://host?tlss=1", ["connection.url", "'tlss'", "did you mean 'tls'?"]),
            ("db://host?x=1", ["connection.url", "'x'", "profile, tls"]),
            ("db://host?tls=1&tls=1", ["'tls'", "second time", "once"]),
        ],
        ids=str,
    )
    def test_what_is_wrong_is_named_with_the_way_out(self, url, words):
        with refused(INVALID, *words):
            parsed(url)

    @pytest.mark.parametrize(
        "url",
        [
            f"db://user:{SECRET}@host",
            f"db://{SECRET}@host",
            f"db://user:{SECRET}@",
            f"db://host#{SECRET}",
            f"db://host?tls={SECRET}&tls={SECRET}",
            f"db://host?password={SECRET}",
            f"db://host:{SECRET}",
        ],
    )
    def test_no_message_has_a_secret(self, url):
        with refused(INVALID, "connection") as caught:
            parsed(url)
        assert SECRET not in str(caught.value)


def test_an_entry_point_that_names_something_else_is_refused(monkeypatch):
    monkeypatch.setattr(plugin, "load_plugin", lambda name: object())
    with refused(INVALID, "'foreign' names a object, which is not a ProviderPlugin"):
        open_provider(ClientConfig("foreign"))
