"""Finds the change stream that watches a table, and checks its options."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from multiclouddb_api import (
    ErrorCategory,
    NewItemStateMode,
    OldItemStateMode,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_spanner.client import CancelScope, DatabaseClient
from multiclouddb_spanner.config import STREAM_NAME
from multiclouddb_spi import FeedSpec, ProviderFault, unsupported

_WHOLE_ROWS: Final = "(value_capture_type = 'NEW_ROW_AND_OLD_VALUES')"
_UNQUOTED: Final = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)


def quoted(name: str, *, postgres: bool) -> str:
    """Return a name in the form for a statement."""
    if not postgres:
        return name
    return ".".join(part if _UNQUOTED.fullmatch(part) else f'"{part}"' for part in name.split("."))


def how_to_create(table: str, *, postgres: bool) -> str:
    """Return the statement that creates a change stream of a table."""
    stream = quoted(f"{table.rpartition('.')[2]}_stream", postgres=postgres)
    word = "WITH" if postgres else "OPTIONS"
    return f"CREATE CHANGE STREAM {stream} FOR {quoted(table, postgres=postgres)} {word} {_WHOLE_ROWS}"


def how_to_alter(stream: str, *, postgres: bool) -> str:
    """Return the statement that makes a change stream record whole rows."""
    word = "SET" if postgres else "SET OPTIONS"
    return f"ALTER CHANGE STREAM {quoted(stream, postgres=postgres)} {word} {_WHOLE_ROWS}"


def how_to_watch(stream: str, table: str, *, postgres: bool) -> str:
    """Return the statement that makes a change stream watch all columns of a table."""
    return (
        f"ALTER CHANGE STREAM {quoted(stream, postgres=postgres)} SET FOR {quoted(table, postgres=postgres)}"
    )


_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DAY: Final = 86400
_DEFAULT_CAPTURE: Final = "OLD_AND_NEW_VALUES"
_WITH_ROW: Final = ("NEW_ROW", "NEW_ROW_AND_OLD_VALUES")
# The last option allows a writer to exclude a transaction from the stream.
_EXCLUDES: Final = (
    "exclude_insert",
    "exclude_update",
    "exclude_delete",
    "exclude_ttl_deletes",
    "allow_txn_exclusion",
)
_PUBLIC: Final = "public"
_DEFAULT_SCHEMAS: Final = ("", _PUBLIC)
_SYSTEM_SCHEMAS: Final = ("information_schema", "pg_catalog", "spanner_sys")

_Row: TypeAlias = Sequence[Any]


@attrs.frozen
class ChangeStreamInfo:
    """A table and the change stream that watches it."""

    stream: str
    table: str
    key_names: tuple[str, ...]
    postgres: bool
    whole: bool  # True if the stream watches all columns
    capture: str
    retention: int  # in seconds


def find(
    client: DatabaseClient, address: ResourceAddress, configured: str | None, scope: CancelScope
) -> ChangeStreamInfo:
    """Find the table of an address and its change stream."""
    table = str(address.collection)
    schema, _, name = table.rpartition(".")
    postgres = _is_postgres(client, scope)
    if postgres and schema == _PUBLIC:
        table, schema = name, ""  # records name a table in the default schema without its schema
    key_names = _key_names(client, schema, name, scope, postgres=postgres)
    if not key_names:
        raise ProviderFault.of(
            ErrorCategory.NOT_FOUND,
            f"there is no table {address.collection!r} in database {address.database!r}; check its name, "
            "also upper and lower case",
        )
    watching = _watching(client, schema, name, scope, postgres=postgres)
    options = _options(client, scope)
    stream = _chosen(table, watching, options, configured, postgres=postgres)
    settings = options.get(stream, {})
    if settings.get("partition_mode", "").upper() == "MUTABLE_KEY_RANGE":
        raise unsupported(
            f"change stream {stream!r} has partition_mode = 'MUTABLE_KEY_RANGE', which is not supported",
            "create a change stream without that option, and name it in the configuration (change_stream)",
        )
    return ChangeStreamInfo(
        stream,
        table,
        key_names,
        postgres,
        watching[stream],
        settings.get("value_capture_type", _DEFAULT_CAPTURE).upper(),
        _retention(settings.get("retention_period", "")),
    )


def table_names(client: DatabaseClient, scope: CancelScope) -> list[str]:
    """Return the names of the tables in a database."""
    rows = client.rows(
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE'",
        2,
        scope,
    )
    return [
        name if schema in _DEFAULT_SCHEMAS else f"{schema}.{name}"
        for schema, name in rows
        if schema.lower() not in _SYSTEM_SCHEMAS
    ]


def is_whole(
    client: DatabaseClient, info: ChangeStreamInfo, scope: CancelScope, at: int | None = None
) -> bool | None:
    """Return whether a stream watches all columns of a table; None if it does not watch the table."""
    schema, _, name = info.table.rpartition(".")
    watching = _watching(client, schema, name, scope, postgres=info.postgres, at=at)
    return watching.get(info.stream)


def retention_of(client: DatabaseClient, info: ChangeStreamInfo, scope: CancelScope) -> int:
    """Return the current retention of a change stream, in seconds."""
    return _retention(_options(client, scope).get(info.stream, {}).get("retention_period", ""))


def columns_at(client: DatabaseClient, info: ChangeStreamInfo, at: int, scope: CancelScope) -> list[str]:
    """Return the columns of a table that its changes contained at a given time."""
    schema, _, table = info.table.rpartition(".")
    rows = client.rows(
        "SELECT table_schema, table_name, column_name, is_generated FROM information_schema.columns "
        "ORDER BY ordinal_position",
        4,
        scope,
        at=at,
    )
    default = _default(postgres=info.postgres)
    here = [row[2:] for row in rows if row[0] == (schema or default) and row[1] == table]
    rest = (name for name, generated in here if generated != "ALWAYS" and name not in info.key_names)
    return [*info.key_names, *rest] if here else []


def check_provisioned(info: ChangeStreamInfo, spec: FeedSpec) -> None:
    """Refuse a request that needs old or new rows if the stream's records do not contain such rows."""
    wanted: list[tuple[str, tuple[str, ...]]] = []
    if spec.new_item_state_mode is NewItemStateMode.REQUIRE:
        wanted.append(("new_item_state_mode", _WITH_ROW))
    if spec.old_item_state_mode is OldItemStateMode.REQUIRE:
        wanted.append(("old_item_state_mode", _WITH_ROW[1:]))
    for field, captures in wanted:
        if not info.whole:
            raise unsupported(
                f"{field}=REQUIRE: change stream {info.stream!r} does not watch all columns of "
                f"{info.table!r}",
                f"watch the whole table: {how_to_watch(info.stream, info.table, postgres=info.postgres)}, "
                "or read with INCLUDE_IF_AVAILABLE",
            )
        if info.capture not in captures:
            raise unsupported(
                f"{field}=REQUIRE: change stream {info.stream!r} has value_capture_type {info.capture}, "
                "without whole rows",
                f"{how_to_alter(info.stream, postgres=info.postgres)}, or read with INCLUDE_IF_AVAILABLE",
            )


