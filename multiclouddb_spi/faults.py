"""Defines faults, which a provider makes from a vendor's errors, and the rows of a provider's error table.

The module `errors` turns a fault into the error that the user sees.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from traceback import walk_tb
from typing import Final

import attrs
from attrs import frozen

from multiclouddb_api import ErrorCategory, ErrorReason
from multiclouddb_api.errors import DOCS_URL
from multiclouddb_spi.cursor import Cursor

AFTER_AN_OUTAGE: Final = f"{DOCS_URL}reference/after-an-outage/"
"""The page that compares the ways to continue after changes were lost."""

START_AGAIN: Final = (
    "start again with on_expired=Resnapshot(), which delivers every row and repairs what you have written; "
    "on_expired=SkipToOldest(), and a new start at the beginning or now, never deliver the lost changes: "
    f"deleted rows stay, changed rows stay old and new rows are missing; see {AFTER_AN_OUTAGE}"
)
"""The advice for `CHECKPOINT_EXPIRED`."""

START_ANEW: Final = (
    f"start again at Snapshot(), which also repairs what you have written; see {AFTER_AN_OUTAGE}"
)
"""The advice for a resource that was replaced by another one, because the changes of the old one are gone."""


@frozen
class Fault:
    """A classified failure.

    Attributes:
        category: The kind of the failure, which decides whether the engine retries.
        message: One line for the user: what is wrong, and how to fix it. It must not contain a secret.
        code: The vendor's own error code as text, or None.
        retryable: True if the same call may succeed later without a change. `THROTTLED` and
            `TRANSIENT_FAILURE` are usually retryable.
        retry_after: The number of seconds that the service asked to wait, or None.
        vendor_retried: True if the vendor's client has already retried this call; the engine then does not
            retry it again.
        confidential: True if the vendor's text may quote a secret; the user's error then does not show that
            text.
        unknown_host: True if the host of the service has no address. Before a client has opened its first
            feed, this is treated as a mistake in the connection, and is not retried.
        renewable: True if the service refuses the credentials, but may accept newer ones of the same
            identity. If the provider can renew them (`SupportsRenewal`), the call is made once more.
        reason: Why the call has failed, within the category; None if nothing more is known. us8 expects one
            of `CHECKPOINT_EXPIRED` and `UNSUPPORTED_CAPABILITY`.
    """

    category: ErrorCategory
    message: str
    code: str | None = None
    retryable: bool = False
    retry_after: float | None = None
    vendor_retried: bool = False
    confidential: bool = False
    unknown_host: bool = False
    renewable: bool = False
    reason: ErrorReason | None = None


class ProviderFault(Exception):  # noqa: N818
    """Raised by a provider for problems that it finds, and for errors whose meaning depends on the call.

    The engine uses the fault as it is, without `Provider.classify`. If a vendor's exception caused it, raise
    it `from` that exception, whose class `ErrorDetail` contains.

    Args:
        fault: The classified failure.
    """

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)

    @classmethod
    def of(
        cls,
        category: ErrorCategory,
        message: str,
        code: str | None = None,
        *,
        retryable: bool = False,
        vendor_retried: bool = False,
        reason: ErrorReason | None = None,
    ) -> ProviderFault:
        """Make an exception whose fault has these fields.

        Args:
            category: The kind of the failure.
            message: One line for the user: what is wrong, and how to fix it. It must not contain a secret.
            code: The vendor's own error code as text, or None.
            retryable: True if the same call may succeed later without a change.
            vendor_retried: True if the engine must not retry the call.
            reason: As in `Fault`.
        """
        fault = Fault(
            category, message, code, retryable=retryable, vendor_retried=vendor_retried, reason=reason
        )
        return cls(fault)

    @property
    def fault(self) -> Fault:
        """The classified failure."""
        fault = self.args[0]
        assert isinstance(fault, Fault)
        return fault

    def __str__(self) -> str:
        return self.fault.message


class RecordFault(Exception):  # noqa: N818
    """Raised for one record that cannot be decoded or is too large (a poison record).

    `Batch.events` and `Batch.arrow` raise it with the record's index, and `Reader.fetch` raises it with index
    0 if the vendor's client cannot skip the record.
    """

    def __init__(
        self, index: int, position: str, reason: str, skip_cursor: Cursor, code: str | None = None
    ) -> None:
        super().__init__(index, position, reason, skip_cursor, code)

    @property
    def index(self) -> int:
        """The index of the record in the batch."""
        return int(self.args[0])

    @property
    def position(self) -> str:
        """The position of the record, as readable text."""
        return str(self.args[1])

    @property
    def reason(self) -> str:
        """The reason why the record cannot be delivered, without any content of the record."""
        return str(self.args[2])

    @property
    def skip_cursor(self) -> Cursor:
        """The position after the record."""
        cursor: Cursor = self.args[3]
        return cursor

    @property
    def code(self) -> str | None:
        """The vendor's own error code as text, or None."""
        code: str | None = self.args[4]
        return code

    def __str__(self) -> str:
        return f"record at {self.position}: {self.reason}"


