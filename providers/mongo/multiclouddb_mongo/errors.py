"""What a failure of PyMongo or of the server means; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
from bson.errors import BSONError, InvalidBSON
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    EncryptionError,
    ExecutionTimeout,
    InvalidName,
    InvalidOperation,
    OperationFailure,
    ProtocolError,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)

from multiclouddb_api import ErrorCategory
from multiclouddb_spi import Fault, ProviderFault

__all__ = [
    "EVENT_TOO_LARGE",
    "HISTORY_LOST",
    "IMAGE_MISSING",
    "INVALIDATED_TOKEN",
    "NOT_AUTHORIZED",
    "OVERTAKEN",
    "PROVIDER_ID",
    "TIME_LIMIT",
    "TOKEN_NOT_FOUND",
    "classify",
    "code_of",
    "fault",
]

PROVIDER_ID: Final = "mongo"

NOT_AUTHORIZED: Final = 13
IMAGE_MISSING: Final = 47
TIME_LIMIT: Final = 50
OVERTAKEN: Final = 136
"""The oplog has dropped what a live cursor was about to read; opening again tells if the token is lost."""
INVALIDATED_TOKEN: Final = 260
TOKEN_NOT_FOUND: Final = 280
HISTORY_LOST: Final = 286
EVENT_TOO_LARGE: Final = 10334

_UNKNOWN_ERROR: Final = 8
_ATLAS: Final = 8000
# The codes of a damaged token are many, and some of them have other uses.
_TOKEN_WORDS: Final = ("resume token string", "KeyString", "past end of buffer", "Resume Token")
_OVERLOADED: Final = "SystemOverloadedError"
_RESUMABLE: Final = "ResumableChangeStreamError"
_MOST_TEXT: Final = 300
_OURS: Final = "this should not happen; please report it with the text of this error"
_REPORT: Final = (
    "MongoDB's list of error codes says what it means; if neither the pipeline nor the command is to blame, "
    "please report it"
)
# The server says this of what failed on a document, which its text may then quote.
_AT_WORK: Final = re.compile(r"executor error", re.IGNORECASE)
_PAGE: Final = "docs/how-to/mongodb.md"


@attrs.frozen
class _Row:
    """What one code means.

    Attributes:
        category: What kind of failure.
        message: What is wrong and the way out, in our words.
        retryable: True when the same call may succeed later.
        confidential: True when the server's text may quote a document, a key of one, a whole command or a
            resume token (which holds a key): nobody gets to see it then.
        quoted: True when the message goes on with the server's text, because it alone says what to change.
    """

    category: ErrorCategory
    message: str
    retryable: bool = False
    confidential: bool = False
    quoted: bool = False


_AUTHENTICATION: Final = _Row(
    ErrorCategory.AUTHENTICATION_FAILED,
    "the server does not accept who we are; check the user, the password, authSource and authMechanism "
    "of the connection",
)
_AUTHORIZATION: Final = _Row(
    ErrorCategory.AUTHORIZATION_FAILED,
    f"the user may not do that; grant it the roles of {_PAGE}",
    confidential=True,  # it quotes the command, with its resume token
)
_UNAVAILABLE: Final = _Row(
    ErrorCategory.TRANSIENT_FAILURE,
    "the server is not available at this moment; try again",
    retryable=True,
    quoted=True,
)
_CURSOR: Final = _Row(
    ErrorCategory.TRANSIENT_FAILURE,
    "the server has closed the cursor; read again from the same token",
    retryable=True,
)
_TIME_LIMIT: Final = _Row(
    ErrorCategory.TRANSIENT_FAILURE,
    "the server ran out of the time that the call had; try again with a longer timeout",
    retryable=True,
)
_THROTTLED: Final = _Row(
    ErrorCategory.THROTTLED, "the server is overloaded; read with fewer processes, or later", retryable=True
)
_BAD_TOKEN: Final = _Row(
    ErrorCategory.INVALID_REQUEST,
    "the server cannot read this resume token; pass one that it gave out, unchanged",
    confidential=True,
)
_NO_TOKEN: Final = _Row(
    ErrorCategory.INVALID_REQUEST,
    "the pipeline removes or alters the events' _id, which is their resume token; keep _id as it is",
    confidential=True,
)
_BAD_COMMAND: Final = _Row(
    ErrorCategory.INVALID_REQUEST,
    "the server does not accept the pipeline, the command or one of its options; change what it names",
    quoted=True,
)
_BAD_NAMESPACE: Final = _Row(
    ErrorCategory.INVALID_REQUEST,
    "there is no change stream on this namespace; name an ordinary collection: no view, no time series, "
    "nothing in admin, local or config and no system collection",
)
_MISSING: Final = _Row(
    ErrorCategory.NOT_FOUND, "there is no such database or collection; check both names of the address"
)
_UNKNOWN: Final = _Row(ErrorCategory.PERMANENT_FAILURE, _REPORT, quoted=True)

# The texts of these quote the value.
_NO_BSON: Final = Fault(
    ErrorCategory.INVALID_REQUEST,
    "a value cannot be written as BSON; use BSON's types, valid Unicode, and integers of at most 64 bits",
    confidential=True,
)

# The server's code → what it means.
_CODES: Final[Mapping[int, _Row]] = {
    HISTORY_LOST: _Row(
        ErrorCategory.CHECKPOINT_EXPIRED,
        "the oplog does not reach back to this position any more; start again, or read with "
        f"on_expired=SkipToOldest() to go on behind the gap; {_PAGE} says how large the oplog has to be",
    ),
    OVERTAKEN: _Row(
        ErrorCategory.TRANSIENT_FAILURE,
        "the oplog has overtaken the reader; read again from the same token, which tells whether it is lost",
        retryable=True,
    ),
    TOKEN_NOT_FOUND: _Row(
        ErrorCategory.INVALID_REQUEST,
        "the server cannot go on from this token: the pipeline leaves out the event that it names, or the "
        "token is of another collection or database; resume with the pipeline and the address that the token "
        "came from",
        confidential=True,
    ),
    INVALIDATED_TOKEN: _Row(
        ErrorCategory.INVALID_REQUEST,
        "the stream ended with an invalidate event at this token; go on behind it with start_after, or with "
        'after_invalidate="follow"',
    ),
    IMAGE_MISSING: _Row(
        ErrorCategory.UNSUPPORTED_CAPABILITY,
        "the image that was required is not there: the collection does not keep images, did not when the "
        "change was made, or they have expired; turn changeStreamPreAndPostImages on and keep them longer, "
        "or ask with INCLUDE_IF_AVAILABLE",
    ),
    EVENT_TOO_LARGE: _Row(
        ErrorCategory.PROVIDER_ERROR,
        "an event is larger than the 16 MB of a document; read without states (OMIT), or use MongoDB 7.0, "
        "which splits large events",
        confidential=True,
    ),
    40573: _Row(
        ErrorCategory.UNSUPPORTED_CAPABILITY,
        "change streams need a replica set and this server stands alone; start it with --replSet and call "
        f"replSetInitiate once, as {_PAGE} shows",
    ),
    26: _MISSING,  # NamespaceNotFound
    73: _BAD_NAMESPACE,  # InvalidNamespace
    166: _BAD_NAMESPACE,  # CommandNotSupportedOnView
    11: _AUTHENTICATION,  # UserNotFound
    18: _AUTHENTICATION,  # AuthenticationFailed
    334: _AUTHENTICATION,  # MechanismUnavailable
    391: _AUTHENTICATION,  # ReauthenticationRequired
    NOT_AUTHORIZED: _AUTHORIZATION,
    31: _AUTHORIZATION,  # RoleNotFound
    462: _THROTTLED,  # IngressRequestRateLimitExceeded
    16500: _THROTTLED,  # what services that speak MongoDB's protocol say of a spent quota
    43: _CURSOR,  # CursorNotFound
    237: _CURSOR,  # CursorKilled
    TIME_LIMIT: _TIME_LIMIT,
    262: _TIME_LIMIT,  # ExceededTimeLimit
    # HostUnreachable, HostNotFound, StaleShardVersion, NetworkTimeout, ShutdownInProgress,
    # FailedToSatisfyReadPreference, ReadConcernMajorityNotAvailableYet, StaleEpoch, PrimarySteppedDown,
    # RetryChangeStream, SnapshotUnavailable, PooledConnectionsDropped,
    # SocketException, LegacyNotPrimary, NotWritablePrimary, InterruptedAtShutdown, Interrupted,
    # InterruptedDueToReplStateChange, StaleConfig, NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary
    **dict.fromkeys(
        (6, 7, 63, 89, 91, 133, 134, 150, 189, 234, 246, 317, 9001, 10058, 10107, 11600, 11601, 11602),
        _UNAVAILABLE,
    ),
    **dict.fromkeys((13388, 13435, 13436), _UNAVAILABLE),
    # Location codes of the resume token's own parser.
    **dict.fromkeys((40647, 40648, 40649), _BAD_TOKEN),
    # BadValue, FailedToParse, TypeMismatch, Overflow, InvalidLength, IllegalOperation, CommandNotFound,
    # InvalidOptions, CommandNotSupported, InvalidPipelineOperator, OperationNotSupportedInTransaction,
    # APIVersionError, APIStrictError, an unknown stage, an unknown field, $changeStream in the wrong place
    **dict.fromkeys(
        (2, 9, 14, 15, 16, 20, 59, 72, 115, 168, 263, 322, 323, 40324, 40415, 40602), _BAD_COMMAND
    ),
    121: _Row(
        ErrorCategory.INVALID_REQUEST,
        "the document does not pass the collection's validation; change the one or the other",
        confidential=True,
    ),
    **dict.fromkeys(
        (11000, 11001, 12582),
        _Row(ErrorCategory.CONFLICT, "a unique index has this key already", confidential=True),
    ),
}


def fault(
    category: ErrorCategory,
    message: str,
    *,
    code: str | None = None,
    retryable: bool = False,
    confidential: bool = False,
) -> ProviderFault:
    """The failure for what the provider found out itself."""
    return ProviderFault(
        Fault(category, message, code, retryable=retryable, vendor_retried=True, confidential=confidential)
    )


def code_of(error: BaseException) -> int | None:
    """The server's code, or None for a failure that no server answered with."""
    if isinstance(error, OperationFailure):
        return error.code
    code = _details(error).get("code")
    return code if isinstance(code, int) else None


