"""Tests what the texts of failed connections mean."""

import pytest

from multiclouddb_api import ErrorCategory
from multiclouddb_spi.faults import row_of_connection

REFUSED = [
    "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired (_ssl.c:1006)",
    "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required (_ssl.c:2580)",
    "[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca (_ssl.c:2580)",
    "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)",
    "Ssl handshake failed: error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED",
]
NAMELESS = [
    "[Errno -2] Name or service not known",
    "db.example.com:27017: [Errno -5] No address associated with hostname",
    "[Errno 8] nodename nor servname provided, or not known",
    "DNS resolution failed for x:1: C-ares status is not ARES_SUCCESS qtype=A: Domain name not found",
]
UNREADABLE = [
    "Failed to parse: 'me:secret' is not a valid host or port",
    "Failed to parse: http://me:secret/x@proxy:3128",
    "errors resolving me:secret: [field:hostname lookup error:Failed to parse port in name: me:secret]",
    "DNS resolution failed for me:secret: C-ares status is not ARES_SUCCESS name=me: Domain name not found",
]
PASSING = [
    "[Errno -3] Temporary failure in name resolution",
    "EOF occurred in violation of protocol (_ssl.c:2427)",
    "[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol (_ssl.c:1006)",
    "[Errno 111] Connection refused",
    "connection closed",
    "Failed to parse: filter",
    "[Errno 104] Connection reset by peer",
]


def raised(text, depth):
    """Return an error that hides another one, as vendors' clients do."""
    error = OSError(text)
    for _ in range(depth):
        cause, error = error, RuntimeError("could not connect")
        error.__cause__ = cause
    return error


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_what_a_text_means_however_deep_it_is(depth):
    for text in REFUSED:  # a refusal of TLS is final
        row = row_of_connection(raised(text, depth))
        assert (row.category, row.retryable) == (ErrorCategory.AUTHENTICATION_FAILED, False), text
    for text in NAMELESS:  # a host without an address is tried again unless the client is new
        fault = row_of_connection(raised(text, depth)).fault("x")
        assert fault.category == ErrorCategory.TRANSIENT_FAILURE, text
        assert (fault.retryable, fault.unknown_host) == (True, True), text
    for text in UNREADABLE:  # a proxy's address, which is the same at the next try
        fault = row_of_connection(raised(text, depth)).fault(text)
        assert (fault.category, fault.retryable) == (ErrorCategory.INVALID_REQUEST, False), text
        assert "HTTPS_PROXY" in fault.message
        assert "secret" not in fault.message
    for text in PASSING:
        assert row_of_connection(raised(text, depth)) is None, text


def test_a_circle_of_causes_ends():
    first, second = OSError("a"), OSError("b")
    first.__cause__, second.__cause__ = second, first
    assert row_of_connection(first) is None
