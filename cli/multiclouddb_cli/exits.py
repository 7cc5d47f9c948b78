"""Defines an exit code for each kind of failure, so that scripts can react to it."""

from __future__ import annotations

from typing import Final

OK: Final = 0
FAILURE: Final = 1
USAGE: Final = 2
OTHER: Final = 9
NOT_COVERED: Final = 10
DIFFERENT: Final = 11
UNSETTLED: Final = 12
BEHIND: Final = 13
BUSY: Final = 14
LATE: Final = 15
NOT_KNOWN: Final = 16
UNFIT: Final = 17
SET_ASIDE: Final = 18
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
    "CONFLICT": BUSY,
}

TABLE: Final = {
    OK: "the command has finished, or the program that reads its output has ended",
    FAILURE: "the output cannot be written, or there is a defect: --debug shows where",
    USAGE: "wrong command line",
    3: "INVALID_REQUEST",
    4: "NOT_FOUND",
    5: "AUTHENTICATION_FAILED, AUTHORIZATION_FAILED",
    6: "CHECKPOINT_EXPIRED",
    7: "UNSUPPORTED_CAPABILITY",
    8: "THROTTLED, TRANSIENT_FAILURE: try again later",
    OTHER: "any other category",
    NOT_COVERED: "token check: the token can be resumed, but does not cover every partition",
    DIFFERENT: "verify: the table differs from its source",
    UNSETTLED: "verify: no difference, but some keys could not be compared",
    BEHIND: "verify: the sink has not reached the source, or the table is marked as incomplete",
    BUSY: "CONFLICT: another process uses the state folder, the table or the checkpoint: try again later",
    LATE: "token check --max-lag: a change that is older than AGE has not been read",
    NOT_KNOWN: "token check --max-lag: nobody knows whether a change that is older than AGE was left unread",
    UNFIT: "columns --check: some values do not fit, and the declaration refuses them",
    SET_ASIDE: "mirror, mirror status, set-aside retry: rows are missing: retry what is set aside, prove",
    INTERRUPTED: "interrupted by ctrl-C (143: by SIGTERM)",
}
"""Maps each exit code to its meaning; the help shows this table."""


def exit_code(category: str) -> int:
    """Return the exit code for an error's category; 9 for a category that has no exit code of its own."""
    return _CODES.get(category, OTHER)