def classify(error: Exception) -> Fault:
    """Say what an exception means; raises nothing, also for unknown exceptions.

    `vendor_retried` is always set: PyMongo retries a read once and resumes a change stream once by itself,
    and more of it on top would multiply.
    """
    try:
        found = _classified(error)
    except Exception:  # noqa: BLE001 - an exception whose own attributes fail is a failure to tell of, too
        found = Fault(ErrorCategory.PERMANENT_FAILURE, f"{type(error).__name__}; {_OURS}", confidential=True)
    return attrs.evolve(found, vendor_retried=True)


def _classified(error: Exception) -> Fault:
    labels = _labels(error)
    code = code_of(error)
    # Only where a server has said so: PyMongo puts this label on connections that fail, too.
    if code is not None and _OVERLOADED in labels:
        return attrs.evolve(_said(_THROTTLED, error, code), retry_after=_backoff(error))
    match error:
        case OperationFailure():
            return _said(_row(error, code, labels), error, code)
        case ServerSelectionTimeoutError():
            return _plain(
                ErrorCategory.TRANSIENT_FAILURE,
                f"no server answers ({_brief(error)}); check the hosts, the network, TLS and replicaSet "
                "of the connection",
                code,
                retryable=True,
            )
        case WaitQueueTimeoutError():
            return _plain(
                ErrorCategory.TRANSIENT_FAILURE,
                "no connection of the pool came free in time; raise maxPoolSize or waitQueueTimeoutMS",
                code,
                retryable=True,
            )
        case ConnectionFailure() | ProtocolError():
            return _said(_UNAVAILABLE, error, code)
        case ConfigurationError():
            return _configuration(error)
        case InvalidBSON():
            return _plain(
                ErrorCategory.PROVIDER_ERROR, f"an event cannot be decoded ({_short(str(error))})", code
            )
        case BSONError() | UnicodeEncodeError():
            return _NO_BSON
        case OverflowError() if "8-byte" in str(error):
            return _NO_BSON
        case InvalidName():
            return _plain(
                ErrorCategory.INVALID_REQUEST, f"{_short(str(error))}; check the names of the address"
            )
        case InvalidOperation() if "resume token" in str(error):
            return _said(_NO_TOKEN, error, code)
        case InvalidOperation():
            return _plain(ErrorCategory.INVALID_REQUEST, f"{_short(str(error))}; open a new client or stream")
        case EncryptionError():
            return Fault(
                ErrorCategory.PERMANENT_FAILURE,
                "a field cannot be encrypted or decrypted; check auto_encryption_opts and the key vault",
                confidential=True,
            )
        case OSError():
            return _said(_UNAVAILABLE, error, code)
        case _:
            return _plain(
                ErrorCategory.PERMANENT_FAILURE,
                f"{_short(f'{type(error).__name__}: {error}')}; {_OURS}",
                code,
            )


