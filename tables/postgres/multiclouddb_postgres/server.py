"""Connects to PostgreSQL, runs transactions, and turns the server's errors into those of multiclouddb."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeAlias, TypeVar, cast

import psycopg
from psycopg import IsolationLevel
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from multiclouddb_api import ErrorCategory, ErrorDetail, ErrorReason, MulticloudDbError, invalid_request
from multiclouddb_api.config import SecretText, settled
from multiclouddb_api.validators import type_name
from multiclouddb_spi.connection import is_loopback, warn_of_plaintext
from multiclouddb_spi.faults import holds_data, one_line

Connection: TypeAlias = psycopg.Connection[Any]

LOG: Final = logging.getLogger("multiclouddb.postgres")
_T = TypeVar("_T")
_Dsn = TypeVar("_Dsn")
_URL: Final = re.compile(r"postgres(?:ql)?://(?:[^/?@]*@)?[^/?@]*")
_HOST: Final = re.compile(r"/[\w./-]*|[\w.-]*|[0-9A-Fa-f:.]*(?:%[\w.-]+)?")
_PORTS: Final = re.compile(r"[0-9,]*")
_DATABASE: Final = re.compile(r"[\w .-]*")
_TRIES: Final = 10
_FIRST_WAIT: Final = 0.02
_LONGEST_WAIT: Final = 2.0
REPEATED: Final = ("40001", "40P01")
"""The codes of a serialization failure and a deadlock: the transaction can be repeated."""
DATA: Final = ("22", "54")
"""The classes of errors in a value, or in its size."""
_CONSTRAINT: Final = "23"
"""The class of errors of a constraint, or of a trigger in its place."""
_Row: TypeAlias = tuple[ErrorCategory, bool, str]
_KINDS: Final[Mapping[str, _Row]] = {
    "40": (ErrorCategory.CONFLICT, True, "other transactions write the same rows; try again"),
    "55P03": (
        ErrorCategory.CONFLICT,
        True,
        "another transaction has locked the table, or a row of it; try again",
    ),
    "55006": (
        ErrorCategory.INVALID_REQUEST,
        False,
        "close the cursor of this connection that reads the table, or pass another connection",
    ),
    **dict.fromkeys(
        DATA,
        (
            ErrorCategory.INVALID_REQUEST,
            False,
            "change the value, or leave the column out; if an index, a generated column, a constraint or a "
            "trigger of yours computes something with it, change or drop that",
        ),
    ),
    "54000": (
        ErrorCategory.INVALID_REQUEST,
        False,
        "if an index of yours has no room for a value, drop the index, or index a hash of the value; else "
        "change the value, or leave the column out",
    ),
    "23514": (
        ErrorCategory.INVALID_REQUEST,
        False,
        "drop the constraint that refuses the row, or add the partition that the row needs",
    ),
    "23505": (
        ErrorCategory.INVALID_REQUEST,
        False,
        "a batch may move a value from one row to another, and the server checks each row as it is written: "
        "drop the constraint, or make it DEFERRABLE INITIALLY DEFERRED, so that it is checked at the commit; "
        "with NULLS NOT DISTINCT it takes deleted rows for one, whose columns are null: leave that out",
    ),
    _CONSTRAINT: (
        ErrorCategory.INVALID_REQUEST,
        False,
        "drop the constraint or the trigger that refuses the row",
    ),
    "25006": (
        ErrorCategory.PERMANENT_FAILURE,
        False,
        "it is a standby, or default_transaction_read_only is set; connect to the primary, for example with "
        "target_session_attrs=read-write",
    ),
    "25P": (ErrorCategory.TRANSIENT_FAILURE, True, "raise the time limit of transactions, and try again"),
    "42501": (
        ErrorCategory.AUTHORIZATION_FAILED,
        False,
        "the user needs TEMPORARY on the database, SELECT, INSERT and UPDATE on the table, "
        "multiclouddb_marks and multiclouddb_checkpoints, and CREATE on the schema if one of them does not "
        "exist; new columns need the owner; a policy of row-level security has to let it write all rows",
    ),
    "42703": (ErrorCategory.CONFLICT, True, "the table was changed during the merge; try again"),
    "42P01": (ErrorCategory.CONFLICT, True, "the table was dropped during the merge; try again"),
    "28": (
        ErrorCategory.AUTHENTICATION_FAILED,
        False,
        "correct the user or the password, or let the server's pg_hba.conf admit this user from this host",
    ),
    "3D000": (ErrorCategory.NOT_FOUND, False, "correct the name of the database"),
    "3F000": (ErrorCategory.NOT_FOUND, False, "create the schema, or correct its name"),
    "53100": (ErrorCategory.PERMANENT_FAILURE, False, "make room on the server's disk, and merge again"),
    "53": (ErrorCategory.TRANSIENT_FAILURE, True, "the server has no resources left; try again later"),
    "57014": (ErrorCategory.TRANSIENT_FAILURE, True, "raise statement_timeout, or try again"),
    "57": (ErrorCategory.TRANSIENT_FAILURE, True, "the server stops or restarts; try again"),
    "58": (ErrorCategory.PERMANENT_FAILURE, False, "look into the server's log"),
    "08P01": (
        ErrorCategory.INVALID_REQUEST,
        False,
        "a pooler such as pgbouncer does not pass it on: leave it out of the connection string",
    ),
    "08": (ErrorCategory.TRANSIENT_FAILURE, True, "the connection was lost; try again"),
}
# pgbouncer has one code for all that it refuses: a wait that was too long, a server that does not answer.
_POOLER: Final[_Row] = (
    ErrorCategory.TRANSIENT_FAILURE,
    True,
    "the server, or a pooler before it, ends the connection for this reason; try again",
)
_OF_USER: Final[_Row] = (
    ErrorCategory.INVALID_REQUEST,
    False,
    "a function, probably of a trigger on the table, names what does not exist; correct it, or drop the "
    "trigger",
)
# A standby has one code for this and for a serialization failure; its text depends on lc_messages.
_INTERRUPTED: Final = re.compile("Process(RecoveryConflict)?Interrupts?")
_STANDBY: Final[_Row] = (
    ErrorCategory.TRANSIENT_FAILURE,
    True,
    "a standby ends a read when the primary removes old rows that the read may still see: set "
    "hot_standby_feedback = on there, or raise max_standby_streaming_delay, or read from the primary",
)
_LOST: Final[_Row] = (ErrorCategory.TRANSIENT_FAILURE, True, "the server cannot be reached; try again")
_OTHER: Final[_Row] = (ErrorCategory.PERMANENT_FAILURE, False, "look into the server's log")
_OPTION: Final[_Row] = (
    ErrorCategory.INVALID_REQUEST,
    False,
    "correct the option in the connection string or in the environment (PGSSLMODE and the like); in a URL, "
    "options come after the ?, and the name of a checkpoint before the ?",
)
DURABLE: Final = """
SELECT set_config('synchronous_commit', 'local', true) WHERE current_setting('synchronous_commit') = 'off'
"""
"""Lets the commit of a transaction return when its rows are on the disk of the server."""
_QUOTED: Final = re.compile(r'".*"|".*$')
_BAD_OPTION: Final = re.compile(
    r'connection is bad: (invalid "?\w+"? value|invalid port number|weak sslmode)'
    r'|bad value for connect_timeout|root certificate file ".*" does not exist'
    r"|server does not support SSL, but SSL was required"
    r"|unrecognized configuration parameter|invalid value for parameter"
    r'|parameter ".*" (cannot be changed|requires a)|permission denied to set parameter'
)
"""What libpq, psycopg and the server say of an option with an unknown value, or one that cannot be fulfilled.

