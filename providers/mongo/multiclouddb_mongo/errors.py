"""Maps each failure of PyMongo or of the server to its category."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
from attrs import frozen
from bson.errors import BSONError, InvalidBSON
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
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

from multiclouddb_api import ErrorCategory, ErrorReason
from multiclouddb_api.errors import DOCS_URL
from multiclouddb_spi import Fault, faults
from multiclouddb_spi.faults import REPORT as DEFECT
from multiclouddb_spi.faults import START_AGAIN, START_ANEW, one_line, row_of_connection, unexpected

_INVALID, _TRANSIENT = ErrorCategory.INVALID_REQUEST, ErrorCategory.TRANSIENT_FAILURE
_PERMANENT, _UNSUPPORTED = ErrorCategory.PERMANENT_FAILURE, ErrorCategory.UNSUPPORTED_CAPABILITY

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
_PAGE: Final = f"{DOCS_URL}databases/mongodb/"


@frozen
class MongoRule(faults.FaultRule):
    """The meaning of one error code.

    The code is confidential if the server's text may quote a document, a document's key, a resume
    token or a whole command. A resume token contains a document's key.

    Attributes:
        quoted: True if the message quotes the server's text; only this text says what to change.
    """

    quoted: bool = attrs.field(default=False, kw_only=True)


AUTHENTICATION: Final = MongoRule(
    ErrorCategory.AUTHENTICATION_FAILED,
    "the server refuses the login; check the user, the password, authSource and authMechanism "
    "of the connection",
)
_AUTHORIZATION: Final = MongoRule(
    ErrorCategory.AUTHORIZATION_FAILED,
    f"the user has no permission for this; grant the user the roles that {_PAGE} lists",
    # The server's text quotes the command, including its resume token.
    confidential=True,
)
UNAVAILABLE: Final = MongoRule(
    _TRANSIENT, "the server is not available at this moment; try again", quoted=True
)
_CURSOR: Final = MongoRule(_TRANSIENT, "the server has closed the cursor; read again from the same token")
OUT_OF_TIME: Final = MongoRule(
    _TRANSIENT,
    "the server needed more time than the call, or its own parameter defaultMaxTimeMS, allowed; try again "
    "with a longer timeout, or raise that parameter",
)
THROTTLED: Final = MongoRule(
    ErrorCategory.THROTTLED, "the server is overloaded; read with fewer processes, or later"
)
BAD_TOKEN: Final = MongoRule(
    _INVALID,
    "the server cannot read this resume token; pass one that it returned, unchanged, and connect to the "
    "deployment that it came from",
    confidential=True,
)
NO_TOKEN: Final = MongoRule(
    _INVALID,
    "the pipeline removes or alters the events' _id, which is their resume token, so keep _id as it is; or "
    "the server, which is no MongoDB, sends events without one",
    confidential=True,
)
BAD_COMMAND: Final = MongoRule(
    _INVALID,
    "the server does not accept the pipeline, the command or one of its options; change the part that the "
    "server's message names",
    quoted=True,
)
_BAD_NAMESPACE: Final = MongoRule(
    _INVALID,
    "the server does not offer this for this namespace; change what its message names; a change stream needs "
    "an ordinary collection, not a view, a time series, a system collection or a collection in admin, local "
    "or config",
    quoted=True,
)
_MISSING: Final = MongoRule(
    ErrorCategory.NOT_FOUND, "there is no such database or collection; check both names of the address"
)
_NO_STREAMS: Final = MongoRule(
    _UNSUPPORTED,
    f"this server has no change streams, without which nothing can be read; {_PAGE} says which servers have "
    "them",
    quoted=True,
    reason=ErrorReason.NOT_OFFERED,
)
_SHARD_REMOVED: Final = MongoRule(
    ErrorCategory.CHECKPOINT_EXPIRED,
    "a shard that had changes after this position was removed from the cluster, and its changes with it; "
    f"{START_AGAIN}",
    reason=ErrorReason.TRIMMED,
)
_MEMORY: Final = MongoRule(
    _INVALID,
    "the pipeline or the command needs more memory than the server allows it; make it smaller, or let a "
    "command of your own use the disk (allowDiskUse)",
    quoted=True,
)
UNKNOWN: Final = MongoRule(_PERMANENT, REPORT, quoted=True)

# Maps each of the server's codes to its meaning.
CODES: Final[Mapping[int, MongoRule]] = {
    HISTORY_LOST: MongoRule(
        ErrorCategory.CHECKPOINT_EXPIRED,
        f"the oplog no longer contains this position ({_PAGE} says how large the oplog has to be); "
        f"{START_AGAIN}",
        reason=ErrorReason.TRIMMED,
    ),
    OVERTAKEN: MongoRule(
        _TRANSIENT,
        "the oplog removed entries before the reader reached them; read again from the same token: that read "
        "fails if the token has expired",
    ),
    TOKEN_NOT_FOUND: MongoRule(
        _INVALID,
        "the server cannot resume from this token, and its log has the reason; if it does not find the event "
        "that the token names, the pipeline leaves it out, the token is of another collection, database or "
        "server, the event was undone (a rollback, a restored backup), or it was split because of its size, "
        "and with other item states it is not: resume with the pipeline, the item states and the address of "
        f"the token, or {START_ANEW}",
        confidential=True,
    ),
    INVALIDATED_TOKEN: MongoRule(
        _INVALID,
        "the stream ended with an invalidate event at this token; resume after it with start_after, or with "
        'after_invalidate="follow"',
    ),
    IMAGE_MISSING: MongoRule(
        _UNSUPPORTED,
        "the required image is missing: the collection does not keep images, it kept none when the change "
        "was made, or the images have expired; turn changeStreamPreAndPostImages on and keep the images "
        "longer, or read with INCLUDE_IF_AVAILABLE",
        reason=ErrorReason.NOT_PROVISIONED,
    ),
    EVENT_TOO_LARGE: MongoRule(
        ErrorCategory.PROVIDER_ERROR,
        "a document or an event is larger than 16 MB, the limit of a document; read a change stream without "
        "item states (OMIT), or use MongoDB 7.0, which splits large events",
        confidential=True,
    ),
    40573: MongoRule(
        _UNSUPPORTED,
        "change streams need a replica set, but this server is a standalone server; start it with --replSet "
        f"and call replSetInitiate once, as {_PAGE} shows",
        reason=ErrorReason.NOT_PROVISIONED,
    ),
    376: MongoRule(  # ChangeStreamNotEnabled
        _UNSUPPORTED, "change streams are not enabled on this server", reason=ErrorReason.NOT_PROVISIONED
    ),
    238: MongoRule(  # NotImplemented
        _UNSUPPORTED, "this server does not have it", quoted=True, reason=ErrorReason.NOT_OFFERED
    ),
    26: _MISSING,  # NamespaceNotFound
    12050: _BAD_NAMESPACE,  # a delete in a system collection
    73: _BAD_NAMESPACE,  # InvalidNamespace
    166: _BAD_NAMESPACE,  # CommandNotSupportedOnView
    18: AUTHENTICATION,  # AuthenticationFailed
    334: AUTHENTICATION,  # MechanismUnavailable
    391: AUTHENTICATION,  # ReauthenticationRequired
    NOT_AUTHORIZED: _AUTHORIZATION,
    # TooManyLogicalSessions, ResourceExhausted, AdmissionQueueOverflow, RateLimitExceeded,
    # PooledConnectionAcquisitionRejected, IngressRequestRateLimitExceeded
    **dict.fromkeys((261, 402, 433, 449, 450, 462), THROTTLED),
    16500: THROTTLED,  # services that use MongoDB's protocol send this code for an exhausted quota
    43: _CURSOR,  # CursorNotFound
    237: _CURSOR,  # CursorKilled
    175: _CURSOR,  # QueryPlanKilled
    70: MongoRule(  # ShardNotFound
        _TRANSIENT,
        "a shard is not there; try again; if the shard was removed from the cluster, its changes are gone "
        f"with it, and a position from before that cannot be read: {START_ANEW}",
        quoted=True,
    ),
    411: MongoRule(  # QueryRejectedBySettings
        ErrorCategory.AUTHORIZATION_FAILED,
        "the query settings of this server reject queries of this form; ask its administrator to take that "
        "back (removeQuerySettings)",
    ),
    **dict.fromkeys((146, 292), _MEMORY),  # ExceededMemoryLimit, QueryExceededMemoryLimitNoDiskUseAllowed
    291: MongoRule(  # NoQueryExecutionPlans
        _INVALID,
        "the server has no plan for this query, for example because no index fits and its parameter "
        "notablescan forbids to scan; make an index, or switch the parameter off",
        quoted=True,
    ),
    TIME_LIMIT: OUT_OF_TIME,
    262: OUT_OF_TIME,  # ExceededTimeLimit
    # HostUnreachable, HostNotFound, LockTimeout, StaleShardVersion, NetworkTimeout, ShutdownInProgress,
    # WriteConflict, FailedToSatisfyReadPreference, ReadConcernMajorityNotAvailableYet,
    # PooledConnectionsDropped, StaleEpoch, PrimarySteppedDown, NetworkInterfaceExceededTimeLimit (a server
    # got no answer from another server in time), ElectionInProgress, RetryChangeStream, SnapshotTooOld,
    # SnapshotUnavailable, StaleDbVersion, StaleChunkHistory, MigrationConflict, ClientDisconnect,
    # ConnectionPoolExpired, ReshardCollectionInProgress, ReshardingCriticalSectionTimeout,
    # ShardCannotRefreshDueToLocksHeld, InterruptedDueToStorageChange, TemporarilyUnavailable,
    # SocketException, LegacyNotPrimary, NotWritablePrimary, InterruptedAtShutdown, Interrupted,
    # InterruptedDueToReplStateChange, StaleConfig, NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary,
    # ClientMarkedKilled, PooledConnectionAcquisitionExceededTimeLimit,
    # InterruptedDueToReshardingCriticalSection, BackupCursorOpenConflictWithCheckpoint,
    # ConfigServerUnreachable, RetriableRemoteCommandFailure, InterruptedDueToFCVChange
    **dict.fromkeys(
        (6, 7, 24, 63, 89, 91, 112, 133, 134, 145, 150, 189, 202, 216, 234, 239, 246, 249, 250, 272, 279),
        UNAVAILABLE,
    ),
    **dict.fromkeys((317, 338, 342, 343, 355, 365, 9001, 10058, 10107, 11600, 11601, 11602), UNAVAILABLE),
    **dict.fromkeys((13388, 13435, 13436, 46841, 407, 453, 50915, 56846, 91331, 10045600), UNAVAILABLE),
    # Location codes of the server's parser for resume tokens.
    **dict.fromkeys((40647, 40648, 40649), BAD_TOKEN),
    # BadValue, FailedToParse, TypeMismatch, Overflow, InvalidLength, IllegalOperation, InvalidBSON,
    # CommandNotFound, InvalidOptions, CommandNotSupported, InvalidPipelineOperator,
    # OperationNotSupportedInTransaction, APIVersionError, APIStrictError, an unknown stage, an unknown field,
    # $changeStream in the wrong place
    **dict.fromkeys(
        (2, 9, 14, 15, 16, 20, 22, 59, 72, 115, 168, 263, 322, 323, 40324, 40415, 40602), BAD_COMMAND
    ),
    121: MongoRule(
        _INVALID,
        "the document does not pass the collection's validation; change the document or the validation",
        confidential=True,
    ),
    **dict.fromkeys(
        (11000, 11001, 12582),
        MongoRule(ErrorCategory.CONFLICT, "a unique index already contains this key", confidential=True),
    ),
}


PROVIDER_ID: Final = "mongo"

_UNKNOWN_ERROR: Final = 8
_ATLAS: Final = 8000
_USER_NOT_FOUND: Final = 11
# The server reports a damaged token with many codes, which also have other meanings. The words too: a damaged
# index has KeyStrings.
_TOKEN_CODES: Final = (9, 15)  # FailedToParse, Overflow
# The last words are those of Amazon DocumentDB, whose text has the whole token.
_TOKEN_WORDS: Final = (
    *("resume token string", "KeyString", "past end of buffer", "Resume Token", "Invalid resume token"),
)
_OVERLOADED: Final = "SystemOverloadedError"
_RESUMABLE: Final = "ResumableChangeStreamError"
# After these words, the server's text contains the whole command.
_DENIED: Final = re.compile(r"not authorized on (\S+) to execute command \{ (\w+):")
# The server uses these words if a document has caused a failure. The error message may quote the document.
_AT_WORK: Final = re.compile(r"executor error", re.IGNORECASE)

_DAMAGED: Final = MongoRule(
    ErrorCategory.PROVIDER_ERROR,
    "the server has met a document that is damaged, because its size cannot be true; look into the server's "
    "log, and run validate on the collection",
    confidential=True,
)
# How servers without change streams refuse the command that opens one: CommandNotFound, CommandNotSupported,
# NotImplemented, a feature that Amazon DocumentDB does not have, an unknown stage.
_REFUSING: Final = (59, 115, 238, 303, 40324)
_STREAMS: Final = re.compile(r"\$changeStream\b|change ?streams?\b|command:? '?aggregate\b", re.IGNORECASE)
# MongoDB has this code for another failure, which is over as soon as the driver has connected again.
_SPLIT_HORIZON: Final = 303
# Before these words, the server's text contains the whole query, with its keys.
_PLANNED: Final = re.compile(r"error processing query: .*planner returned error :: caused by :: ", re.DOTALL)

# The text of code 10334, which also stands for damage. The server itself makes no object of more than 64 MB.
_SIZE: Final = re.compile(r"BSONObj size: (-?\d+)")
_MOST_OBJECT: Final = 1 << 26

# The messages of these exceptions quote the value.
_NO_BSON: Final = Fault(
    _INVALID,
    "a value cannot be written as BSON; use BSON's types, valid Unicode, and integers of at most 64 bits",
    confidential=True,
)


def code_of(error: BaseException) -> int | None:
    """Return the server's code, or None for a failure that is not an answer from a server."""
    if isinstance(error, OperationFailure):
        return error.code
    code = _details(error).get("code")
    return code if isinstance(code, int) else None