def _row(error: OperationFailure, code: int | None, labels: frozenset[str]) -> _Row:
    text = _text(error)
    row = _CODES.get(code) if code is not None else None
    if code == NOT_AUTHORIZED and "requires authentication" in text:
        return attrs.evolve(
            _AUTHENTICATION, message="the server wants to know who we are; put a user into the connection"
        )
    if code == _ATLAS and "auth" in text.lower():
        return _AUTHENTICATION
    if code == TOKEN_NOT_FOUND and "_id field" in text:
        return _NO_TOKEN
    if code == _UNKNOWN_ERROR and "document_value" in text:
        # What 6.0 says of a stream that is resumed with a pipeline without _id.
        return _NO_TOKEN
    if any(words in text for words in _TOKEN_WORDS):
        return _BAD_TOKEN
    if row is None and isinstance(error, ExecutionTimeout):
        row = _TIME_LIMIT
    if row is None:
        row = _UNAVAILABLE if _RESUMABLE in labels else _UNKNOWN
    if row.quoted and not row.retryable and _AT_WORK.search(text):
        message = f"the pipeline or the command fails on a document; {_REPORT}"
        return _Row(row.category, message, confidential=True)
    return row


def _configuration(error: ConfigurationError) -> Fault:
    """PyMongo's refusals: most may quote the connection string, and a password with it."""
    cause = error.__cause__
    if cause is not None and type(cause).__module__.startswith("dns."):
        if type(cause).__name__ in ("NXDOMAIN", "NoAnswer"):
            message = "DNS has no SRV record for the host of this mongodb+srv:// connection; check its name"
            return Fault(ErrorCategory.INVALID_REQUEST, message, confidential=True)
        message = "DNS does not tell the hosts of this mongodb+srv:// connection; try again"
        return Fault(ErrorCategory.TRANSIENT_FAILURE, message, retryable=True, confidential=True)
    if "wire version" in str(error):
        return _plain(
            ErrorCategory.UNSUPPORTED_CAPABILITY,
            "the server is too old or too new for this PyMongo; use MongoDB 4.4 or later, PyMongo to match",
        )
    return Fault(
        ErrorCategory.INVALID_REQUEST,
        "PyMongo does not accept the settings of the connection; check its options, and that the server has "
        "what they ask for",
        confidential=True,
    )


