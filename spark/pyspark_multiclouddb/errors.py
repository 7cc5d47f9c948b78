"""Defines errors whose category can be recovered after Spark has passed them on.

Spark passes an exception of a data source through two processes as the text of a traceback, so the
exception's class and fields are lost. Therefore every message begins with a marker that can be found in the
text:

    [MULTICLOUDDB:CHECKPOINT_EXPIRED] the position is older than what the store keeps; …
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Final

import attrs

from multiclouddb_api import ErrorCategory, ErrorDetail, ErrorReason, MulticloudDbError, invalid_request
from multiclouddb_api.validators import check_type, type_name
from multiclouddb_spi import ProviderFault, RecordFault
from multiclouddb_spi.faults import AFTER_AN_OUTAGE, START_AGAIN, holds_data
from multiclouddb_tables.batch import new_query, repair

NEW_QUERY: Final = new_query("merge_into_delta")
"""The new query that repairs a table."""

REPAIR: Final = repair("merge_into_delta")
"""The way out if a query has missed changes, or may have missed them."""

_EXPIRED: Final = (
    "set failOnDataLoss=resnapshot, which reads every row again and repairs the table of "
    f"merge_into_delta(…, checkpoint=…); if the failed batch was planned before the changes expired, "
    f"{NEW_QUERY}; or set failOnDataLoss=false, which, like any other start of a new query, never delivers "
    "the lost changes: deleted rows stay, changed rows stay old and new rows are missing; see "
    f"{AFTER_AN_OUTAGE}"
)
"""The advice for `CHECKPOINT_EXPIRED`."""

_MARKER: Final = re.compile(r"\[MULTICLOUDDB:([A-Z_]+)\]")
_LINE: Final = re.compile(r"\[MULTICLOUDDB:([A-Z_]+)\] ([^\n]*?)(?: \[reason: ([a-z_]+)\].*)?$", re.MULTILINE)
_RETRYABLE: Final = (ErrorCategory.CONFLICT, ErrorCategory.TRANSIENT_FAILURE)
# Maps patterns for the names in the client to the names in this source.
_IN_SPARK: Final = (
    (re.compile(re.escape(f"; {START_AGAIN}")), ""),
    (re.compile(r"on_expired=Resnapshot\(\)"), "failOnDataLoss=resnapshot"),
    (re.compile(r"on_expired=SkipToOldest\(\)"), "failOnDataLoss=false"),
    (re.compile(r"\bBeginning\(\)"), "startingPosition=beginning"),
    (re.compile(r"\bNow\(\)"), "startingPosition=now"),
    (re.compile(r"\bSnapshot\([^)]*\)"), "startingPosition=snapshot"),
    (re.compile(r"\bSnapshot\.order\b"), "snapshotOrder"),
    (re.compile(r"\bSnapshot\.segments\b"), "snapshotSegments"),
    (re.compile(r"\bAtTime\([^)]*\)"), "a time as startingPosition"),
    (re.compile(r"\bnew_item_state_mode=(\w+)"), r"newItemState=\1"),
    (re.compile(r"\bold_item_state_mode=(\w+)"), r"oldItemState=\1"),
)


class SourceError(Exception):
    """The error that the data source raises."""


def error_from_query(error: BaseException | None) -> ErrorCategory | None:
    """Return the category of the error of this source that has caused an exception of Spark.

    Args:
        error: The exception from an action, `query.awaitTermination()` or `query.exception()`, or None.

    Returns:
        The category, or None if the failure came from elsewhere.

    Examples:
        >>> try:
        ...     query.awaitTermination()
        ... except StreamingQueryException as error:
        ...     if error_from_query(error) == ErrorCategory.CHECKPOINT_EXPIRED:
        ...         restart()
    """
    check_type("error", error, BaseException, type(None))
    found = _MARKER.search(str(error)) if error is not None else None
    return ErrorCategory(found[1]) if found else None


def reason_from_query(error: BaseException | None) -> ErrorReason | None:
    """Return the reason of the error of this source that has caused an exception of Spark.

    Args:
        error: As in `error_from_query`.

    Returns:
        The reason, or None if the error has none, or if the failure came from elsewhere.
    """
    check_type("error", error, BaseException, type(None))
    found = None if error is None else detail_from_query(error)
    return None if found is None else found[1].reason


def detail_from_query(error: BaseException) -> tuple[str, ErrorDetail] | None:
    """Return the message, and the category and the reason, of the error of this source in one of Spark's."""
    found = _LINE.search(str(error))
    if found is None:
        return None
    category, reason = ErrorCategory(found[1]), None if found[3] is None else ErrorReason(found[3])
    retryable = category in (ErrorCategory.TRANSIENT_FAILURE, ErrorCategory.THROTTLED)
    return found[2], ErrorDetail(category, retryable=retryable, reason=reason)