def expired(what: str, reason: ErrorReason = ErrorReason.AGED_OUT) -> ProviderFault:
    """Make the fault for a position whose changes the service no longer keeps.

    Args:
        what: What is lost and why, as a sentence.
        reason: Why it is lost.
    """
    return ProviderFault.of(ErrorCategory.CHECKPOINT_EXPIRED, f"{what}; {START_AGAIN}", reason=reason)


def undecided(public_id: str) -> ProviderFault:
    """Make the error for a refused position, as long as the service does not list all that it keeps."""
    message = (
        f"the service has refused the position in {public_id}, and has not yet said which changes it still "
        "keeps; try again"
    )
    return ProviderFault.of(ErrorCategory.TRANSIENT_FAILURE, message, retryable=True)


def cancelled() -> ProviderFault:
    """Make the fault for a fetch whose reader was cancelled."""
    return ProviderFault.of(
        ErrorCategory.TRANSIENT_FAILURE, "the read was cancelled; try again", retryable=True
    )


def no_partition_named() -> ProviderFault:
    """Make the fault for a service that names no partition, although the feed has not ended."""
    return ProviderFault.of(
        ErrorCategory.TRANSIENT_FAILURE,
        "the service names no partition to read, and does not say that the feed has ended; read again from "
        "the same position",
        retryable=True,
    )


def unsupported(what: str, way_out: str, reason: ErrorReason = ErrorReason.NOT_PROVISIONED) -> ProviderFault:
    """Make the fault for a feature that this database, or this resource with its settings, does not offer.

    Args:
        what: A statement that the requested feature is not available.
        way_out: What the user can do instead.
        reason: Whether the resource lacks it, or the database.
    """
    return ProviderFault.of(ErrorCategory.UNSUPPORTED_CAPABILITY, f"{what}; {way_out}", reason=reason)


def unwritten(made: type, method: str, what: str) -> ProviderFault:
    """Make the fault for a provider that does not override a required method."""
    message = f"{made.__name__} does not say {what}; its provider has to implement `{method}`"
    return ProviderFault.of(ErrorCategory.PERMANENT_FAILURE, message)


REPORT: Final = "this is a defect; please report it with the text of this error"
"""The advice for an error that the user cannot avoid: report it."""

_RETRYABLE: Final = (ErrorCategory.THROTTLED, ErrorCategory.TRANSIENT_FAILURE)
_MOST_TEXT: Final = 300
# The words with which TLS libraries report a refusal. A connection that only ends early is not a refusal.
_TLS_REFUSED: Final = (
    "(?i:CERTIFICATE|UNKNOWN_CA|WRONG_VERSION_NUMBER|HANDSHAKE_FAILURE|PROTOCOL_VERSION|UNSUPPORTED_PROTOCOL"
    "|not in peer certificate)"
)
# The words with which systems report that a name has no address. `Errno -3` is a failure of DNS itself.
_NO_ADDRESS: Final = (
    r"\[Errno (?:-2|-5|8|11001)\] |Name or service not known|No address associated with hostname"
    r"|Domain name not found"
)


