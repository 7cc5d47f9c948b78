"""The one error type that applications see, and its categories.

Everything this project raises at its users is a `MulticloudDbError`; what to do about it is told
by its category:

    INVALID_REQUEST          the call is wrong: change it, a retry fails again
    UNSUPPORTED_CAPABILITY   this database cannot do that: the message names another way
    AUTHENTICATION_FAILED    who you are could not be shown
    AUTHORIZATION_FAILED     you may not do that
    NOT_FOUND                no such database, table, container or collection
    CONFLICT                 somebody else changed it first
    THROTTLED                too fast for the service: wait, then retry
    TRANSIENT_FAILURE        unavailable, or the deadline passed: retry
    PERMANENT_FAILURE        the service failed in a way that a retry does not mend
    PROVIDER_ERROR           a record cannot be decoded or is too large: `detail.skip_token` steps over it
    CHECKPOINT_EXPIRED       the position is older than what the service still keeps

The page behind `MulticloudDbError.help_url` has causes and ways out for each of them.
"""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from multiclouddb_api.text import shorten

__all__ = ["DOCS_URL", "ErrorCategory", "ErrorDetail", "MulticloudDbError", "invalid_request"]

DOCS_URL: Final = "https://multiclouddb.readthedocs.io/"
"""Where this documentation is published."""


class ErrorCategory(str):
    """What kind of failure this is, as upper-case text; open to values of later versions.

    Compare with the constants of this class (`error.category == ErrorCategory.THROTTLED`), and
    treat a category that you do not know like `PERMANENT_FAILURE`.
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
        """Every category of this version, in the order of the table at the top of the module."""
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


@attrs.frozen
class ErrorDetail:
    """The facts of a failure, kept when the error is pickled or sent to another process.

    Attributes:
        category: What kind of failure this is.
        provider: Provider id (`"dynamo"`), or None when no provider was involved yet.
        operation: The call that failed (`"read_changes"`), or None.
        retryable: True when the same call may succeed later without a change.
        native_class: Qualified class name of the vendor's exception, or None.
        native_code: The vendor's own code as text, or None.
        native_text: The vendor's own message, or None.
        oldest_position: With `CHECKPOINT_EXPIRED`: the oldest position that the service still
            has, as text for a person, or None where the service does not tell.
        skip_token: With `PROVIDER_ERROR` on a record: a continuation token behind that record.
    """

    category: ErrorCategory
    provider: str | None = None
    operation: str | None = None
    retryable: bool = False
    native_class: str | None = None
    native_code: str | None = None
    native_text: str | None = None
    oldest_position: str | None = None
    skip_token: str | None = attrs.field(default=None, repr=shorten)


class MulticloudDbError(Exception):
    """Any failure of a call, with a message that says what to do about it.

    The vendor's exception, where there was one, is `__cause__` in the process that raised it; it
    is not pickled, `detail` is. A note (PEP 678) makes a traceback end with `help_url`; `str` is
    the message alone.

    Args:
        message: One line: what is wrong, and the way out.
        detail: The facts behind it.
    """

    def __init__(self, message: str, detail: ErrorDetail) -> None:
        super().__init__(message, detail)
        # A copy or an unpickled error is made here too, and then gets the notes of the original in its place.
        self.add_note(f"See {self.help_url}")

    @property
    def message(self) -> str:
        """One line: what is wrong, and the way out."""
        return str(self.args[0])

    @property
    def detail(self) -> ErrorDetail:
        """The facts behind the message."""
        detail = self.args[1]
        assert isinstance(detail, ErrorDetail)
        return detail

    @property
    def category(self) -> ErrorCategory:
        """Short for `detail.category`."""
        return self.detail.category

    @property
    def retryable(self) -> bool:
        """Short for `detail.retryable`."""
        return self.detail.retryable

    @property
    def help_url(self) -> str:
        """Where the documentation explains this category: usual causes, and ways out."""
        return f"{DOCS_URL}reference/errors/#{self.detail.category.lower()}"

    def __str__(self) -> str:
        return f"[{self.detail.category}] {self.message}"


def invalid_request(field: str, problem: str, way_out: str) -> MulticloudDbError:
    """Make the error for a value that the caller has to change.

    Args:
        field: Name of the argument, field or option.
        problem: What is wrong with the value, without the value where it may be a secret.
        way_out: What to write instead.
    """
    return MulticloudDbError(
        f"{field}: {problem}; {way_out}", ErrorDetail(category=ErrorCategory.INVALID_REQUEST)
    )