def _said(row: _Row, error: Exception, code: int | None) -> Fault:
    name = _details(error).get("codeName")
    words = "MongoDB"
    if code is not None:
        words += f" {code}" + (f" {_short(name)}" if isinstance(name, str) and name else "")
    text = _short(_text(error)) if row.quoted else ""
    said = f"{words} ({text})" if text else words
    return Fault(
        row.category,
        f"{said}: {row.message}",
        None if code is None else str(code),
        retryable=row.retryable,
        confidential=row.confidential,
    )


def _plain(
    category: ErrorCategory, message: str, code: int | None = None, *, retryable: bool = False
) -> Fault:
    return Fault(category, message, None if code is None else str(code), retryable=retryable)


def _details(error: BaseException) -> Mapping[str, Any]:
    """The server's reply, where there was one."""
    details = getattr(error, "details", None)
    return details if isinstance(details, Mapping) else {}


def _labels(error: BaseException) -> frozenset[str]:
    if not isinstance(error, PyMongoError):
        return frozenset()
    return frozenset(label for label in (_OVERLOADED, _RESUMABLE) if error.has_error_label(label))


def _backoff(error: BaseException) -> float | None:
    """Seconds that the server asked to wait."""
    asked = _details(error).get("baseBackoffMS")
    return max(0.0, asked / 1000) if isinstance(asked, int | float) else None


def _text(error: BaseException) -> str:
    """What the server said, without the reply around it."""
    text = _details(error).get("errmsg")
    return text if isinstance(text, str) else str(error)


def _brief(error: Exception) -> str:
    """What went wrong with the servers, without the table of all of them behind it."""
    text = str(error).partition(", Topology Description")[0]
    return _short(re.sub(r" \(configured timeouts: [^)]*\)", "", text))


def _short(text: str) -> str:
    """On one line, and not too long."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_MOST_TEXT]