@frozen
class FaultRule:
    """The meaning of one of the service's error codes.

    Attributes:
        category: The kind of the failure.
        way_out: The library's advice for the user.
        confidential: True if the service's text may contain a secret; the text is then not shown in errors.
        retryable: True if the same call may succeed later; by default the category decides.
        unknown_host: True if the host of the service has no address; see `Fault`.
        renewable: True if newer credentials of the same identity may be accepted; see `Fault`.
        reason: Why the call has failed, within the category; see `Fault`.
    """

    category: ErrorCategory
    way_out: str
    confidential: bool = attrs.field(default=False, kw_only=True)
    retryable: bool = attrs.field(
        default=attrs.Factory(lambda row: row.category in _RETRYABLE, takes_self=True), kw_only=True
    )
    unknown_host: bool = attrs.field(default=False, kw_only=True)
    renewable: bool = attrs.field(default=False, kw_only=True)
    reason: ErrorReason | None = attrs.field(default=None, kw_only=True)

    def fault(
        self,
        said: str,
        code: str | None = None,
        *,
        retry_after: float | None = None,
        vendor_retried: bool = False,
    ) -> Fault:
        """Make a fault from this row and the service's text.

        Args:
            said: The error text of the service or its client, on one line and without a secret.
            code: The vendor's own error code.
            retry_after: The number of seconds that the service asked to wait.
            vendor_retried: True if the vendor's client itself retries failed calls.
        """
        return Fault(
            self.category,
            f"{without_data(said)}; {self.way_out}",
            code,
            self.retryable,
            retry_after,
            self.retryable and vendor_retried,
            self.confidential,
            self.unknown_host,
            self.renewable,
            self.reason,
        )


UNAVAILABLE: Final = FaultRule(
    ErrorCategory.TRANSIENT_FAILURE, "the service is not available at this moment; try again"
)
THROTTLED: Final = FaultRule(
    ErrorCategory.THROTTLED, "the service is overloaded; read with fewer processes, or later"
)
_TLS: Final = FaultRule(
    ErrorCategory.AUTHENTICATION_FAILED,
    "one side refuses the other's TLS certificate or version; check the certificates, the name of the host "
    "and the TLS options of the connection",
    reason=ErrorReason.TLS,
)
_UNKNOWN_HOST: Final = FaultRule(
    ErrorCategory.TRANSIENT_FAILURE,
    "this host has no address; check its name in the connection, and DNS",
    unknown_host=True,
    reason=ErrorReason.UNKNOWN_HOST,
)
_ADDRESS: Final = FaultRule(
    ErrorCategory.INVALID_REQUEST,
    "an address cannot be read, probably that of a proxy; check HTTPS_PROXY and HTTP_PROXY, and write the "
    "password in them with percent-encoding",
)
_UNREADABLE: Final = (
    # urllib3, and gRPC
    r"(?<=Failed to parse: )(?='|https?://)"
    r"|(?<=errors resolving )(?=.*Failed to parse port)"
    r"|(?<=resolution failed for )(?=[^\s\[/:]+:(?!\d+: )[^\s/])"  # a port that is no number
)
"""The place in a text where an address begins that cannot be read, which may have a part of a password."""


def row_of_connection(error: BaseException) -> FaultRule | None:
    """Return the row for a connection that cannot be made.

    TLS is refused, the host has no address, or the address of a proxy cannot be read.

    Return None for any other failure. The function examines the texts of the error and of its causes, because
    vendors' clients do not keep the system's own exceptions.
    """
    for text in _texts(error):
        if "ssl" in text.lower() and re.search(_TLS_REFUSED, text):
            return _TLS
        if re.search(_UNREADABLE, text):
            return _ADDRESS
        if re.search(_NO_ADDRESS, text):
            return _UNKNOWN_HOST
    return None


def _texts(error: BaseException) -> Iterator[str]:
    seen: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in seen:
        yield str(found)
        seen.append(found)
        found = found.__cause__ or found.__context__


def row_of_status(status: int) -> FaultRule | None:
    """Return the row for an HTTP status without an error code, for example from a proxy."""
    if status == 429:
        return THROTTLED
    return UNAVAILABLE if status >= 500 else None


# The words with which AWS refuses a signature because of its time: the time of the signature, the limit, and
# in brackets the service's own time.
_STALE: Final = re.compile(
    r"Signature (?:expired|not yet current): (\d{8}T\d{6}Z) is (?:now earlier|still later) than "
    r"(\d{8}T\d{6}Z)(?: \((\d{8}T\d{6}Z) [-+])?"
)


def row_of_clock(text: str) -> FaultRule | None:
    """Return the row for a signature that is too old or too new by the service's clock, or None."""
    found = _STALE.search(text)
    return None if found is None else clock_row(found[1], found[3] or found[2])


def clock_row(signed: str | None = None, told: str | None = None) -> FaultRule:
    """Make the row for a service that refuses a request because of this machine's clock.

    Each request is signed anew, so it succeeds as soon as the clock is right. It is also refused if the
    machine was suspended between the signature and the arrival.

    Args:
        signed: The time of the signature, as the service repeats it; None if it does not.
        told: The service's own time, if its answer has it.
    """
    times = [f"the request was signed at {_readable(signed)}"] if signed else []
    times += [f"the service's clock says {_readable(told)}"] if told else []
    which = f" ({', and '.join(times)})" if times else ""
    return FaultRule(
        ErrorCategory.AUTHENTICATION_FAILED,
        f"the clock of this machine differs from the service's{which}; set the clock, for example with NTP",
        confidential=True,
        retryable=True,
        reason=ErrorReason.CLOCK,
    )


