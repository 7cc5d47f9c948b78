"""Finds the change stream that watches a table or a database, and checks its options."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import attrs
from attrs import frozen

from multiclouddb_api import ErrorCategory, ErrorReason, NewItemStateMode, OldItemStateMode, ResourceAddress
from multiclouddb_spanner.client import CancelScope, DatabaseClient
from multiclouddb_spanner.config import STREAM_NAME
from multiclouddb_spi import FeedSpec, ProviderFault, unsupported
from multiclouddb_spi.faults import START_ANEW

_WHOLE_ROWS: Final = "(value_capture_type = 'NEW_ROW_AND_OLD_VALUES')"
_UNQUOTED: Final = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)
_RESERVED: Final = frozenset({
    "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "assert_rows_modified", "asymmetric",
    "at", "authorization", "between", "binary", "both", "by", "case", "cast", "check", "collate",
    "collation", "column", "concurrently", "constraint", "contains", "create", "cross", "cube", "current",
    "current_catalog", "current_date", "current_role", "current_schema", "current_time",
    "current_timestamp", "current_user", "default", "deferrable", "define", "desc", "distinct", "do",
    "else", "end", "enum", "escape", "except", "exclude", "exists", "extract", "false", "fetch",
    "following", "for", "foreign", "freeze", "from", "full", "grant", "graph_table", "group", "grouping",
    "groups", "hash", "having", "if", "ignore", "ilike", "in", "initially", "inner", "intersect",
    "interval", "into", "is", "isnull", "join", "lateral", "leading", "left", "like", "limit", "localtime",
    "localtimestamp", "lookup", "merge", "natural", "new", "no", "not", "notnull", "null", "nulls", "of",
    "offset", "on", "only", "or", "order", "outer", "over", "overlaps", "partition", "placing", "preceding",
    "primary", "proto", "range", "recursive", "references", "respect", "returning", "right", "rollup",
    "rows", "select", "session_user", "set", "similar", "some", "struct", "symmetric", "system_user",
    "table", "tablesample", "then", "to", "trailing", "treat", "true", "unbounded", "union", "unique",
    "unnest", "user", "using", "variadic", "verbose", "when", "where", "window", "with", "within",
})  # fmt: skip
"""The words that are no name without quotes, in one dialect or the other."""


def quoted(name: str, *, postgres: bool) -> str:
    """Return a name in the form for a statement."""

    def part_of(part: str) -> str:
        if part.lower() in _RESERVED or (postgres and not _UNQUOTED.fullmatch(part)):
            return f'"{part}"' if postgres else f"`{part}`"
        return part

    return ".".join(map(part_of, name.split(".")))


def how_to_create(table: str, *, postgres: bool) -> str:
    """Return the statement that creates a change stream of a table; of every table if it is ""."""
    word = "WITH" if postgres else "OPTIONS"
    if not table:
        return f"CREATE CHANGE STREAM all_tables FOR ALL {word} {_WHOLE_ROWS}"
    stream = quoted(f"{table.rpartition('.')[2]}_stream", postgres=postgres)
    return f"CREATE CHANGE STREAM {stream} FOR {quoted(table, postgres=postgres)} {word} {_WHOLE_ROWS}"


_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WITH_ROW: Final = ("NEW_ROW", "NEW_ROW_AND_OLD_VALUES")
# The last option allows a writer to exclude a transaction from the stream.
_EXCLUDES: Final = (
    "exclude_insert", "exclude_update", "exclude_delete", "exclude_ttl_deletes", "allow_txn_exclusion",
)  # fmt: skip
_PUBLIC: Final = "public"
_SYSTEM_SCHEMAS: Final = ("information_schema", "pg_catalog", "spanner_sys")


@frozen
class Watch:
    """What a change stream watches."""

    everything: bool = False  # True for a stream FOR ALL
    tables: Mapping[str, bool] = attrs.field(factory=dict)  # True if the stream watches all columns

    def whole(self, table: str) -> bool | None:
        """Return whether all columns of a table are watched; None if the table is not watched."""
        return True if self.everything else self.tables.get(table)


@frozen
class ChangeStreamInfo:
    """The change stream that watches a table or a database."""

    stream: str
    table: str  # "" if the feed reads every table that the stream watches
    key_names: tuple[str, ...]
    postgres: bool
    whole: bool  # True if the stream watches all columns, of a database those of all its tables
    capture: str
    retention: int | None  # in seconds; None if the stream has the service's default, which is listed nowhere
    key_types: tuple[str, ...] = ()  # the code of each key column's type, or "" for one that is not known
    left_out: frozenset[str] = frozenset()  # the options that make the stream leave changes out
    watch: Watch = Watch()  # what the stream watched when a feed of a database was opened

    @property
    def what(self) -> str:
        """Return the name of what is read, for an error message."""
        return f"table {self.table!r}" if self.table else "all its tables"

    def key_digest(self) -> str:
        """Return a short text that differs for tables whose key columns or their types differ."""
        parts = [part for pair in zip(self.key_names, self.key_types, strict=True) for part in pair]
        return hashlib.blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()

    def how_to_alter(self) -> str:
        """Return the statement that makes the stream record whole rows."""
        word = "SET" if self.postgres else "SET OPTIONS"
        return f"ALTER CHANGE STREAM {quoted(self.stream, postgres=self.postgres)} {word} {_WHOLE_ROWS}"

    def how_to_watch(self) -> str:
        """Return the statement that makes the stream watch all columns of what is read."""
        table = quoted(self.table, postgres=self.postgres) if self.table else "ALL"
        return f"ALTER CHANGE STREAM {quoted(self.stream, postgres=self.postgres)} SET FOR {table}"


def find(
    client: DatabaseClient, address: ResourceAddress, configured: str | None, scope: CancelScope
) -> ChangeStreamInfo:
    """Find the table of an address, or its whole database, and the change stream that watches it."""
    table = address.collection or ""
    dialects = _select(
        client, scope, "option_value", "database_options WHERE option_name = 'database_dialect'"
    )
    postgres = ["POSTGRESQL"] in dialects
    if postgres and table.startswith(f"{_PUBLIC}.") and table.count(".") == 1:
        table = table.partition(".")[2]  # records name a table in the default schema without its schema
    key = _key_of(client, table, scope, postgres=postgres) if table else {}
    if table and not key and _is_there(client, table, scope):
        raise _without_key(table, "create a table with a key column, and read that one")
    if table and not key:
        raise ProviderFault.of(
            ErrorCategory.NOT_FOUND,
            f"there is no table {address.collection!r} in database {address.database!r}{_hidden(client)}; "
            "check its name, also upper and lower case",
        )
    watches = watches_of(client, scope, postgres=postgres)
    if table:
        watching = {name: whole for name, each in watches.items() if (whole := each.whole(table)) is not None}
    else:
        # A stream of some tables is read only if it is named, as a stream of some columns is.
        named = configured is not None
        watching = {
            name: each.everything
            for name, each in watches.items()
            if each.everything or (named and each.tables)
        }
    options = _options(client, scope)
    stream = _chosen(table, watching, options, configured, postgres=postgres)
    settings = options.get(stream, {})
    if settings.get("partition_mode", "").upper() == "MUTABLE_KEY_RANGE":
        raise unsupported(
            f"change stream {stream!r} has partition_mode = 'MUTABLE_KEY_RANGE', which is not supported",
            "create a change stream without that option, and name it in the configuration (change_stream)",
        )
    capture = settings.get("value_capture_type", "OLD_AND_NEW_VALUES").upper()
    retention = _retention(settings.get("retention_period", ""))
    return ChangeStreamInfo(
        stream,
        table,
        tuple(key),
        postgres,
        watching[stream] if table else all(watches[stream].tables.values()),
        capture,
        retention,
        tuple(key.values()),
        _left_out(settings),
        Watch() if table else watches[stream],
    )


def _hidden(client: DatabaseClient) -> str:
    """Return the other reason for which a table or stream is not listed."""
    return "" if client.role is None else f", or the database role {client.role!r} has no SELECT on it"


def table_names(client: DatabaseClient, scope: CancelScope) -> list[str]:
    """Return the names of the tables in a database."""
    return _table_names(client, scope)


def _table_names(client: DatabaseClient, scope: CancelScope, at: int | None = None) -> list[str]:
    rows = _select(client, scope, "table_schema, table_name", "tables WHERE table_type = 'BASE TABLE'", at)
    return [
        name if schema in ("", _PUBLIC) else f"{schema}.{name}"
        for schema, name in rows
        if schema.lower() not in _SYSTEM_SCHEMAS
    ]


def watch_of(
    client: DatabaseClient, info: ChangeStreamInfo, scope: CancelScope, at: int | None = None
) -> Watch:
    """Return what a stream watches now, or watched at a given time; nothing if it does not exist."""
    return watches_of(client, scope, postgres=info.postgres, at=at).get(info.stream, Watch())


def unwatched(
    client: DatabaseClient, info: ChangeStreamInfo, scope: CancelScope, at: int | None = None
) -> str:
    """Return what is read and exists (or existed at a given time) without being watched; "" for nothing."""
    watch = watch_of(client, info, scope, at)
    if watch.everything:
        return ""
    if info.watch.everything:
        return "every table"
    wanted = {info.table} if info.table else info.watch.tables.keys()
    missing = wanted - watch.tables.keys()
    there = sorted(missing.intersection(_table_names(client, scope, at))) if missing else []
    return f"table {_listed(there)}" if there else ""


def check_table(client: DatabaseClient, info: ChangeStreamInfo, scope: CancelScope) -> None:
    """Check that the table exists, and that its key columns and their types are still the same."""
    key = _key_of(client, info.table, scope, postgres=info.postgres)
    if not key and not _is_there(client, info.table, scope):
        raise ProviderFault.of(
            ErrorCategory.NOT_FOUND,
            f"table {info.table!r} was dropped or renamed, so there are no more changes of it; read it under "
            f"its new name, or create it again; {START_ANEW}",
        )
    check_same_key(info, attrs.evolve(info, key_names=tuple(key), key_types=tuple(key.values())))


def check_same_key(known: ChangeStreamInfo, found: ChangeStreamInfo) -> None:
    """Check that the key columns of a table and their types are those that are known."""
    if (known.key_names, known.key_types) != (found.key_names, found.key_types):
        raise ProviderFault.of(
            ErrorCategory.NOT_FOUND,
            f"table {known.table!r} was dropped and created again with another primary key; {START_ANEW}",
        )


def look_again(client: DatabaseClient, info: ChangeStreamInfo, scope: CancelScope) -> ChangeStreamInfo:
    """Return what a stream is now; refuse one that no longer records all changes of the table."""
    if what := unwatched(client, info, scope):
        # The statement for some tables would have to name the others too.
        named = info.table or info.watch.everything
        way_out = f"run {info.how_to_watch()}" if named else "alter it"
        raise ProviderFault.of(
            ErrorCategory.NOT_FOUND,
            f"change stream {info.stream!r} no longer watches {what}, so its changes since then are not "
            f"recorded; {way_out} to record later changes",
        )
    if info.table:
        check_table(client, info, scope)
    settings = _options(client, scope).get(info.stream, {})
    check_left_out(info, _left_out(settings))
    return attrs.evolve(info, retention=_retention(settings.get("retention_period", "")))


def check_left_out(info: ChangeStreamInfo, found: frozenset[str]) -> None:
    """Refuse a stream that leaves changes out which it recorded before."""
    hidden = found - info.left_out
    if hidden:
        names = ", ".join(sorted(hidden))
        raise ProviderFault.of(
            ErrorCategory.NOT_FOUND,
            f"change stream {info.stream!r} leaves changes of {info.what} out since it was altered "
            f"({names}), and they are not recorded; set {names} to false, and {START_ANEW}",
        )


def left_out_at(
    client: DatabaseClient, info: ChangeStreamInfo, at: int, scope: CancelScope
) -> frozenset[str]:
    """Return the options that made a stream leave changes out at a given time."""
    return _left_out(_options(client, scope, at).get(info.stream, {}))


def retention_of(client: DatabaseClient, info: ChangeStreamInfo, scope: CancelScope) -> int | None:
    """Return the current retention of a change stream, in seconds; None if it has the service's default."""
    return _retention(_options(client, scope).get(info.stream, {}).get("retention_period", ""))


