"""Keeps passwords out of the library's local variables, because error reporters send them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from multiclouddb_api.errors import MulticloudDbError
from multiclouddb_api.redaction import redact_url

__all__ = ["SecretText", "outcome", "settled"]

T = TypeVar("T")


class SecretText(str):
    """Text that may contain a password; `repr` hides the text, and `str` returns it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(redact_url(str(self)))


def outcome(parse: Callable[..., T], *values: Any) -> Any:
    """Return a function's result, or return its `MulticloudDbError` so that the caller can raise it.

    While the function runs, its stack frames contain parts of the parsed text. The caller raises
    the error only after the function has returned, so that no traceback contains the function's
    stack frames.

    Args:
        parse: The function.
        values: Its arguments.
    """
    try:
        return parse(*values)
    except MulticloudDbError as error:
        return _without_frames(error)


def settled(parse: Callable[..., T], *values: Any) -> T:
    """Return the result of a function; if it fails, raise its error without the function's frames.

    Args:
        parse: The function.
        values: The arguments of the function. The repr of an argument must not show a secret.

    Raises:
        MulticloudDbError: The function's error.
    """
    found = outcome(parse, *values)
    if isinstance(found, MulticloudDbError):
        raise found
    settled_value: T = found
    return settled_value


def _without_frames(error: MulticloudDbError) -> MulticloudDbError:
    linked: BaseException | None = error
    while linked is not None:
        linked.__traceback__ = None
        linked = linked.__cause__ or linked.__context__
    return error
