"""Defines the one error type that applications see, and its categories.

Every error that this project raises to its users is a `MulticloudDbError`. Its category says what to do::

    INVALID_REQUEST         the call is wrong: change it, because a retry fails again
    UNSUPPORTED_CAPABILITY  that database cannot do it: the message names an alternative
    AUTHENTICATION_FAILED   your credentials are missing, or the service does not accept them
    AUTHORIZATION_FAILED    you are not allowed to do that
    NOT_FOUND               there is no such database, table, container or collection
    CONFLICT                another writer was first
    THROTTLED               the service received too many requests: wait, then retry
    TRANSIENT_FAILURE       the service is unavailable, or the deadline passed: retry
    PERMANENT_FAILURE       the service failed in a way that a retry does not fix
    PROVIDER_ERROR          a record cannot be decoded or is too large: `detail.skip_token` skips it
    CHECKPOINT_EXPIRED      the service no longer keeps the changes after the position

`MulticloudDbError.help_url` links to a page that explains the causes of each category and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import get_annotations
from types import NoneType
from typing import ClassVar, Final

import attrs
from attrs import frozen

from multiclouddb_api.redaction import shorten

DOCS_URL: Final = "https://multiclouddb.readthedocs.io/latest/"
"""The address at which the documentation is published."""


class ErrorCategory(str):
    """The kind of a failure, as upper-case text.

    Compare it with the constants of this class (`error.category == ErrorCategory.THROTTLED`). Later versions
    may add categories, so treat an unknown one like `PERMANENT_FAILURE`.
    """

    __slots__ = ()

    INVALID_REQUEST: ClassVar[ErrorCategory]
    AUTHENTICATION_FAILED: ClassVar[ErrorCategory]
    AUTHORIZATION_FAILED: ClassVar[ErrorCategory]
    NOT_FOUND: ClassVar[ErrorCategory]
    CONFLICT: ClassVar[ErrorCategory]
    THROTTLED: ClassVar[ErrorCategory]
    TRANSIENT_FAILURE: ClassVar[ErrorCategory]
    PERMANENT_FAILURE: ClassVar[ErrorCategory]
    PROVIDER_ERROR: ClassVar[ErrorCategory]
    UNSUPPORTED_CAPABILITY: ClassVar[ErrorCategory]
    CHECKPOINT_EXPIRED: ClassVar[ErrorCategory]

    @classmethod
    def known(cls) -> tuple[ErrorCategory, ...]:
        """Return all categories that this version defines, in a fixed order."""
        return _KNOWN


_KNOWN: Final = tuple(
    ErrorCategory(name)
    for name in (
        "INVALID_REQUEST",
        "UNSUPPORTED_CAPABILITY",
        "AUTHENTICATION_FAILED",
        "AUTHORIZATION_FAILED",
        "NOT_FOUND",
        "CONFLICT",
        "THROTTLED",
        "TRANSIENT_FAILURE",
        "PERMANENT_FAILURE",
        "PROVIDER_ERROR",
        "CHECKPOINT_EXPIRED",
    )
)
for _category in _KNOWN:
    setattr(ErrorCategory, _category, _category)


class ErrorReason(str):
    """Why a call has failed, within its category, as lower-case text.

    Compare it with the constants of this class (`error.detail.reason == ErrorReason.CLOCK`). An error has no
    reason if nothing more is known than its category says. Later versions may add reasons, and may give one
    to an error that has none today, so treat an unknown one like None. The page *Errors* has each category's
    reasons, and what to do.
    """

    __slots__ = ()

    AGED_OUT: ClassVar[ErrorReason]
    """The position is older than the time for which the service keeps changes."""
    TRIMMED: ClassVar[ErrorReason]
    """The changes were removed, by an operator or because the log was full."""
    ROLLED_BACK: ClassVar[ErrorReason]
    """A failover has lost changes, and gives their positions to others."""
    REPLACED: ClassVar[ErrorReason]
    """The collection was dropped or renamed, or another one has taken its place."""
    MALFORMED: ClassVar[ErrorReason]
    """A token, an id, a checkpoint or the mark of a table is damaged, or none of this library."""
    UNKNOWN_VERSION: ClassVar[ErrorReason]
    """A token, a checkpoint or the mark of a table was made by a newer version of this library."""
    WRONG_PROVIDER: ClassVar[ErrorReason]
    """A token or an id belongs to another database service."""
    WRONG_RESOURCE: ClassVar[ErrorReason]
    """A token, an id or a table belongs to another collection, or a table to no sink."""
    WRONG_SCOPE: ClassVar[ErrorReason]
    """A token was made for another scope, such as another partition."""
    WRONG_OPTIONS: ClassVar[ErrorReason]
    """A token was made, or a table was filled, with other provider options, for example another mode."""
    RECREATED: ClassVar[ErrorReason]
    """The resource was deleted and created again since the token, the id or the table was made."""
    CLOCK: ClassVar[ErrorReason]
    """A start time is ahead of the service's clock, or this machine's clock is wrong."""
    NOT_PROVISIONED: ClassVar[ErrorReason]
    """The feed, or what the request needs of it, is not switched on."""
    NOT_OFFERED: ClassVar[ErrorReason]
    """The database, the service of a checkpoint or the table does not offer it."""
    NEEDS_OPT_IN: ClassVar[ErrorReason]
    """The library can emulate it, if the request opts in."""
    NOT_INSTALLED: ClassVar[ErrorReason]
    """A package is missing."""
    UNKNOWN_HOST: ClassVar[ErrorReason]
    """The host of the connection has no address."""
    TLS: ClassVar[ErrorReason]
    """One side refuses the other's certificate or version of TLS."""
    OTHER_WRITER: ClassVar[ErrorReason]
    """Another process has saved or written first, or is about to."""
    DELETED: ClassVar[ErrorReason]
    """The checkpoint, or the position in a table, was there and is gone."""
    UNDECODABLE: ClassVar[ErrorReason]
    """A record cannot be decoded."""
    MISFIT: ClassVar[ErrorReason]
    """A table cannot take a row: a value does not fit its column, or a constraint refuses it."""
    OTHER_COLUMNS: ClassVar[ErrorReason]
    """A table has another declaration of columns."""
    WRONG_COLUMNS: ClassVar[ErrorReason]
    """A table lacks a column that is written, or has it with another type."""
    LONG_KEY: ClassVar[ErrorReason]
    """A key is longer than a table can take."""
    NO_DOCUMENT: ClassVar[ErrorReason]
    """A change has no document, and the table needs it."""
    ROWS_MISSING: ClassVar[ErrorReason]
    """A table lacks rows that were written to it: it was dropped, emptied or restored, or is another one."""

    @classmethod
    def known(cls) -> tuple[ErrorReason, ...]:
        """Return all reasons that this version defines, in a fixed order."""
        return _REASONS


