"""Errors that survive the way through Spark.

An exception of a data source crosses two processes as the text of a traceback: its class and its
fields are lost. So every message begins with a marker that can be found in the text again:

    [MULTICLOUDDB:CHECKPOINT_EXPIRED] the position is older than what the store keeps; …
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError
from multiclouddb_spi import ProviderFault, RecordFault

__all__ = ["SourceError", "error_from_query", "told"]

_MARKER: Final = re.compile(r"\[MULTICLOUDDB:([A-Z_]+)\]")
_SKIP_TO_OLDEST: Final = (
    "start a new checkpoint directory, or set failOnDataLoss=false to go on at the oldest change that is left"
)


class SourceError(Exception):
    """What the data source raises: one line that begins with the marker of its category."""


def error_from_query(error: BaseException | None) -> ErrorCategory | None:
    """The category of a failure of this source, out of what Spark raised.

    Args:
        error: What an action, `query.awaitTermination()` or `query.exception()` gave; None is passed
            through.

    Returns:
        The category, or None when the failure is not of this source.

    Examples:
        >>> try:
        ...     query.awaitTermination()
        ... except StreamingQueryException as error:
        ...     if error_from_query(error) == ErrorCategory.CHECKPOINT_EXPIRED:
        ...         start_anew()
    """
    found = _MARKER.search(str(error)) if error is not None else None
    return ErrorCategory(found[1]) if found else None


@contextmanager
def told() -> Iterator[None]:
    """Let failures out with the marker.

    Raises:
        SourceError: For every error of ours and every fault of a provider.
    """
    try:
        yield
    except MulticloudDbError as error:
        raise _marked(error.category, error.message) from error.__cause__
    except ProviderFault as error:
        raise _marked(error.fault.category, error.fault.message) from None
    except RecordFault as error:
        raise _marked(ErrorCategory.PROVIDER_ERROR, str(error)) from error


def _marked(category: ErrorCategory, message: str) -> SourceError:
    message = " ".join(message.split())
    if category == ErrorCategory.CHECKPOINT_EXPIRED:
        message = f"{message}; {_SKIP_TO_OLDEST}"
    error = SourceError(f"[MULTICLOUDDB:{category}] {message}")
    error.add_note(f"See {MulticloudDbError(message, ErrorDetail(category)).help_url}")
    return error
