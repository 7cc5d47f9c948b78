"""Parses change records in the form that a query returns. The functions are pure.

The result of a query on a change stream has one column. In GoogleSQL, this column contains a list
of structs, each with three lists. In each struct, one of the three lists contains the record. In
PostgreSQL the column is a JSON object. This module returns the same items for both dialects.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

import attrs
import orjson
from attrs import frozen
from google.cloud.spanner_v1 import PartialResultSet

from multiclouddb_spanner.position import micros_of
from multiclouddb_spanner.values import KEY_FORMS, Converter, converter, json_converter
from multiclouddb_spi import DAMAGED, collector_paused

UNTIMED: Final = -1
"""The time of a record without a readable commit timestamp; it is not before the preceding record's."""
_MOST_SHAPES: Final = 4096
_MOD_BYTES: Final = 400


class Mod(NamedTuple):
    """One change of one row: JSON texts, or parsed values if the service sends values instead of texts."""

    keys: Any
    new: Any
    old: Any


@frozen(eq=False)
class Shape:
    """The columns of a record, with their converters."""

    names: tuple[str, ...]
    kinds: Mapping[str, str] = attrs.field(factory=dict)  # the code of each column's type
    python: Mapping[str, Converter] = attrs.field(factory=dict)  # for columns whose values are converted
    json: Mapping[str, Converter] = attrs.field(factory=dict)  # the same, for the library's JSON
    keys: Mapping[str, Converter] = attrs.field(factory=dict)  # from a converted value to its form in a key
    key_names: frozenset[str] = frozenset()  # the columns that a change record calls its primary key
    problem: str | None = None  # why the columns cannot be read
    whole: bool = True  # False if the stream did not watch all columns of the table


@frozen(eq=False)
class DataRecord:
    """Changes that one transaction made to one table, of one kind and with the same columns."""

    at: int  # the commit timestamp in microseconds since 1970, or `UNTIMED`
    commit: str  # the commit timestamp, as the service wrote it
    sequence: str  # the place among the transaction's records in this partition
    transaction: str
    table: str
    shape: Shape
    mods: Sequence[Mod]
    kind: str
    capture: str  # the value capture type that the stream had when the changes were made
    by_expiry: bool | None  # None if the service deleted the rows and named no reason
    native: Callable[[], dict[str, Any]]  # the record as the service sent it, without its changes
    nbytes: int
    # The key columns in the order of the key, if there are several and the feed reads several tables. The
    # record names them in the order of the table's columns.
    key_names: tuple[str, ...] = ()


@frozen
class Heartbeat:
    """A record that confirms that all changes up to a given time were sent."""

    at: int


@frozen
class Children:
    """A record that ends the partition and names the partitions that follow."""

    at: int
    parents: Mapping[str, tuple[str, ...]]  # all parents of each child


@frozen
class Passed:
    """The time of the last change of another table in a message: all changes before it were sent."""

    at: int


Item: TypeAlias = DataRecord | Heartbeat | Children | Passed

# The fields of a data change record, in the order of GoogleSQL.
_FIELDS: Final = (
    "commit_timestamp", "record_sequence", "server_transaction_id",
    "is_last_record_in_transaction_in_partition", "table_name", "column_types", "mods", "mod_type",
    "value_capture_type", "number_of_records_in_transaction", "number_of_partitions_in_transaction",
    "transaction_tag", "is_system_transaction",
)  # fmt: skip
_EXPIRY_TAG: Final = "RowDeletionPolicy"
_DATA_HEAD: Final = '{"data_change_record"'
_NO_MOD: Final = Mod(None, None, None)


class Shapes:
    """The shapes of records; each set of columns is parsed once, for all threads of a feed."""

    def __init__(self) -> None:
        self._known: dict[bytes, Shape] = {}

    def find(self, key: bytes, columns: Callable[[], Iterable[tuple[str, Any, bool]]]) -> Shape:
        """Return the shape of a record, whose columns have a name, a type, and True for a key column."""
        shape = self._known.get(key)
        if shape is None:
            if len(self._known) >= _MOST_SHAPES:
                self._known.clear()
            found = tuple(columns())
            names = frozenset(name for name, _, is_key in found if is_key)
            made = shape_of((name, kind) for name, kind, _ in found)
            shape = self._known[key] = attrs.evolve(made, key_names=names)
        return shape