_REASONS: Final = tuple(
    ErrorReason(name.lower()) for name in get_annotations(ErrorReason) if not name.startswith("_")
)
for _reason in _REASONS:
    setattr(ErrorReason, _reason.upper(), _reason)


@frozen
class ErrorDetail:
    """The facts about a failure, which can be pickled and sent to another process."""

    category: ErrorCategory
    """The kind of the failure."""
    provider: str | None = None
    """The provider id (`"dynamo"`), or None if the call failed before a provider was chosen."""
    operation: str | None = None
    """The name of the call that failed (`"read_changes"`), or None."""
    retryable: bool = False
    """True if the same call, unchanged, may succeed later."""
    native_class: str | None = None
    """The qualified class name of the vendor's exception, or None."""
    native_code: str | None = None
    """The vendor's own error code as text, or None."""
    native_text: str | None = None
    """The vendor's own error message, or None."""
    oldest_position: str | None = None
    """With `CHECKPOINT_EXPIRED`, the oldest position that the service still keeps, as readable text, if it
    reports one."""
    skip_token: str | None = attrs.field(default=None, repr=shorten)
    """With `PROVIDER_ERROR`, the continuation token after the record that cannot be read, if there is one."""
    retry_after_seconds: float | None = None
    """How many seconds the service asked to wait before the next call, or None. An iterator waits at least
    this long."""
    reason: ErrorReason | None = None
    """Why the call has failed, within the category; None if nothing more is known."""

    def __attrs_post_init__(self) -> None:
        check_type("ErrorDetail.category", self.category, ErrorCategory)
        check_type("ErrorDetail.retryable", self.retryable, bool)
        check_type("ErrorDetail.retry_after_seconds", self.retry_after_seconds, float, int, type(None))
        check_type("ErrorDetail.reason", self.reason, ErrorReason, type(None))
        for name in _TEXTS:
            check_type(f"ErrorDetail.{name}", getattr(self, name), str, type(None))


