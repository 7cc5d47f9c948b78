"""What has to be refused: the category of the error, the words in it, and no secret."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable

import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError

__all__ = ["refusal", "refused"]


def refused(category: ErrorCategory, *words: str) -> pytest.RaisesExc[MulticloudDbError]:
    """A `with` block that has to raise an error.

    Args:
        category: Its category.
        words: What its message has to say, in this order.
    """
    match = ".*".join(map(re.escape, words)) or None
    return pytest.raises(MulticloudDbError, match=match, check=lambda error: error.category == category)


def refusal(
    category: ErrorCategory, act: Callable[[], object], *words: str, hidden: Iterable[str] = ()
) -> MulticloudDbError:
    """The error of an act.

    Args:
        category: Its category.
        act: What has to raise it.
        words: What has to stand in its message, in any order.
        hidden: Secrets that may stand nowhere: not in what is shown of it, nor in its trace.
    """
    with pytest.raises(MulticloudDbError) as caught:
        act()
    error = caught.value
    assert error.category == category, error
    assert [word for word in words if word not in str(error)] == []
    shown = str(error) + repr(error) + repr(error.detail) + "".join(traceback.format_exception(error))
    assert [secret for secret in hidden if secret in shown] == []
    # What a person reads comes first in what Python prints.
    assert traceback.format_exception_only(error)[0].startswith("multiclouddb_api.errors.MulticloudDbError")
    return error