def lacks_image(error: BaseException) -> bool:
    """Return True if a stream has met a change whose required image is missing."""
    # The code alone says that some document was not found.
    return code_of(error) == IMAGE_MISSING and "configured to require" in _text(error)


def is_unknown_token(error: BaseException) -> bool:
    """Return True if a server does not find the change of a resume token."""
    # A mongos of MongoDB 8.3 or 9.0 may send the token of an event of its own, which no client gets, as the
    # position of an answer without changes (SERVER-135376).
    code = code_of(error)
    return code == TOKEN_NOT_FOUND or (
        code == INVALIDATED_TOKEN and "does not include a UUID" in _text(error)
    )


def is_too_large(error: BaseException) -> bool:
    """Return True if a stream has met an event that is too large for an answer."""
    found = _SIZE.search(_text(error))
    return code_of(error) == EVENT_TOO_LARGE and (found is None or 0 < int(found[1]) <= _MOST_OBJECT)


def classify(error: Exception) -> Fault:
    """Classify a failure. This function never raises an exception, even if the failure is unknown."""
    # `vendor_retried` is always set, because PyMongo itself retries a read once and resumes a change stream
    # once. If the library also retried, the retries would multiply.
    try:
        found = _classified(error)
    except Exception:  # noqa: BLE001 - an exception whose own attributes raise is also a failure to report
        found = Fault(_PERMANENT, f"{type(error).__name__}; {DEFECT}", confidential=True)
    return attrs.evolve(found, vendor_retried=True)