_TEXTS: Final = tuple(
    name
    for name in get_annotations(ErrorDetail)
    if name not in ("category", "reason", "retryable", "retry_after_seconds")
)


class MulticloudDbError(Exception):
    """Raised for any failure of a call, with a message that says how to fix it.

    A vendor's exception is its `__cause__`, but only in the process that raised it: pickling keeps `detail`
    and not `__cause__`. A traceback ends with `help_url`, which is a note (PEP 678) and so not a part of
    `str(error)`.

    Args:
        message: One line that says what is wrong and how to fix it.
        detail: The facts about the failure.
    """

    def __init__(self, message: str, detail: ErrorDetail) -> None:
        check_type("message", message, str)
        check_type("detail", detail, ErrorDetail)
        super().__init__(message, detail)
        # This code also runs for copies and unpickled errors; the notes of the original then replace this
        # note.
        self.add_note(f"See {self.help_url}")

    @property
    def message(self) -> str:
        """One line that says what is wrong and how to fix it."""
        return str(self.args[0])

    @property
    def detail(self) -> ErrorDetail:
        """The facts about the failure."""
        detail = self.args[1]
        assert isinstance(detail, ErrorDetail)
        return detail

    @property
    def category(self) -> ErrorCategory:
        """Short for `detail.category`."""
        return self.detail.category

    @property
    def reason(self) -> ErrorReason | None:
        """Short for `detail.reason`."""
        return self.detail.reason

    @property
    def retryable(self) -> bool:
        """Short for `detail.retryable`."""
        return self.detail.retryable

    @property
    def help_url(self) -> str:
        """The address of the page that explains this category, its usual causes and how to fix them."""
        return f"{DOCS_URL}reference/errors/#{self.detail.category.lower()}"

    def __str__(self) -> str:
        return f"[{self.detail.category}] {self.message}"


def invalid_request(
    field: str, problem: str, way_out: str, reason: ErrorReason | None = None
) -> MulticloudDbError:
    """Make the error for a value that the caller must change.

    Args:
        field: The name of the argument, field or option.
        problem: The problem with the value; do not include the value itself if it may be a secret.
        way_out: What the caller can do instead.
        reason: The reason, if it is one of `ErrorReason`.
    """
    for name, text in (("field", field), ("problem", problem), ("way_out", way_out)):
        check_type(name, text, str)
    return MulticloudDbError(
        f"{field}: {problem}; {way_out}",
        ErrorDetail(category=ErrorCategory.INVALID_REQUEST, reason=reason),
    )


def check_type(field: str, value: object, *types: type) -> None:
    """Refuse a value that is not an instance of one of the types; a bool does not count as a number."""
    if isinstance(value, types) and not (isinstance(value, bool) and bool not in types):
        return
    wanted = " or ".join(_NAMES.get(kind, kind.__name__) for kind in types)
    raise invalid_request(field, f"must be {wanted}, not {type_name(value)}", _way_out(value, types, wanted))


_NAMES: Final[dict[type, str]] = {NoneType: "None", Mapping: "mapping"}


def type_name(value: object) -> str:
    """Return the name of a value's type for a message; a class gets a different name from its instances."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _way_out(value: object, types: tuple[type, ...], wanted: str) -> str:
    if isinstance(value, type) and issubclass(value, types):
        needs = any(field.default is attrs.NOTHING for field in getattr(value, "__attrs_attrs__", ()))
        return f"write {value.__name__}({'…' if needs else ''})"
    for kind in types:
        # The caller passed the name or the value of an enum member as text.
        for name, member in getattr(kind, "__members__", {}).items():
            if isinstance(value, str) and value.casefold() in (name.casefold(), member.value):
                return f"pass {kind.__name__}.{name}"
    return f"pass {'an' if wanted[0] in 'aeiouAEIO' else 'a'} {wanted}"