# -- The information schema


def _is_postgres(client: DatabaseClient, scope: CancelScope) -> bool:
    rows = client.rows(
        "SELECT option_value FROM information_schema.database_options WHERE option_name = 'database_dialect'",
        1,
        scope,
    )
    return any(value == "POSTGRESQL" for (value,) in rows)


def _key_names(
    client: DatabaseClient, schema: str, table: str, scope: CancelScope, *, postgres: bool
) -> tuple[str, ...]:
    rows = client.rows(
        "SELECT table_schema, table_name, column_name FROM information_schema.index_columns "
        "WHERE index_type = 'PRIMARY_KEY' ORDER BY ordinal_position",
        3,
        scope,
    )
    place = [schema or _default(postgres=postgres), table]
    return tuple(column for *where, column in rows if where == place)


def _default(*, postgres: bool) -> str:
    """Return the name of the default schema."""
    return _PUBLIC if postgres else ""


def _watching(
    client: DatabaseClient,
    schema: str,
    table: str,
    scope: CancelScope,
    *,
    postgres: bool,
    at: int | None = None,
) -> dict[str, bool]:
    """Return the change streams that watch a table, each with True if it watches all columns."""
    everything = '"all"' if postgres else "`ALL`"
    rows = client.rows(
        f"SELECT change_stream_name, {everything} FROM information_schema.change_streams", 2, scope, at=at
    )
    found = {name: True for name, of_all in rows if of_all in (True, "YES")}
    rows = client.rows(
        "SELECT change_stream_name, table_schema, table_name, all_columns "
        "FROM information_schema.change_stream_tables",
        4,
        scope,
        at=at,
    )
    for stream, where, name, columns in rows:
        if name == table and where == (schema or _default(postgres=postgres)):
            found[stream] = columns in (True, "YES")
    return found