def _classified(error: Exception) -> Fault:
    labels = frozenset[str]()
    if isinstance(error, PyMongoError):
        labels = frozenset(label for label in (_OVERLOADED, _RESUMABLE) if error.has_error_label(label))
    code = code_of(error)
    # The label is used only in a server's answer, because PyMongo also adds it to failed connections.
    if code is not None and _OVERLOADED in labels:
        return attrs.evolve(_said(THROTTLED, error, code), retry_after=_backoff(error))
    if isinstance(error, OperationFailure):
        return _said(_row(error, code, labels), error, code)
    return _of_driver(error, code) or attrs.evolve(
        unexpected(error), code=None if code is None else str(code)
    )


def _of_driver(error: Exception, code: int | None) -> Fault | None:
    """Return the fault for a failure of a connection, for incorrect use, and for unreadable data."""
    match error:
        case ServerSelectionTimeoutError():
            return _plain(
                _TRANSIENT,
                f"no server answers ({_brief(error)}); check the hosts, the network, TLS and replicaSet "
                "of the connection",
                code,
                retryable=True,
            )
        case WaitQueueTimeoutError():
            return _plain(
                _TRANSIENT,
                "no connection of the pool became free in time; raise maxPoolSize or waitQueueTimeoutMS",
                code,
                retryable=True,
            )
        case ConnectionFailure() | ProtocolError() | OSError():
            refused = row_of_connection(error)
            return _said(UNAVAILABLE, error, code) if refused is None else refused.fault(_brief(error))
        case ConfigurationError():
            return _configuration(error)
        case InvalidBSON():
            return _plain(
                ErrorCategory.PROVIDER_ERROR, f"an event cannot be decoded ({one_line(str(error))})", code
            )
        case DocumentTooLarge():
            return Fault(
                _INVALID,
                "a document or the command is larger than the server accepts; send less data in one command",
                confidential=True,
            )
        case BSONError() | UnicodeEncodeError():
            return _NO_BSON
        case OverflowError() if "8-byte" in str(error):
            return _NO_BSON
        case InvalidName():
            return _plain(_INVALID, f"{one_line(str(error))}; check the names of the address")
        case InvalidOperation() if "resume token" in str(error):
            return _said(NO_TOKEN, error, code)
        case InvalidOperation():
            return _plain(_INVALID, f"{one_line(str(error))}; open a new client or stream")
        case EncryptionError():
            return Fault(
                _PERMANENT,
                "a field cannot be encrypted or decrypted; check auto_encryption_opts and the key vault",
                confidential=True,
            )
        case _:
            return None


