"""Exit codes: one a kind of failure, so that a script can tell what to do."""

from __future__ import annotations

from typing import Final

__all__ = ["FAILURE", "INTERRUPTED", "NOT_COVERED", "OK", "OTHER", "TABLE", "USAGE", "exit_code"]

OK: Final = 0
FAILURE: Final = 1
USAGE: Final = 2
OTHER: Final = 9
NOT_COVERED: Final = 10
INTERRUPTED: Final = 130

_CODES: Final = {
    "INVALID_REQUEST": 3,
    "NOT_FOUND": 4,
    "AUTHENTICATION_FAILED": 5,
    "AUTHORIZATION_FAILED": 5,
    "CHECKPOINT_EXPIRED": 6,
    "UNSUPPORTED_CAPABILITY": 7,
    "THROTTLED": 8,
    "TRANSIENT_FAILURE": 8,
}

TABLE: Final = {
    OK: "done, or the reader of a pipe has gone",
    FAILURE: "the output cannot be written, or a defect: --debug shows where",
    USAGE: "wrong command line",
    3: "INVALID_REQUEST",
    4: "NOT_FOUND",
    5: "AUTHENTICATION_FAILED, AUTHORIZATION_FAILED",
    6: "CHECKPOINT_EXPIRED",
    7: "UNSUPPORTED_CAPABILITY",
    8: "THROTTLED, TRANSIENT_FAILURE: try again later",
    OTHER: "any other category",
    NOT_COVERED: "token check: the token resumes, but does not cover every partition",
    INTERRUPTED: "interrupted by ctrl-C (143: by SIGTERM)",
}
"""Exit code → what it means; the help and the README have it."""


def exit_code(category: str) -> int:
    """The exit code of an error's category; 9 for one that has none of its own."""
    return _CODES.get(category, OTHER)
