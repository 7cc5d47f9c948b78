"""Checks refusals: the error must have the right category, contain certain words, and show no secret."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable
from typing import Final

import pytest

from multiclouddb_api import ErrorCategory, ErrorReason, MulticloudDbError

__all__ = ["LOST", "REFUSED", "refusal", "refused"]

LOST: Final = (ErrorReason.AGED_OUT, ErrorReason.TRIMMED)
"""The reasons of a position whose changes the service no longer keeps."""
REFUSED: Final = (ErrorReason.NOT_OFFERED, ErrorReason.NEEDS_OPT_IN, ErrorReason.NOT_PROVISIONED)
"""The reasons of a request that a database cannot serve."""


def refused(category: ErrorCategory, *words: str) -> pytest.RaisesExc[MulticloudDbError]:
    """Open a `with` block that must raise an error.

    Args:
        category: The category of the error.
        words: Words that the message must contain, in this order.
    """
    match = ".*".join(map(re.escape, words)) or None
    return pytest.raises(MulticloudDbError, match=match, check=lambda error: error.category == category)


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
    error = caught.value
    assert error.category == category, error
    assert [word for word in words if word not in str(error)] == []
    shown = str(error) + repr(error) + repr(error.detail) + "".join(traceback.format_exception(error))
    assert [secret for secret in hidden if secret in shown] == []
    # Python prints this line for an uncaught error; it must begin with the name of the public class.
    assert traceback.format_exception_only(error)[0].startswith("multiclouddb_api.errors.MulticloudDbError")
    return error
