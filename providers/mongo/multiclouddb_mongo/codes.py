"""Lists the meanings of the server's error codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from multiclouddb_api import ErrorCategory
from multiclouddb_api.errors import DOCS_URL
from multiclouddb_spi import error_table
from multiclouddb_spi.faults import START_AGAIN

__all__ = [
    "AUTHENTICATION",
    "BAD_COMMAND",
    "BAD_TOKEN",
    "CODES",
    "CONVERSION_FAILURE",
    "EVENT_TOO_LARGE",
    "FIRST_LOCATION",
    "HISTORY_LOST",
    "IMAGE_MISSING",
    "INVALIDATED_TOKEN",
    "NOT_AUTHORIZED",
    "NO_TOKEN",
    "OUT_OF_TIME",
    "OVERTAKEN",
    "REPORT",
    "THROTTLED",
    "TIME_LIMIT",
    "TOKEN_NOT_FOUND",
    "UNAVAILABLE",
    "UNKNOWN",
    "Row",
]

NOT_AUTHORIZED: Final = 13
IMAGE_MISSING: Final = 47
TIME_LIMIT: Final = 50
OVERTAKEN: Final = 136
"""The server's error code if the oplog no longer contains the entries that an open cursor must read next.

Opening the stream again shows whether the token is lost.
"""
INVALIDATED_TOKEN: Final = 260
TOKEN_NOT_FOUND: Final = 280
CONVERSION_FAILURE: Final = 241
HISTORY_LOST: Final = 286
EVENT_TOO_LARGE: Final = 10334

FIRST_LOCATION: Final = 15000
"""The lowest location code.