def _row(error: OperationFailure, code: int | None, labels: frozenset[str]) -> MongoRule:
    text = _text(error)
    row = CODES.get(code) if code is not None else None
    if code == NOT_AUTHORIZED and "requires authentication" in text:
        way_out = "the server knows no user of this connection; put a user into the connection, or connect "
        return attrs.evolve(AUTHENTICATION, way_out=way_out + "again if the user was dropped after the login")
    if row is not None and code == NOT_AUTHORIZED and (denied := _DENIED.match(text)):
        database, command = denied.groups()
        return attrs.evolve(row, way_out=f"{command} on database {database!r}: {row.way_out}")
    if code in _REFUSING and _STREAMS.search(text):
        return _NO_STREAMS
    if code == _SPLIT_HORIZON:
        return BAD_COMMAND if "support" in text else UNAVAILABLE
    if code == OVERTAKEN and "modifyChangeStreams" in text:
        # The answer of Amazon DocumentDB, whose change streams are off at first.
        way_out = f"change streams are not enabled on this server, which is no MongoDB; see {_PAGE}"
        return attrs.evolve(
            BAD_COMMAND, category=_UNSUPPORTED, way_out=way_out, reason=ErrorReason.NOT_OFFERED
        )
    # Atlas' one code for all that it refuses itself: logins, actions, and what a tier does not allow.
    if code == _ATLAS and "bad auth" in text:
        return AUTHENTICATION
    if code == _ATLAS and ("not allowed to do action" in text or "not authorized" in text):
        return _AUTHORIZATION
    if code == _USER_NOT_FOUND and "$external" in text:
        # The login with a certificate. A command about users has the same code.
        return AUTHENTICATION
    if code == IMAGE_MISSING and not lacks_image(error):
        row = UNKNOWN
    if _details(error).get("codeName") == "ShardRemovedError":
        return _SHARD_REMOVED
    if code == EVENT_TOO_LARGE and not is_too_large(error):
        return _DAMAGED
    if code == TOKEN_NOT_FOUND and "_id field" in text:
        return NO_TOKEN
    if code == _UNKNOWN_ERROR and "document_value" in text:
        # The error message of MongoDB 6.0 if a stream is resumed with a pipeline that removes `_id`.
        return NO_TOKEN
    may_be_token = code is not None and (code in _TOKEN_CODES or code >= FIRST_LOCATION)
    if may_be_token and any(words in text for words in _TOKEN_WORDS):
        return BAD_TOKEN
    if row is None and isinstance(error, ExecutionTimeout):
        row = OUT_OF_TIME
    if row is None and _RESUMABLE in labels:
        row = UNAVAILABLE
    if row is None:
        row = BAD_COMMAND if code is not None and code >= FIRST_LOCATION else UNKNOWN
    if row.quoted and not row.retryable and _AT_WORK.search(text):
        message = f"the pipeline or the command fails on a document; {REPORT}"
        return MongoRule(row.category, message, confidential=True)
    return row