def columns_at(
    client: DatabaseClient, info: ChangeStreamInfo, at: int, scope: CancelScope
) -> dict[str, list[str]]:
    """Return the columns of each table that is read, as its changes contained them at a given time."""
    names = "table_schema, table_name, column_name, is_generated"
    found = dict[str, list[str]]()
    for schema, table, column, generated in _select(
        client, scope, names, "columns ORDER BY ordinal_position", at
    ):
        name = _name(schema, table, postgres=info.postgres)
        if info.table in ("", name):
            columns = found.setdefault(name, [])
            if generated != "ALWAYS":
                columns.append(column)
    return found


def tables_at(
    client: DatabaseClient, info: ChangeStreamInfo, at: int, scope: CancelScope
) -> dict[str, ChangeStreamInfo]:
    """Return each table that the stream of a database watched at a given time, as a feed of it has it."""
    watch, keys = watch_of(client, info, scope, at), keys_of(client, scope, postgres=info.postgres, at=at)
    found = dict[str, ChangeStreamInfo]()
    for table in _table_names(client, scope, at):
        whole, key = watch.whole(table), keys.get(table, {})
        if whole is None:
            continue
        if not key:
            raise _without_key(table, "read each other table with EntireCollection(), or drop this one")
        found[table] = attrs.evolve(
            info, table=table, key_names=tuple(key), key_types=tuple(key.values()), whole=whole
        )
    return found