Most codes from 15000 upwards have no name. Each such code identifies the place in the server's source code
that refuses a request.
"""

REPORT: Final = (
    "look the code up in MongoDB's list of error codes; if neither the pipeline nor the command is the "
    "cause, please report the error"
)
_PAGE: Final = f"{DOCS_URL}how-to/mongodb/"


@attrs.frozen
class Row(error_table.Row):
    """The meaning of one error code.

    The code is confidential if the server's text may quote a document, a document's key, a resume
    token or a whole command. A resume token contains a document's key.

    Attributes:
        quoted: True if the message quotes the server's text; only this text says what to change.
    """

    quoted: bool = attrs.field(default=False, kw_only=True)


AUTHENTICATION: Final = Row(
    ErrorCategory.AUTHENTICATION_FAILED,
    "the server refuses the login; check the user, the password, authSource and authMechanism "
    "of the connection",
)
_AUTHORIZATION: Final = Row(
    ErrorCategory.AUTHORIZATION_FAILED,
    f"the user has no permission for this; grant the user the roles that {_PAGE} lists",
    # The server's text quotes the command, including its resume token.
    confidential=True,
)
UNAVAILABLE: Final = Row(
    ErrorCategory.TRANSIENT_FAILURE,
    "the server is not available at this moment; try again",
    quoted=True,
)
_CURSOR: Final = Row(
    ErrorCategory.TRANSIENT_FAILURE,
    "the server has closed the cursor; read again from the same token",
)
OUT_OF_TIME: Final = Row(
    ErrorCategory.TRANSIENT_FAILURE,
    "the time of the call was not enough for the server; try again with a longer timeout",
)
THROTTLED: Final = Row(
    ErrorCategory.THROTTLED, "the server is overloaded; read with fewer processes, or later"
)
BAD_TOKEN: Final = Row(
    ErrorCategory.INVALID_REQUEST,
    "the server cannot read this resume token; pass one that it returned, unchanged",
    confidential=True,
)
NO_TOKEN: Final = Row(
    ErrorCategory.INVALID_REQUEST,
    "the pipeline removes or alters the events' _id, which is their resume token; keep _id as it is",
    confidential=True,
)
BAD_COMMAND: Final = Row(
    ErrorCategory.INVALID_REQUEST,
    "the server does not accept the pipeline, the command or one of its options; change the part that the "
    "server's message names",
    quoted=True,
)
_BAD_NAMESPACE: Final = Row(
    ErrorCategory.INVALID_REQUEST,
    "the server has no change stream for this namespace; name an ordinary collection, not a view, a time "
    "series, a system collection or a collection in admin, local or config",
)
_MISSING: Final = Row(
    ErrorCategory.NOT_FOUND, "there is no such database or collection; check both names of the address"
)
UNKNOWN: Final = Row(ErrorCategory.PERMANENT_FAILURE, REPORT, quoted=True)

# Maps each of the server's codes to its meaning.
CODES: Final[Mapping[int, Row]] = {
    HISTORY_LOST: Row(
        ErrorCategory.CHECKPOINT_EXPIRED,
        f"the oplog no longer contains this position ({_PAGE} says how large the oplog has to be); "
        f"{START_AGAIN}",
    ),
    OVERTAKEN: Row(
        ErrorCategory.TRANSIENT_FAILURE,
        "the oplog removed entries before the reader reached them; read again from the same token: that read "
        "fails if the token has expired",
    ),
    TOKEN_NOT_FOUND: Row(
        ErrorCategory.INVALID_REQUEST,
        "the server cannot resume from this token: the pipeline leaves out the event that it names, or the "
        "token is of another collection or database; resume with the pipeline and the address that the token "
        "came from",
        confidential=True,
    ),
    INVALIDATED_TOKEN: Row(
        ErrorCategory.INVALID_REQUEST,
        "the stream ended with an invalidate event at this token; resume after it with start_after, or with "
        'after_invalidate="follow"',
    ),
    IMAGE_MISSING: Row(
        ErrorCategory.UNSUPPORTED_CAPABILITY,
        "the required image is missing: the collection does not keep images, it kept none when the change "
        "was made, or the images have expired; turn changeStreamPreAndPostImages on and keep the images "
        "longer, or read with INCLUDE_IF_AVAILABLE",
    ),
    EVENT_TOO_LARGE: Row(
        ErrorCategory.PROVIDER_ERROR,
        "an event is larger than 16 MB, the limit of a document; read without item states (OMIT), or use "
        "MongoDB 7.0, which splits large events",
        confidential=True,
    ),
    40573: Row(
        ErrorCategory.UNSUPPORTED_CAPABILITY,
        "change streams need a replica set, but this server is a standalone server; start it with --replSet "
        f"and call replSetInitiate once, as {_PAGE} shows",
    ),
    26: _MISSING,  # NamespaceNotFound
    73: _BAD_NAMESPACE,  # InvalidNamespace
    166: _BAD_NAMESPACE,  # CommandNotSupportedOnView
    11: AUTHENTICATION,  # UserNotFound
    18: AUTHENTICATION,  # AuthenticationFailed
    334: AUTHENTICATION,  # MechanismUnavailable
    391: AUTHENTICATION,  # ReauthenticationRequired
    NOT_AUTHORIZED: _AUTHORIZATION,
    31: _AUTHORIZATION,  # RoleNotFound
    462: THROTTLED,  # IngressRequestRateLimitExceeded
    16500: THROTTLED,  # services that use MongoDB's protocol send this code for an exhausted quota
    43: _CURSOR,  # CursorNotFound
    237: _CURSOR,  # CursorKilled
    175: _CURSOR,  # QueryPlanKilled
    TIME_LIMIT: OUT_OF_TIME,
    262: OUT_OF_TIME,  # ExceededTimeLimit
    # HostUnreachable, HostNotFound, StaleShardVersion, NetworkTimeout, ShutdownInProgress,
    # FailedToSatisfyReadPreference, ReadConcernMajorityNotAvailableYet, StaleEpoch, PrimarySteppedDown,
    # NetworkInterfaceExceededTimeLimit (a server got no answer from another server in time),
    # RetryChangeStream, SnapshotUnavailable, PooledConnectionsDropped,
    # SocketException, LegacyNotPrimary, NotWritablePrimary, InterruptedAtShutdown, Interrupted,
    # InterruptedDueToReplStateChange, StaleConfig, NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary,
    # ClientMarkedKilled
    **dict.fromkeys(
        (6, 7, 63, 89, 91, 133, 134, 150, 189, 202, 234, 246, 317, 9001, 10058, 10107, 11600, 11601, 11602),
        UNAVAILABLE,
    ),
    **dict.fromkeys((13388, 13435, 13436, 46841), UNAVAILABLE),
    # Location codes of the server's parser for resume tokens.
    **dict.fromkeys((40647, 40648, 40649), BAD_TOKEN),
    # BadValue, FailedToParse, TypeMismatch, Overflow, InvalidLength, IllegalOperation, CommandNotFound,
    # InvalidOptions, CommandNotSupported, InvalidPipelineOperator, OperationNotSupportedInTransaction,
    # APIVersionError, APIStrictError, an unknown stage, an unknown field, $changeStream in the wrong place
    **dict.fromkeys(
        (2, 9, 14, 15, 16, 20, 59, 72, 115, 168, 263, 322, 323, 40324, 40415, 40602), BAD_COMMAND
    ),
    121: Row(
        ErrorCategory.INVALID_REQUEST,
        "the document does not pass the collection's validation; change the document or the validation",
        confidential=True,
    ),
    **dict.fromkeys(
        (11000, 11001, 12582),
        Row(ErrorCategory.CONFLICT, "a unique index already contains this key", confidential=True),
    ),
}