@contextmanager
def told_by_executors() -> Iterator[None]:
    """Raise the error of this source that the `with` block has got from an executor."""
    try:
        yield
    except MulticloudDbError:
        raise
    except Exception as error:
        if (found := detail_from_query(error)) is None:
            raise
        message, detail = found
        # A merge that another one was in the way of succeeds when it is tried again.
        retryable = detail.category in _RETRYABLE
        raise MulticloudDbError(message, attrs.evolve(detail, retryable=retryable)) from error


@contextmanager
def source_errors() -> Iterator[None]:
    """Add the marker of the category to each error that the `with` block raises."""
    try:
        yield
    except MulticloudDbError as error:
        # Spark prints the texts of causes too.
        cause = error.__cause__
        raise _marked(error.category, error.message, error.reason) from (
            None if cause is None or holds_data(cause) else cause
        )
    except ProviderFault as error:
        raise _marked(error.fault.category, error.fault.message, error.fault.reason) from None


def poisoned(where: str, fault: RecordFault, *, is_row: bool = False) -> ProviderFault:
    """Return the fault for a record that cannot be decoded; its message names the way out."""
    way_out = (
        "onPoison=skip does not apply to rows of a snapshot; change or delete the document in the database"
        if is_row
        else "set onPoison=skip to leave this change out; then the sink keeps the document's earlier state "
        "until its next change"
    )
    return ProviderFault.of(
        ErrorCategory.PROVIDER_ERROR,
        f"{where}: {fault}; {way_out}",
        fault.code,
        reason=ErrorReason.UNDECODABLE,
    )


def gone(where: object, what: str) -> MulticloudDbError:
    """Return the error for a read after which other rows exist; `what` is the text of `other_rows`."""
    return MulticloudDbError(
        f"the feed of {where} says that {what}; if a collection of this name exists again, the changes say "
        f"nothing of the rows of the old one, which may still be in a table; {NEW_QUERY}",
        ErrorDetail(ErrorCategory.NOT_FOUND, reason=ErrorReason.REPLACED),
    )


def _marked(category: ErrorCategory, message: str, reason: ErrorReason | None) -> SourceError:
    message = " ".join(message.split())
    for theirs, ours in _IN_SPARK:
        message = theirs.sub(ours, message)
    if category == ErrorCategory.CHECKPOINT_EXPIRED:
        message = f"{message}; {_EXPIRED}"
    told = "" if reason is None else f" [reason: {reason}]"
    error = SourceError(f"[MULTICLOUDDB:{category}] {message}{told}")
    error.add_note(f"See {MulticloudDbError(message, ErrorDetail(category)).help_url}")
    return error


def check_has(name: str, value: object, attribute: str, wanted: str) -> None:
    """Refuse an object that does not have the given attribute."""
    if isinstance(value, type) or not hasattr(value, attribute):
        raise invalid_request(name, f"must be {wanted}, not {type_name(value)}", f"pass {wanted}")


def no_pyspark(name: str) -> ImportError:
    """Return the error to raise for a function that needs PySpark."""
    try:
        trouble = f"this is {import_module('pyspark').__version__}; install a newer one"
    except ModuleNotFoundError:
        trouble = 'it is not installed; run: pip install "multiclouddb[spark]"'
    return ImportError(f"{name} needs PySpark 4.0 or newer: {trouble}")