def tables_now(
    client: DatabaseClient, info: ChangeStreamInfo, scope: CancelScope
) -> dict[str, ChangeStreamInfo]:
    """Return each table that the stream of a database watches now, and what it leaves out now."""
    watch, keys = watch_of(client, info, scope), keys_of(client, scope, postgres=info.postgres)
    left_out = _left_out(_options(client, scope).get(info.stream, {}))
    return {
        table: attrs.evolve(
            info, table=table, key_names=tuple(key), key_types=tuple(key.values()), left_out=left_out
        )
        for table, key in keys.items()
        if watch.whole(table) is not None
    }


def _without_key(table: str, way_out: str) -> ProviderFault:
    """Return the refusal of a table that has no key column."""
    return unsupported(
        f"table {table!r} has no key column (PRIMARY KEY ()), so events cannot name its only row", way_out
    )


def types_of(client: DatabaseClient, info: ChangeStreamInfo, scope: CancelScope) -> dict[str, dict[str, str]]:
    """Return the columns of each table that is read now, and their types."""
    rows = _select(client, scope, "table_schema, table_name, column_name, spanner_type", "columns")
    found = dict[str, dict[str, str]]()
    for schema, table, name, kind in rows:
        found.setdefault(_name(schema, table, postgres=info.postgres), {})[name] = kind
    return {info.table: found.get(info.table, {})} if info.table else found


