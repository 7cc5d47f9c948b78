"""Calls what has to be refused as an invalid request."""

from functools import partial

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance import refusals


def refusal(call, *arguments, **named):
    """Return the error of the call."""
    error = refusals.refusal(ErrorCategory.INVALID_REQUEST, partial(call, *arguments, **named))
    assert not error.retryable
    return error


def refused(call, *arguments, **named):
    """Return the message of the call's error."""
    return refusal(call, *arguments, **named).message