def shape_of(columns: Iterable[tuple[str, Any]]) -> Shape:
    """Make a shape, which contains the names and converters of the given columns."""
    columns = tuple(columns)
    names = tuple(name for name, _ in columns)
    try:
        python = {name: converter(kind) for name, kind in columns}
        json = {name: json_converter(kind) for name, kind in columns}
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        return Shape(names, problem=str(error)[:200])
    kinds = {name: str(kind["code"]) for name, kind in columns}
    return Shape(
        names,
        kinds,
        {name: made for name, made in python.items() if made is not None},
        {name: made for name, made in json.items() if made is not None},
        {name: KEY_FORMS[code] for name, code in kinds.items() if code in KEY_FORMS},
    )


def with_problem(record: DataRecord, problem: str) -> DataRecord:
    """Return a record that becomes a fault."""
    return attrs.evolve(record, shape=attrs.evolve(record.shape, problem=problem))


def rows_of(messages: Iterable[PartialResultSet], columns: int = 1) -> Iterator[list[list[Any]]]:
    """Return the rows of a query's answer without decoding them, message by message."""
    for values in values_of(messages, columns):
        yield [values[at : at + columns] for at in range(0, len(values), columns)]


def values_of(messages: Iterable[PartialResultSet], columns: int) -> Iterator[list[Any]]:
    """Return the values of whole rows without decoding them, row after row, message by message."""
    values: list[Any] = []
    cut = False
    for message in messages:
        raw = PartialResultSet.pb(message)
        # The parser makes an object for each value, and none of these objects can be garbage yet.
        with collector_paused():
            fresh = list(raw.values)
        if cut and fresh:
            values[-1] = _merged(values[-1], fresh[0])
            del fresh[0]
        values += fresh
        cut = raw.chunked_value or (cut and not raw.values)
        whole = (len(values) - cut) // columns * columns
        yield values[:whole]
        del values[:whole]


def _merged(first: Any, second: Any) -> Any:
    made = type(first)()
    if first.HasField("string_value"):
        made.string_value = first.string_value + second.string_value
        return made
    start, rest = list(first.list_value.values), list(second.list_value.values)
    if start and rest:
        kinds = {start[-1].WhichOneof("kind"), rest[0].WhichOneof("kind")}
        if kinds in ({"string_value"}, {"list_value"}):
            start[-1:] = [_merged(start[-1], rest.pop(0))]
    made.list_value.values.extend(start + rest)
    return made


def parse_rows(rows: Iterable[Sequence[Any]], table: str, shapes: Shapes) -> Iterator[Item]:
    """Return the items in the rows of a change stream; "" is every table.

    Of the changes of other tables, only the time of the last one is returned.
    """
    passed = ""
    for (value,) in rows:
        if value.HasField("string_value"):
            passed = (yield from _of_text(value.string_value, table, shapes)) or passed
        else:
            for struct in value.list_value.values:
                passed = (yield from _of_struct(struct.list_value.values, table, shapes)) or passed
    if passed:
        with contextlib.suppress(*DAMAGED):
            yield Passed(micros_of(passed))


def _of_struct(lists: Sequence[Any], table: str, shapes: Shapes) -> Generator[Item, None, str]:
    """Return the items in a row of GoogleSQL, and the time of its last change of another table, or ""."""
    passed = ""
    data, heartbeats, children = lists
    for each in data.list_value.values:
        fields = each.list_value.values
        try:
            if not table or fields[4].string_value == table:
                yield _data_of_struct(fields, shapes)
            else:
                passed = fields[0].string_value
        except DAMAGED as error:
            at = fields[0].string_value if fields else ""
            yield _unreadable(each.SerializeToString(deterministic=True), at, table, error)
    for each in heartbeats.list_value.values:
        # Without a readable time, a heartbeat confirms nothing.
        with contextlib.suppress(*DAMAGED):
            yield Heartbeat(micros_of(each.list_value.values[0].string_value))
    for each in children.list_value.values:
        start, _, found = each.list_value.values
        yield Children(
            micros_of(start.string_value, up=True),
            {
                child.list_value.values[0].string_value: tuple(
                    parent.string_value for parent in child.list_value.values[1].list_value.values
                )
                for child in found.list_value.values
            },
        )
    return passed


def _unreadable(data: bytes, commit: object, table: str, error: Exception) -> DataRecord:
    """Return a record that becomes a fault, in place of one that cannot be read.

    Its transaction is named after its bytes, so that a position can say that it was skipped.
    """
    try:
        at, text = micros_of(str(commit)), str(commit)
    except DAMAGED:
        at, text = UNTIMED, "(no commit timestamp)"
    problem = f"it cannot be decoded as a record of a change stream ({type(error).__name__})"
    name = f"unreadable-{blake2b(data, digest_size=12).hexdigest()}"
    shape = Shape((), problem=problem, whole=False)
    return DataRecord(at, text, "", name, table, shape, [_NO_MOD], "", "", None, dict, len(data))


