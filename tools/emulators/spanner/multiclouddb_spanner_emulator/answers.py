"""Answers statements: change stream queries, queries on INFORMATION_SCHEMA, time queries and `SELECT 1`."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from google.cloud.spanner_v1.types import PartialResultSet
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

from multiclouddb_spanner_emulator import information
from multiclouddb_spanner_emulator.chunks import messages
from multiclouddb_spanner_emulator.clock import from_text, to_text
from multiclouddb_spanner_emulator.database import Database
from multiclouddb_spanner_emulator.errors import ServiceError, invalid, unimplemented
from multiclouddb_spanner_emulator.journal import Call
from multiclouddb_spanner_emulator.reading import Reading, StreamQuery, checked
from multiclouddb_spanner_emulator.record import CHANGE_RECORD, Heartbeat, Record, to_value
from multiclouddb_spanner_emulator.rows import moment_of, rows_at
from multiclouddb_spanner_emulator.stream import ChangeStream
from multiclouddb_spanner_emulator.world import World

__all__ = ["Meet", "answered", "read", "stream_query"]

Meet = Callable[[Call, "int | None"], None]
"""A function that applies faults to a call after the given number of rows has been sent."""

_NAME: Final = r"[`\"]?(\w+)[`\"]?"
_GOOGLE: Final = re.compile(
    r"\s*SELECT\s+(?:ChangeRecord|\*)\s+FROM\s+[`]?READ_(\w+)[`]?\s*\((.*?)\)(.*)", re.I | re.S
)
_POSTGRES: Final = re.compile(
    r"\s*SELECT\s+\*\s+FROM\s+[\"]?spanner[\"]?\s*\.\s*[\"]?read_json_(\w+)[\"]?\s*\((.*?)\)(.*)", re.I | re.S
)
_ARGUMENTS: Final = (
    "start_timestamp",
    "end_timestamp",
    "partition_token",
    "heartbeat_milliseconds",
    "read_options",
)
_TIME: Final = re.compile(
    r"\s*SELECT\s+(CURRENT_TIMESTAMP\s*(?:\(\s*\))?|now\s*\(\s*\))(?:\s+AS\s+(\w+))?\s*;?\s*", re.I
)
_ONE: Final = re.compile(r"\s*SELECT\s+(\d+)(?:\s+AS\s+(\w+))?\s*;?\s*", re.I)
_TABLE: Final = re.compile(rf"\bFROM\s+{_NAME}", re.I)
_DUMMY_TOKEN: Final = b"scripted_resume_token"


def _params(request: Any) -> dict[str, Any]:
    """Return the parameters as Python values."""
    found: dict[str, Any] = {}
    for name, value in request.params.fields.items():
        kind = value.WhichOneof("kind")
        found[name] = None if kind in (None, "null_value") else getattr(value, kind)
    return found


def stream_query(database: Database, sql: str, params: dict[str, Any]) -> StreamQuery | None:
    """Return the arguments of a change stream query, or None for any other statement."""
    found = (_POSTGRES if database.postgres else _GOOGLE).fullmatch(sql)
    if found is None:
        if re.search(r"\bread_(json_)?\w+\s*\(", sql, re.IGNORECASE):
            raise ServiceError(
                "UNIMPLEMENTED", "Change stream TVF must not be combined with any other SQL statements."
            )
        return None
    name, arguments, rest = found.groups()
    if rest.strip(" ;\n\t"):
        raise ServiceError(
            "UNIMPLEMENTED", "Change stream TVF must not be combined with any other SQL statements."
        )
    given: dict[str, Any] = dict.fromkeys(_ARGUMENTS)
    for place, argument in enumerate(arguments.split(",")):
        named, arrow, text = (part.strip() for part in argument.partition("=>"))
        which = named.lower() if arrow else _ARGUMENTS[place]
        if which not in given:
            raise invalid(f"Named argument {named} not found in signature for call to READ_{name}")
        given[which] = _argument(text if arrow else named, params)
    if given["read_options"] is not None:
        raise invalid("read_options must be NULL.")
    try:
        start, end = (None if text is None else from_text(text) for text in list(given.values())[:2])
    except ValueError as error:
        raise invalid(str(error)) from None
    beat = given["heartbeat_milliseconds"]
    return StreamQuery(name, start, end, given["partition_token"], None if beat is None else int(beat))


def _argument(text: str, params: dict[str, Any]) -> Any:
    if text.upper() == "NULL":
        return None
    marked = re.fullmatch(r"[@$](\w+)", text)
    if marked is not None:
        name = f"p{marked[1]}" if text[0] == "$" else marked[1]
        if name not in params:
            raise invalid(f"No parameter found for binding: {name}")
        return params[name]
    return re.sub(r"^TIMESTAMP\s*", "", text, flags=re.IGNORECASE).strip("'\"")


def _stream(database: Database, name: str) -> ChangeStream:
    for stream in database.streams.values():
        if stream.name.lower() == name.lower():
            stream.check_readable()
            return stream
    if database.postgres:
        raise ServiceError(
            "NOT_FOUND",
            f"[ERROR] function spanner.read_json_{name}(timestamp with time zone, timestamp with time zone, "
            "text, bigint, unknown) does not exist",
        )
    raise invalid(f"Table-valued function not found: READ_{name}")


def answered(
    world: World, database: Database, request: Any, call: Call, is_active: Callable[[], bool], meet: Meet
) -> Iterator[Any]:
    """Return the messages that answer a statement, as protobuf messages."""
    sql, params = request.sql, _params(request)
    query = stream_query(database, sql, params)
    if query is not None:
        call.query = query
        _check_transaction(request)
        with world.changed:
            stream = _stream(database, query.stream)
            checked(query, stream, world.clock.nanoseconds(), world.habits)
        meet(call, None)
        with world.journal.streaming():
            rows = _stream_rows(world, database, query, stream, call, is_active, meet)
            column = (f"read_json_{stream.name}", {"code": "JSON", "type_annotation": "PG_JSONB"})
            fields = [column if database.postgres else ("ChangeRecord", CHANGE_RECORD)]
            yield from _messages(world, request, call, fields, rows)
        return
    meet(call, None)
    with world.changed:
        fields, found = _plain(world, database, sql, params, moment_of(world, request))
    yield from _messages(
        world, request, call, fields, iter([[[to_value(value) for value in row] for row in found]])
    )


def read(world: World, database: Database, request: Any, call: Call, meet: Meet) -> Iterator[Any]:
    """Return the messages that answer a read of rows."""
    meet(call, None)
    with world.changed:
        fields, found = rows_at(database, request, moment_of(world, request))
        rows = list(found)

    def batches() -> Iterator[list[list[Value]]]:
        batch: list[list[Value]] = []
        for row in rows:
            if any(each.after_rows == call.rows for each in world.troubles.present):
                yield batch
                batch = []
                meet(call, call.rows)
            call.rows += 1
            batch.append(row)
        yield batch

    yield from _messages(world, request, call, fields, batches())


def _check_transaction(request: Any) -> None:
    read_only = request.transaction.single_use.read_only
    if request.transaction.WhichOneof("selector") != "single_use" or not (
        read_only.strong or read_only.WhichOneof("timestamp_bound") is None
    ):
        raise invalid(
            "Change stream queries are not supported for multi use transactions. Change stream queries must "
            "be strong reads executed via single use transactions using the ExecuteStreamingSql API."
        )


def _stream_rows(
    world: World,
    database: Database,
    query: StreamQuery,
    stream: ChangeStream,
    call: Call,
    is_active: Callable[[], bool],
    meet: Meet,
) -> Iterator[list[list[Value]]]:
    """Yield rows in batches, each of which is sent immediately. A fault may happen between two batches."""
    mix = random.Random(len(world.journal.calls)) if world.habits.mixes_equal_timestamps else None
    reading = Reading(query, stream, world.clock, world.changed, is_active, mix=mix)
    for records in reading.records():
        batch: list[list[Value]] = []
        for record in records:
            if not isinstance(record, Heartbeat):
                if any(each.after_rows == call.rows for each in world.troubles.present):
                    if batch:
                        yield batch
                        batch = []
                    meet(call, call.rows)
                call.rows += 1
            batch.append([_row(record, postgres=database.postgres)])
        yield batch


def _row(record: Record, *, postgres: bool) -> Value:
    return Value(string_value=record.text()) if postgres else record.value()


def _plain(
    world: World, database: Database, sql: str, params: dict[str, Any], moment: int
) -> tuple[list[tuple[str, dict[str, Any]]], list[list[Any]]]:
    one, time = _ONE.fullmatch(sql), _TIME.fullmatch(sql)
    if one is not None:
        return [(one[2] or ("?column?" if database.postgres else ""), {"code": "INT64"})], [[int(one[1])]]
    if time is not None:
        name = time[2] or ("now" if time[1][:3] == "now" else "")
        return [(name, {"code": "TIMESTAMP"})], [[to_text(world.clock.read())]]
    if re.search(r"\binformation_schema\b", sql, re.IGNORECASE):
        names, rows = information.ask(database, sql, params, moment)
        return [(name, {"code": code}) for name, code in names], rows
    table = _TABLE.search(sql)
    if table is not None:
        try:
            database.table(table[1])
        except ServiceError:
            raise invalid(f"Table not found: {table[1]}") from None
    raise unimplemented(
        f"this statement; it answers only queries on change streams and INFORMATION_SCHEMA: {sql}"
    )


def _messages(
    world: World,
    request: Any,
    call: Call,
    fields: list[tuple[str, dict[str, Any]]],
    batches: Iterator[list[list[Value]]],
) -> Iterator[Any]:
    """Return the messages of an answer.

    The first message contains the types, and also the time of the read if the client requested it.
    """
    make = PartialResultSet.pb()
    first = make()
    spelled = [{"name": name, "type": of} for name, of in fields]
    ParseDict({"row_type": {"fields": spelled}}, first.metadata)
    read_only = request.transaction.single_use.read_only
    if read_only.return_read_timestamp:
        with world.changed:
            first.metadata.transaction.read_timestamp.FromNanoseconds(world.clock.read())
    message = first
    habits = world.habits
    for batch in batches:
        for values, goes_on in messages(batch, habits.rows_per_message, habits.chunk_characters):
            message.values.extend(values)
            message.chunked_value = goes_on
            if call.query is not None:
                message.resume_token = _DUMMY_TOKEN
            yield message
            message = make()
    if message is first:
        yield message
