"""Tests the error-handling code that all providers share: faults, error tables, and shortened texts."""

import pytest

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError
from multiclouddb_conformance.simulation import Simulation, SimulationProvider, ThrottledError
from multiclouddb_spi import Fault, InvalidCursor, ProviderFault, RecordFault, cancelled, expired
from multiclouddb_spi.errors import fault_of, to_error
from multiclouddb_spi.faults import (
    AFTER_AN_OUTAGE,
    THROTTLED,
    UNAVAILABLE,
    Row,
    one_line,
    row_of_status,
    unexpected,
)

INVALID, TRANSIENT = ErrorCategory.INVALID_REQUEST, ErrorCategory.TRANSIENT_FAILURE


class TestOwnFaults:
    def test_a_fault_has_what_it_was_made_of(self):
        made = ProviderFault.of(TRANSIENT, "later", "7", retryable=True, vendor_retried=True)
        assert made.fault == Fault(TRANSIENT, "later", "7", retryable=True, vendor_retried=True)
        assert ProviderFault.of(INVALID, "wrong").fault == Fault(INVALID, "wrong")

    def test_an_expired_position_names_the_way_that_repairs_first(self):
        found = expired("changes were trimmed").fault
        assert (found.category, found.retryable) == (ErrorCategory.CHECKPOINT_EXPIRED, False)
        assert found.message.startswith("changes were trimmed; start again")
        ways = [found.message.index(f"on_expired={way}") for way in ("Resnapshot()", "SkipToOldest()")]
        assert ways == sorted(ways)
        assert AFTER_AN_OUTAGE in found.message

    def test_a_cancelled_read_may_be_tried_again(self):
        found = cancelled().fault
        assert (found.category, found.retryable) == (TRANSIENT, True)
        assert "cancelled" in found.message

    def test_each_becomes_the_user_s_error(self):
        for made in (expired("gone"), cancelled(), ProviderFault.of(INVALID, "wrong")):
            error = to_error("sim", "read_changes", made.fault, made)
            assert (error.category, error.message) == (made.fault.category, made.fault.message)


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

    def test_a_record_that_cannot_be_read(self, provider):
        found = fault_of(provider, RecordFault(0, "sequence 7", "too large", 8, "10334"))
        assert (found.category, found.code) == (ErrorCategory.PROVIDER_ERROR, "10334")
        assert "sequence 7" in found.message

    def test_a_classification_that_fails_does_not_hide_the_error(self, provider):
        provider.classify = lambda error: 1 / 0
        found = fault_of(provider, ValueError("what happened"))
        assert found.category == ErrorCategory.PERMANENT_FAILURE
        assert "what happened" in found.message


class TestRow:
    @pytest.mark.parametrize(
        "category", ["INVALID_REQUEST", "NOT_FOUND", "THROTTLED", "TRANSIENT_FAILURE", "PERMANENT_FAILURE"]
    )
    def test_what_may_pass_is_retryable(self, category):
        category = getattr(ErrorCategory, category)
        may_pass = category in (ErrorCategory.THROTTLED, TRANSIENT)
        assert Row(category, "wait").retryable is may_pass
        assert not Row(category, "wait", retryable=False).retryable

    def test_a_fault_says_what_happened_and_the_way_out(self):
        made = Row(INVALID, "write it right").fault("it is wrong", "E7")
        assert made == Fault(INVALID, "it is wrong; write it right", "E7")

    def test_the_service_s_pause_and_the_vendor_s_tries_are_passed_on(self):
        made = THROTTLED.fault("slow down", retry_after=2.0, vendor_retried=True)
        assert (made.retryable, made.retry_after, made.vendor_retried) == (True, 2.0, True)

    def test_what_is_never_tried_again_was_not_retried_either(self):
        assert not Row(INVALID, "x").fault("x", vendor_retried=True).vendor_retried

    def test_a_confidential_row_makes_a_confidential_fault(self):
        assert Row(INVALID, "x", confidential=True).fault("x").confidential
        assert not Row(INVALID, "x").fault("x").confidential

    @pytest.mark.parametrize(
        ("status", "row"),
        [(200, None), (400, None), (404, None), (428, None), (429, THROTTLED), (499, None)]
        + [(status, UNAVAILABLE) for status in (500, 502, 503, 504, 599)],
    )
    def test_a_status_says_whether_to_try_again(self, status, row):
        assert row_of_status(status) is row


class TestText:
    def test_what_no_table_knows_is_to_be_reported(self):
        found = unexpected(KeyError("Table"))
        assert (found.category, found.retryable) == (ErrorCategory.PERMANENT_FAILURE, False)
        assert found.message.startswith("KeyError: 'Table'; ")
        assert "report" in found.message

    @pytest.mark.parametrize(
        "text", ["a\nb", "a\r\nb", "a\tb", "a\x0bb", "a\u2028b", "a\x1b\x07 b", "  a \n\n b  "], ids=ascii
    )
    def test_it_is_on_one_line_and_can_be_printed(self, text):
        assert one_line(text) == "a b"

    def test_it_is_cut(self):
        assert len(one_line("word " * 1000)) <= 300
        assert len(unexpected(ValueError("x" * 10_000)).message) < 700


def test_a_vendor_s_error_is_the_provider_s_to_classify():
    found = fault_of(SimulationProvider(Simulation()), ThrottledError("slow down", 0.5))
    assert (found.category, found.retry_after) == (ErrorCategory.THROTTLED, 0.5)
