"""Calls what has to be refused."""

import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError


def refusal(call, *arguments, **named):
    """Return the error of a call that is an invalid request."""
    with pytest.raises(MulticloudDbError) as caught:
        call(*arguments, **named)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert not caught.value.retryable
    return caught.value


def refused(call, *arguments, **named):
    """Return the message of a call that is an invalid request."""
    return refusal(call, *arguments, **named).message
