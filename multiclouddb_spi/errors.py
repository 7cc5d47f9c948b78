"""Finds the fault of a failure (`faults`), and makes the error that the user sees; nothing else makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from multiclouddb_api import ErrorCategory, ErrorDetail, ErrorReason, MulticloudDbError
from multiclouddb_spi.cursor import InvalidCursor
from multiclouddb_spi.faults import (
    Fault,
    ProviderFault,
    RecordFault,
    holds_data,
    unexpected,
    without_data,
)

if TYPE_CHECKING:
    from multiclouddb_spi.contract import Provider

_CLASSIFIED: Final = "_multiclouddb_fault"


def fault_of(provider: Provider, error: Exception) -> Fault:
    """Return the fault of a failure."""
    if isinstance(error, ProviderFault):
        return error.fault
    if isinstance(error, RecordFault):
        return Fault(ErrorCategory.PROVIDER_ERROR, str(error), error.code, reason=ErrorReason.UNDECODABLE)
    if isinstance(error, MulticloudDbError):
        return Fault(
            error.category,
            error.message,
            retryable=error.retryable,
            retry_after=error.detail.retry_after_seconds,
            vendor_retried=True,
            reason=error.reason,
        )
    if isinstance(error, InvalidCursor):
        return Fault(
            ErrorCategory.INVALID_REQUEST,
            f"continuation_token: holds a position that this provider cannot have made ({error}); "
            "pass a page's continuation_token unchanged",
            reason=ErrorReason.MALFORMED,
        )
    try:
        return classified(provider.classify, error)
    except Exception:  # noqa: BLE001 - the user must see the failure itself
        return unexpected(error)


def classified(classify: Callable[[Exception], Fault], error: Exception) -> Fault:
    """Return the classification of a vendor's error.

    `classify` is called only once per error: the result is stored in it.
    """
    facts = vars(error)
    if _CLASSIFIED not in facts:
        facts[_CLASSIFIED] = classify(error)
    fault: Fault = facts[_CLASSIFIED]
    return fault


def cause_of(fault: Fault, error: Exception) -> Exception | None:
    """Return the exception to use as the cause of an error.

    It is never one that may quote a secret or data, because logs also contain causes.
    """
    return None if fault.confidential or holds_data(error) else error


def to_error(
    provider_id: str,
    operation: str,
    fault: Fault,
    cause: Exception | None = None,
    *,
    oldest_position: str | None = None,
) -> MulticloudDbError:
    """Make the user's error for a fault; its detail contains the facts about the vendor's exception."""
    if isinstance(cause, MulticloudDbError):
        return cause
    ours = isinstance(cause, ProviderFault | InvalidCursor | RecordFault)
    native = cause.__cause__ if cause is not None and ours else cause
    message = fault.message
    if oldest_position is not None:
        message = f"{message}; the oldest position still available is {oldest_position}"
    detail = ErrorDetail(
        category=fault.category,
        provider=provider_id,
        operation=operation,
        retryable=fault.retryable,
        native_class=None if native is None else f"{type(native).__module__}.{type(native).__qualname__}",
        native_code=fault.code,
        native_text=None if native is None or fault.confidential else without_data(str(native)),
        oldest_position=oldest_position,
        retry_after_seconds=fault.retry_after,
        reason=fault.reason,
    )
    return MulticloudDbError(message, detail)


@contextmanager
def user_errors(provider: Provider, operation: str) -> Iterator[None]:
    """Convert any failure inside the block to the error that the user receives."""
    try:
        yield
    except MulticloudDbError:
        raise
    except Exception as error:  # noqa: BLE001 - raised again, classified
        fault = fault_of(provider, error)
        raise to_error(provider.provider_id, operation, fault, error) from cause_of(fault, error)