def check_provisioned(info: ChangeStreamInfo, spec: FeedSpec) -> None:
    """Refuse a request that needs old or new rows if the stream's records do not contain such rows."""
    wanted: list[tuple[str, tuple[str, ...]]] = []
    if spec.new_item_state_mode is NewItemStateMode.REQUIRE:
        wanted.append(("new_item_state_mode", _WITH_ROW))
    if spec.old_item_state_mode is OldItemStateMode.REQUIRE:
        wanted.append(("old_item_state_mode", _WITH_ROW[1:]))
    for field, captures in wanted:
        if not info.whole:
            way_out = f"watch the whole table: {info.how_to_watch()}"
            problem = f"change stream {info.stream!r} does not watch all columns of {info.what}"
        elif info.capture not in captures:
            way_out = info.how_to_alter()
            problem = (
                f"change stream {info.stream!r} has value_capture_type {info.capture}, without whole rows"
            )
        else:
            continue
        raise unsupported(f"{field}=REQUIRE: {problem}", f"{way_out}, or read with INCLUDE_IF_AVAILABLE")


# -- The information schema


def _select(
    client: DatabaseClient, scope: CancelScope, columns: str, source: str, at: int | None = None
) -> list[list[Any]]:
    sql = f"SELECT {columns} FROM information_schema.{source}"
    return client.rows(sql, columns.count(",") + 1, scope, at=at)


def _name(schema: str, name: str, *, postgres: bool) -> str:
    """Return the name of a table in change records."""
    return name if schema == (_PUBLIC if postgres else "") else f"{schema}.{name}"


_GOOGLE_TYPE: Final = re.compile(
    r"(BOOL|BYTES|DATE|FLOAT32|FLOAT64|INT64|NUMERIC|STRING|TIMESTAMP|UUID)(?:\([0-9A-Z]+\))?", re.IGNORECASE
)
_POSTGRES_TYPES: Final[Mapping[str, str]] = {
    "bigint": "INT64", "boolean": "BOOL", "bytea": "BYTES", "character varying": "STRING", "date": "DATE",
    "double precision": "FLOAT64", "real": "FLOAT32", "text": "STRING",
    "timestamp with time zone": "TIMESTAMP", "uuid": "UUID",
}  # fmt: skip


