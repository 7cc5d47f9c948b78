"""Checks refusals: the error must have the right category, contain certain words, and show no secret."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import pytest

from multiclouddb_api import ErrorCategory, ErrorReason, MulticloudDbError

__all__ = ["LOST", "REFUSED", "check_refusal", "refusal", "refused"]

LOST: Final = (ErrorReason.AGED_OUT, ErrorReason.TRIMMED)
"""The reasons of a position whose changes the service no longer keeps."""
REFUSED: Final = (ErrorReason.NOT_OFFERED, ErrorReason.NEEDS_OPT_IN, ErrorReason.NOT_PROVISIONED)
"""The reasons of a request that a database cannot serve."""
_ALWAYS: Final = {
    ErrorCategory.CHECKPOINT_EXPIRED: (*LOST, ErrorReason.ROLLED_BACK, ErrorReason.REPLACED),
    ErrorCategory.UNSUPPORTED_CAPABILITY: REFUSED,
}
"""The categories whose errors always have a reason, and the reasons that they may have."""


def check_refusal(
    error: MulticloudDbError, category: ErrorCategory, reasons: Sequence[ErrorReason] = ()
) -> MulticloudDbError:
    """Check the category and the reason of an error, and return it.

    Args:
        error: The error.
        category: The category that it must have.
        reasons: The reasons that it may have. If it is empty, these are the reasons of the category; if the
            category has none that every error has, the error may have any or none.
    """
    assert error.category == category, error
    expected = reasons or _ALWAYS.get(category)
    assert expected is None or error.reason in expected, error.detail
    return error


def refused(category: ErrorCategory, *words: str) -> pytest.RaisesExc[MulticloudDbError]:
    """Open a `with` block that must raise an error.

    Args:
        category: The category of the error.
        words: Words that the message must contain, in this order.
    """
    match = ".*".join(map(re.escape, words)) or None

    def is_it(error: MulticloudDbError) -> bool:
        return error.category == category and check_refusal(error, category) is error

    return pytest.raises(MulticloudDbError, match=match, check=is_it)


def refusal(
    category: ErrorCategory, act: Callable[[], object], *words: str, hidden: Iterable[str] = ()
) -> MulticloudDbError:
    """Return the error that a call raises.

    Args:
        category: The category of the error.
        act: A function that makes the call, which must raise the error.
        words: Words that the message must contain, in any order.
        hidden: Secrets that must not appear in the error's text or traceback.
    """
    with pytest.raises(MulticloudDbError) as caught:
        act()
    error = check_refusal(caught.value, category)
    assert [word for word in words if word not in str(error)] == []
    shown = str(error) + repr(error) + repr(error.detail) + "".join(traceback.format_exception(error))
    assert [secret for secret in hidden if secret in shown] == []
    # Python prints this line for an uncaught error; it must begin with the name of the public class.
    assert traceback.format_exception_only(error)[0].startswith("multiclouddb_api.errors.MulticloudDbError")
    return error