The server refuses a connection for each setting in `options` that it does not know or take.
"""
# libpq gives no code for a refused connection; the server's text is English unless its lc_messages differ.
_REFUSED: Final[Mapping[str, re.Pattern[str]]] = {
    "28": re.compile(
        r'authentication failed|no password supplied|no pg_hba\.conf entry|role ".*" (does not exist|is not)'
    ),
    "3D000": re.compile(r'database ".*" does not exist'),
    "08P01": re.compile("unsupported startup parameter"),
}


def where(dsn: str | Connection, table: str) -> str:
    """Return the name of a table in messages: host, port and database, never another part of the string."""
    if isinstance(dsn, str):
        host, port, database = settled(_shown, dsn)
    elif dsn.closed:
        raise invalid_request("dsn", "is a closed connection", "pass an open one, or a connection string")
    else:
        host, port, database = dsn.info.host, str(dsn.info.port), dsn.info.dbname
    place = f"{host}:{port}" if port else host
    return f"postgres:{place}/{database}#{table}"


def secret_dsn(dsn: _Dsn) -> _Dsn:
    """Return a connection string as a text that nothing shows; anything else stays as it is.

    What takes a connection string calls this first, so that no frame of ours has the bare text.
    """
    return cast("_Dsn", SecretText(dsn)) if isinstance(dsn, str) else dsn


def check_dsn(dsn: object) -> None:
    """Refuse a value that is neither a connection string nor a connection."""
    if isinstance(dsn, str):
        settled(_shown, dsn)
    elif not isinstance(dsn, psycopg.Connection):
        raise invalid_request(
            "dsn",
            f"must be a connection string or a psycopg.Connection, not {type_name(dsn)}",
            "pass for example postgresql://user@host/database",
        )


def has_password(dsn: str) -> bool:
    """Return whether a connection string has a password in it."""
    return settled(_parsed, dsn).get("password") is not None


def _parsed(dsn: str) -> Mapping[str, Any]:
    """Return the parts of a connection string; call it through `settled`, because its frame shows them."""
    parts: Mapping[str, Any] | None = None
    with suppress(psycopg.ProgrammingError, UnicodeEncodeError):
        parts = None if "\0" in dsn else conninfo_to_dict(dsn)
    if parts is None:
        # libpq quotes a part of the text, which may be the password: its error is not even a context of ours.
        raise _no_dsn("is not a connection string of PostgreSQL")
    # In a URL, libpq takes what follows a / or ? in a password for a port, a database or options, and what
    # follows an @ for a host.
    url = _URL.match(dsn)
    hosts = [*str(parts.get("host") or "").split(","), *str(parts.get("hostaddr") or "").split(",")]
    if not all(map(_HOST.fullmatch, hosts)):
        raise _no_dsn("has a host with unusual characters")
    if not _PORTS.fullmatch(str(parts.get("port") or "")):
        raise _no_dsn("has a port that is no number")
    if url is not None and "@" in dsn[url.end() :]:
        raise _no_dsn("has an @ after the host")
    return parts


def _no_dsn(problem: str) -> MulticloudDbError:
    return invalid_request(
        "dsn",
        problem,
        "percent-encode the password if it has special characters (%40 for @, %2F for /), or leave it to "
        "PGPASSWORD or ~/.pgpass; pass for example postgresql://user@host/database",
    )


def _shown(dsn: str) -> tuple[str, str, str]:
    """Return host, port and database of a connection string."""
    parts = _parsed(dsn)
    host, port, database = (str(parts.get(name) or "") for name in ("host", "port", "dbname"))
    # A database may be given as another connection string.
    return host, port, database if _DATABASE.fullmatch(database) else "…"


def connected(dsn: str) -> Connection:
    """Open a connection; each transaction is one of its own, unless the caller begins one."""
    # No prepared statements, no settings of the session: pgbouncer may give each transaction another one.
    # What a merge has locked, it must see as the last transaction has left it, whatever the default is.
    connection = _connection(dsn)
    if isinstance(connection, psycopg.Error):
        raise connection
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    _warn_of_plaintext(connection)
    return connection


def _warn_of_plaintext(connection: Connection) -> None:
    """Warn if the server was given a password over a connection without TLS, by what libpq has done."""
    made, info = connection.pgconn, connection.info
    # A host that begins with / or @ is a Unix socket; its address is empty.
    address = info.hostaddr or info.host
    is_readable = made.used_password and not made.ssl_in_use
    if is_readable and not address.startswith(("/", "@")) and not is_loopback(address):
        warn_of_plaintext(
            LOG, f"postgres:{info.host}:{info.port}", "add sslmode=verify-full to the connection string"
        )


def _connection(dsn: str) -> Connection | psycopg.Error:
    """Open a connection, or return the error without its frames, which have the password."""
    try:
        # A server without an encoding (SQL_ASCII) keeps bytes as they are. A pooler passes this setting on.
        return psycopg.connect(dsn, autocommit=True, prepare_threshold=None, client_encoding="UTF8")
    except psycopg.Error as error:
        linked: BaseException | None = error
        while linked is not None:
            linked.__traceback__ = None
            linked = linked.__cause__ or linked.__context__
        return error


@contextmanager
def transaction(dsn: str | Connection, place: str, *, reads: bool = False) -> Iterator[Connection]:
    """Open a connection for one transaction; a given connection's own transaction goes on around it.

    With `reads`, nothing is written, and the caller may set the level of isolation first.
    """
    with errors(place):
        if isinstance(dsn, str):
            with connected(dsn) as connection, connection.transaction():
                # A position that is stored elsewhere must not be ahead of rows that a crash takes back.
                if not reads:
                    connection.execute(DURABLE)
                yield connection
        else:
            if dsn.info.encoding == "ascii":
                # psycopg then returns bytes in place of text.
                raise invalid_request(
                    "dsn",
                    "is a connection with client_encoding SQL_ASCII, which does not say what a text is",
                    "run SET client_encoding = 'UTF8' on it, or pass a connection string",
                )
            _check_free(dsn)
            with _with_our_cursors(dsn), dsn.transaction():
                yield dsn


def _check_free(connection: Connection) -> None:
    """Refuse a connection of the caller on which nothing can be run now, also by another try."""
    status = connection.info.transaction_status
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        problem = "is a connection in pipeline mode, in which there is no COPY"
        raise invalid_request("dsn", problem, "leave the block of connection.pipeline() first")
    if status == TransactionStatus.INERROR:
        problem = "is a connection whose transaction has failed before"
        raise invalid_request("dsn", problem, "roll the transaction back, and do its work again")
    if status == TransactionStatus.ACTIVE:
        problem = "is a connection with a statement that has not ended, such as COPY"
        raise invalid_request("dsn", problem, "end it first, or pass another connection")


@contextmanager
def _with_our_cursors(connection: Connection) -> Iterator[None]:
    """Let a connection of the caller return tuples, and read our placeholders, as long as we use it."""
    before = connection.row_factory, connection.cursor_factory, connection.server_cursor_factory
    connection.row_factory = tuple_row
    connection.cursor_factory, connection.server_cursor_factory = psycopg.Cursor, psycopg.ServerCursor
    try:
        yield
    finally:
        connection.row_factory, connection.cursor_factory, connection.server_cursor_factory = before


def repeated(dsn: str | Connection, place: str, work: Callable[[Connection], _T]) -> _T:
    """Run a transaction, and run it again after a deadlock or a serialization failure.

    Inside a transaction of the caller nothing is run again, because the server has aborted it.
    """
    wait, tries = _FIRST_WAIT, _TRIES
    if not isinstance(dsn, str) and dsn.info.transaction_status != TransactionStatus.IDLE:
        tries = 1
    while True:
        tries -= 1
        try:
            with transaction(dsn, place) as connection:
                return work(connection)
        except MulticloudDbError as error:
            if error.detail.native_code not in REPEATED or not tries:
                raise
        time.sleep(random.uniform(0, wait))
        wait = min(2 * wait, _LONGEST_WAIT)


def has_ours(connection: Connection, table: str) -> bool:
    """Return whether a table of marks or checkpoints exists; refuse one that may hide rows from this user.

    Without a mark that it does not see, a sink would take a table for a new one.

    Args:
        connection: The connection.
        table: The name of the table, as SQL.
    """
    [(found, hides)] = connection.execute(
        "SELECT to_regclass(%s) IS NOT NULL, row_security_active(to_regclass(%s))", (table, table)
    ).fetchall()
    if hides:
        raise invalid_request(
            "table",
            f"{table} has row-level security, which may hide rows from this user",
            "let its owner run ALTER TABLE … DISABLE ROW LEVEL SECURITY, or let the user bypass it (ALTER "
            "ROLE … BYPASSRLS)",
        )
    return bool(found)


@contextmanager
def errors(place: str) -> Iterator[None]:
    """Turn each error of psycopg into one with a way out."""
    try:
        yield
    except psycopg.Error as error:
        raise _told(place, error) from (None if _quotes(error) else error)


def _quotes(error: psycopg.Error) -> bool:
    """Return whether the whole text of an error may quote a row or a value."""
    return (error.sqlstate or "").startswith("22") or _is_of_user(error) or holds_data(error)


def _is_of_user(error: psycopg.Error) -> bool:
    """Return whether a function of a user, such as a trigger, has written the text of an error."""
    return error.diag.source_function == "exec_stmt_raise" or (error.sqlstate or "").startswith("P0")


def said_by(error: psycopg.Error) -> str:
    """Return the message of the server or of libpq, on one line and without data."""
    # The detail and the context of a server's error may quote a row; its primary message does not. A message
    # about a value quotes the value; other messages only quote names. A function of a user, such as a
    # trigger, may say anything.
    if _is_of_user(error):
        return "a trigger or a function refuses it, and only the server's log has its text"
    text = one_line(error.diag.message_primary or ("" if error.sqlstate else str(error)))
    return _QUOTED.sub('"…"', text) if (error.sqlstate or "").startswith("22") else text


def _told(place: str, error: psycopg.Error) -> MulticloudDbError:
    code, text = error.sqlstate, said_by(error)
    if code is None:
        code = next((code for code, pattern in _REFUSED.items() if pattern.search(str(error))), None)
    if code is None and _BAD_OPTION.search(str(error)):
        row = _OPTION
    elif code is None:
        row = _LOST if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) else _OTHER
    else:
        row = next((_KINDS[code[:n]] for n in (5, 3, 2) if code[:n] in _KINDS), _OTHER)
    if code == "08P01" and not _REFUSED["08P01"].search(str(error)):
        row = _POOLER
    if (code or "").startswith("40") and _INTERRUPTED.fullmatch(error.diag.source_function or ""):
        row = _STANDBY
    if code in ("42703", "42P01") and "function" in (error.diag.context or ""):
        row = _OF_USER
    category, retryable, way_out = row
    reason = ErrorReason.OTHER_WRITER if category is ErrorCategory.CONFLICT else None
    if code is not None and code[:2] in (*DATA, _CONSTRAINT):
        reason = ErrorReason.MISFIT
    # A hint has only what the server knows about its own statement; one of a trigger may say anything.
    if error.diag.message_hint and not _quotes(error):
        way_out = f"{one_line(error.diag.message_hint).rstrip('.')}; {way_out}"
    return MulticloudDbError(
        f"table: {place}: {text or 'the statement failed'}; {way_out}",
        ErrorDetail(
            category,
            retryable=retryable,
            native_class=f"{type(error).__module__}.{type(error).__name__}",
            native_code=code,
            native_text=text,
            reason=reason,
        ),
    )