def _code_of(spanner_type: str, *, postgres: bool) -> str:
    """Return the code of a type, without its length, which may grow; "" for a type that is not known."""
    if postgres:
        return _POSTGRES_TYPES.get(spanner_type.partition("(")[0].strip().lower(), "")
    found = _GOOGLE_TYPE.fullmatch(spanner_type.strip())
    return "" if found is None else found[1].upper()


def _key_of(client: DatabaseClient, table: str, scope: CancelScope, *, postgres: bool) -> dict[str, str]:
    """Return the key columns of a table and the codes of their types; empty if there is none."""
    return keys_of(client, scope, postgres=postgres).get(table, {})


def keys_of(
    client: DatabaseClient, scope: CancelScope, *, postgres: bool, at: int | None = None
) -> dict[str, dict[str, str]]:
    """Return the key columns of each table, now or at a given time, and the codes of their types."""
    rows = _select(
        client,
        scope,
        "table_schema, table_name, column_name, spanner_type",
        "index_columns WHERE index_type = 'PRIMARY_KEY' ORDER BY ordinal_position",
        at,
    )
    found = dict[str, dict[str, str]]()
    for schema, table, column, kind in rows:
        key = found.setdefault(_name(schema, table, postgres=postgres), {})
        key[column] = _code_of(str(kind), postgres=postgres)
    return found


def _is_there(client: DatabaseClient, table: str, scope: CancelScope) -> bool:
    return table in table_names(client, scope)


def watches_of(
    client: DatabaseClient, scope: CancelScope, *, postgres: bool, at: int | None = None
) -> dict[str, Watch]:
    """Return what each change stream watches."""
    everything = '"all"' if postgres else "`ALL`"
    rows = _select(client, scope, f"change_stream_name, {everything}", "change_streams", at)
    of_all = {name: each in (True, "YES") for name, each in rows}
    tables: dict[str, dict[str, bool]] = {name: {} for name in of_all}
    names = "change_stream_name, table_schema, table_name, all_columns"
    for stream, schema, table, columns in _select(client, scope, names, "change_stream_tables", at):
        found = tables.setdefault(stream, {})
        found[_name(schema, table, postgres=postgres)] = columns in (True, "YES")
    return {name: Watch(of_all.get(name, False), each) for name, each in tables.items()}


def _options(client: DatabaseClient, scope: CancelScope, at: int | None = None) -> dict[str, dict[str, str]]:
    names, found = "change_stream_name, option_name, option_value", dict[str, dict[str, str]]()
    for stream, name, value in _select(client, scope, names, "change_stream_options", at):
        found.setdefault(stream, {})[name] = str(value).strip("'\"")
    return found


def _retention(text: str) -> int | None:
    match = re.fullmatch(r"(\d+)([smhd])", text.strip().lower())
    return int(match.group(1)) * _SECONDS[match.group(2)] if match else None


def _left_out(settings: Mapping[str, str]) -> frozenset[str]:
    return frozenset(option for option in _EXCLUDES if settings.get(option, "").lower() == "true")


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
    what = f"table {table!r}" if table else "every table"
    other = "" if table else ", or name one of some tables in the configuration (change_stream)"
    if configured is not None:
        same = [name for name in names if name.lower() == configured.lower()]
        if configured in same or len(same) == 1:
            return configured if configured in same else same[0]
        if not same:
            raise ProviderFault.of(
                ErrorCategory.NOT_FOUND,
                f"connection.change_stream: no change stream {configured!r} watches "
                f"{what if table else 'a table'}; name one that does ({_listed(names)}), or leave it out",
            )
        names = same
    if not names:
        raise ProviderFault.of(
            ErrorCategory.NOT_FOUND,
            f"no change stream watches {what}; create one: {how_to_create(table, postgres=postgres)}{other}",
            reason=ErrorReason.NOT_PROVISIONED,
        )
    if len(names) > 1:
        raise ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            f"several change streams watch {what}: {_listed(names)}; name one of them: "
            "connection={'change_stream': …}, or ?change_stream=… in the url",
        )
    (name,) = names
    left_out = sorted(_left_out(options.get(name, {})))
    if table and not watching[name]:
        left_out.append("some columns")
    if left_out:
        raise ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            f"change stream {name!r} does not record all changes of {what} ({', '.join(left_out)}); "
            f"{how_to_create(table, postgres=postgres)}, or name {name!r} in the configuration "
            "(change_stream) to read it anyway",
        )
    return name


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, names)) if names else "there is none"