def _options(client: DatabaseClient, scope: CancelScope) -> dict[str, dict[str, str]]:
    rows = client.rows(
        "SELECT change_stream_name, option_name, option_value FROM information_schema.change_stream_options",
        3,
        scope,
    )
    found: dict[str, dict[str, str]] = {}
    for stream, name, value in rows:
        found.setdefault(stream, {})[name] = str(value).strip("'\"")
    return found


def _retention(text: str) -> int:
    match = re.fullmatch(r"(\d+)([smhd])", text.strip().lower())
    return int(match.group(1)) * _SECONDS[match.group(2)] if match else _DAY


# -- The choice


def _chosen(
    table: str,
    watching: Mapping[str, bool],
    options: Mapping[str, Mapping[str, str]],
    configured: str | None,
    *,
    postgres: bool,
) -> str:
    names = sorted(name for name in watching if STREAM_NAME.fullmatch(name))
    if configured is not None:
        same = [name for name in names if name.lower() == configured.lower()]
        if configured in same or len(same) == 1:
            return configured if configured in same else same[0]
        if not same:
            raise ProviderFault.of(
                ErrorCategory.NOT_FOUND,
                f"connection.change_stream: no change stream {configured!r} watches table {table!r}; name "
                f"one that does ({_listed(names)}), or leave it out",
            )
        names = same
    if not names:
        raise ProviderFault.of(
            ErrorCategory.NOT_FOUND,
            f"no change stream watches table {table!r}; create one: "
            f"{how_to_create(table, postgres=postgres)}",
        )
    if len(names) > 1:
        raise ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            f"several change streams watch table {table!r}: {_listed(names)}; name one of them: "
            "connection={'change_stream': …}, or ?change_stream=… in the url",
        )
    (name,) = names
    _check_complete(table, name, watching[name], options.get(name, {}), postgres=postgres)
    return name


def _check_complete(
    table: str, name: str, whole: bool, options: Mapping[str, str], *, postgres: bool
) -> None:
    """Refuse a change stream that omits changes."""
    left_out = [option for option in _EXCLUDES if options.get(option, "").lower() == "true"]
    if not whole:
        left_out.append("some columns")
    if left_out:
        raise ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            f"change stream {name!r} does not record all changes of {table!r} ({', '.join(left_out)}); "
            f"{how_to_create(table, postgres=postgres)}, or name {name!r} in the configuration "
            "(change_stream) to read that change stream anyway",
        )


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, names)) if names else "there is none"


def check_address(address: ResourceAddress) -> str:
    """Return the database of an address."""
    if address.database is None:
        raise invalid_request(
            "address.database",
            "is missing",
            "name the database and the table: ResourceAddress(database, table)",
        )
    return address.database