def _configuration(error: ConfigurationError) -> Fault:
    # For most of these errors, PyMongo's message can quote the connection string, including the password.
    cause = error.__cause__
    if cause is not None and type(cause).__module__.startswith("dns."):
        if type(cause).__name__ in ("NXDOMAIN", "NoAnswer"):
            message = "DNS has no SRV record for the host of this mongodb+srv:// connection; check its name"
            return Fault(_INVALID, message, confidential=True)
        message = "DNS does not name the hosts of this mongodb+srv:// connection; try again"
        return Fault(_TRANSIENT, message, retryable=True, confidential=True)
    if "wire version" in str(error):
        return Fault(
            _UNSUPPORTED,
            "the server is too old or too new for this PyMongo; use MongoDB 4.4 or later, and a PyMongo that "
            "supports its version",
            reason=ErrorReason.NOT_OFFERED,
        )
    return Fault(
        _INVALID,
        "PyMongo does not accept the settings of the connection; check the options of the connection, and "
        "check that the server supports them",
        confidential=True,
    )


def _said(row: MongoRule, error: Exception, code: int | None) -> Fault:
    name = _details(error).get("codeName")
    words = "MongoDB"
    if code is not None:
        words += f" {code}" + (f" {one_line(name)}" if isinstance(name, str) and name else "")
    text = one_line(_text(error)) if row.quoted else ""
    said = f"{words} ({text})" if text else words
    return Fault(
        row.category,
        f"{said}: {row.way_out}",
        None if code is None else str(code),
        retryable=row.retryable,
        confidential=row.confidential or _PLANNED.search(_whole_text(error)) is not None,
        reason=row.reason,
    )


def _plain(
    category: ErrorCategory, message: str, code: int | None = None, *, retryable: bool = False
) -> Fault:
    return Fault(category, message, None if code is None else str(code), retryable=retryable)


def _details(error: BaseException) -> Mapping[str, Any]:
    """Return the server's reply, if there was one."""
    details = getattr(error, "details", None)
    return details if isinstance(details, Mapping) else {}


def _backoff(error: BaseException) -> float | None:
    """Return the number of seconds that the server asked the client to wait."""
    asked = _details(error).get("baseBackoffMS")
    return max(0.0, asked / 1000) if isinstance(asked, int | float) else None


def _text(error: BaseException) -> str:
    """Return the server's message, without the rest of the reply, and without the query."""
    return _PLANNED.sub("", _whole_text(error))


def _whole_text(error: BaseException) -> str:
    text = _details(error).get("errmsg")
    return text if isinstance(text, str) else str(error)


def _brief(error: Exception) -> str:
    """Return PyMongo's message about the servers, without its list of all servers."""
    text = re.sub(r", Timeout: [\d.]+s, Topology Description.*", "", str(error), flags=re.DOTALL)
    return one_line(re.sub(r" \(configured timeouts: [^)]*\)", "", text))