def _data_of_struct(fields: Sequence[Any], shapes: Shapes) -> DataRecord:
    commit, sequence, transaction, _, table, columns, mods, kind, capture = fields[:9]
    # The tag and who made the change came later than the other fields.
    tag = fields[11].string_value if len(fields) > 11 else ""
    is_system = len(fields) > 12 and fields[12].bool_value
    found = []
    nbytes = 0
    for mod in mods.list_value.values:
        keys, new, old = mod.list_value.values
        made = Mod(keys.string_value, new.string_value, old.string_value)
        nbytes += _MOD_BYTES + len(made.keys) + len(made.new) + len(made.old)
        found.append(made)
    commit_text, kind_text = commit.string_value, kind.string_value

    def read_columns() -> Iterator[tuple[str, Any, bool]]:
        for each in columns.list_value.values:
            name, type_text, is_key, *_ = each.list_value.values
            yield name.string_value, orjson.loads(type_text.string_value), is_key.bool_value

    return DataRecord(
        micros_of(commit_text),
        commit_text,
        sequence.string_value,
        transaction.string_value,
        table.string_value,
        shapes.find(table.string_value.encode() + columns.SerializeToString(), read_columns),
        found,
        kind_text,
        capture.string_value,
        _by_expiry(kind_text, is_system, tag),
        lambda: _native_of_struct(fields),
        nbytes,
    )


def _by_expiry(kind: str, is_system: bool, tag: str) -> bool | None:
    if kind != "DELETE" or not is_system:
        return False
    return True if tag == _EXPIRY_TAG else None


def _native_of_struct(fields: Sequence[Any]) -> dict[str, Any]:
    found = {name: plain_value(value) for name, value in zip(_FIELDS, fields, strict=False) if name != "mods"}
    found["column_types"] = [
        {
            "name": name,
            "type": orjson.loads(kind),
            "is_primary_key": is_primary_key,
            "ordinal_position": int(position),
        }
        for name, kind, is_primary_key, position in found["column_types"]
    ]
    for name in ("number_of_records_in_transaction", "number_of_partitions_in_transaction"):
        if found.get(name) is not None:
            found[name] = int(found[name])
    return found


def plain_value(value: Any) -> Any:
    """Convert a value of protobuf to its form in JSON."""
    kind = value.WhichOneof("kind")
    if kind == "list_value":
        return [plain_value(each) for each in value.list_value.values]
    return None if kind in (None, "null_value") else getattr(value, kind)


def _of_text(text: str, table: str, shapes: Shapes) -> Generator[Item, None, str]:
    """Return the item in a row of PostgreSQL, which is an object with one member; see `_of_struct`."""
    try:
        record = orjson.loads(text)
    except ValueError as error:
        # A row that names the partitions that follow must not be passed, so it must not be taken for another.
        if not text.startswith(_DATA_HEAD):
            raise
        yield _unreadable(text.encode("utf-8", "surrogatepass"), None, table, error)
        return ""
    if "data_change_record" in record:
        data = record["data_change_record"]
        try:
            if table and data["table_name"] != table:
                return str(data.get("commit_timestamp") or "")
            yield _data_of_json(data, shapes)
        except DAMAGED as error:
            at = data.get("commit_timestamp") if isinstance(data, dict) else None
            yield _unreadable(text.encode(), at, table, error)
    elif "heartbeat_record" in record:
        with contextlib.suppress(*DAMAGED):
            yield Heartbeat(micros_of(record["heartbeat_record"]["timestamp"]))
    elif "child_partitions_record" in record:
        found = record["child_partitions_record"]
        yield Children(
            micros_of(found["start_timestamp"], up=True),
            {
                child["token"]: tuple(child.get("parent_partition_tokens") or ())
                for child in found["child_partitions"]
            },
        )
    return ""


def _data_of_json(data: Mapping[str, Any], shapes: Shapes) -> DataRecord:
    columns = data["column_types"]
    mods = [Mod(mod["keys"], mod.get("new_values"), mod.get("old_values")) for mod in data["mods"]]
    size = _MOD_BYTES + 32 * len(columns)
    return DataRecord(
        micros_of(data["commit_timestamp"]),
        data["commit_timestamp"],
        data["record_sequence"],
        data["server_transaction_id"],
        data["table_name"],
        shapes.find(
            orjson.dumps([data["table_name"], columns]),
            lambda: ((each["name"], each["type"], each.get("is_primary_key") is True) for each in columns),
        ),
        mods,
        data["mod_type"],
        data["value_capture_type"],
        _by_expiry(
            data["mod_type"], data.get("is_system_transaction") is True, data.get("transaction_tag") or ""
        ),
        lambda: {name: value for name, value in data.items() if name != "mods"},
        size * len(mods),
    )