def _readable(time: str) -> str:
    return re.sub(r"^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$", r"\1-\2-\3T\4:\5:\6Z", one_line(time))


def unexpected(error: BaseException) -> Fault:
    """Make the fault for an exception that is not in the provider's table.

    It is our defect unless another package has raised it.
    """
    said, package = one_line(f"{type(error).__name__}: {error}"), package_of(error)
    advice = REPORT if package is None else f"the package {package} has raised this; see its documentation"
    return Fault(ErrorCategory.PERMANENT_FAILURE, f"{said}; {advice}")


def package_of(error: BaseException) -> str | None:
    """Return the package of another author whose code has raised an error, or None if it may be ours.

    Code of the standard library counts as that of its caller.
    """
    for frame in reversed(list(walk_tb(error.__traceback__))):
        name = str(frame[0].f_globals.get("__name__", "")).partition(".")[0]
        if name and name not in sys.stdlib_module_names:
            return None if "multiclouddb" in name else name
    return None


def one_line(text: str) -> str:
    """Shorten a vendor's text for a message: one short line without data and control characters."""
    text = without_data(text)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_MOST_TEXT]


# The fields of vendors' texts that hold data or a secret. Each field ends its text, or stands in front of
# what only repeats the fields, so the text is cut there.
_DATA: Final = re.compile(
    # PostgreSQL's libpq: the server's fields after the message.
    r"\n\s*(?:DETAIL|CONTEXT|QUERY|STATEMENT|LINE \d+): "
    # deltalake and DataFusion: the rows that a constraint refuses, and values that cannot be cast.
    r"|Preview of invalid data|(?<=violated by value in row): "
    r"|(?<=an't cast value) |(?<=annot cast string) |(?<=annot cast value) "
    # Delta in Spark, and Spark's casts.
    r"|(?<=violated by row with values):|(?<=CAST_INVALID_INPUT\]) "
    # MongoDB: the keys of an index, the document that its validator refuses, and the first field of a
    # document that is too large, which in a change stream is a resume token.
    r"|(?<=dup key): |['\"]?(?:keyValue|errInfo)['\"]?: |(?<=First element): "
    rf"|{_UNREADABLE}"
)
# Parts of paths: the item of Cosmos DB, which urllib3 and the service quote, and the values by which a Delta
# table is partitioned. What follows a path is the reason.
_IN_PATH: Final = re.compile(r"(?<=/docs/)[^\s/,'\"]+|(?<==)[^\s/]+(?=/\S*part-\d)")
# PyMongo repeats the server's whole reply after its message.
_REPLY: Final = re.compile(r", full error: ")


def without_data(text: str) -> str:
    """Return a vendor's text without the fields that hold data: keys, documents and values.

    What is left of a text is the same for each row: what was refused, and by which rule. All texts of vendors
    that get into a message or into `ErrorDetail.native_text` pass through this function.
    """
    for pattern in (_REPLY, _DATA):
        if found := pattern.search(text):
            text = text[: found.start()].rstrip()
    return _IN_PATH.sub("…", text)


def holds_data(error: BaseException) -> bool:
    """Return whether the text of an error or of one of its causes has a field that holds data.

    Such an error must not be the cause of ours, because tracebacks print the texts of causes.
    """
    return any(_DATA.search(text) or _IN_PATH.search(text) for text in _texts(error))


def key_digest(key: str) -> str:
    """Return the name of a key in messages, which never contain the key itself.

    Args:
        key: The JSON text of the key, as a sink stores it.

    Returns:
        The beginning of its SHA-256, with which a user finds the row: `sha2(key, 256)` in Spark,
        `encode(sha256(convert_to(key, 'UTF8')), 'hex')` in PostgreSQL.
    """
    # A text with half of a surrogate pair has no UTF-8, and must not hide what the message is about.
    return f"sha256:{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()[:16]}"


_DIGEST: Final = re.compile(r"\bsha256:[0-9a-f]{16}\b")


def digest_in(position: str) -> str | None:
    """Return the `key_digest` in the position of a record, or None if the record's key is not known."""
    found = _DIGEST.search(position)
    return None if found is None else found[0]
