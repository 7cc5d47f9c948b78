"""Makes the columns that `.schema(…)` asks for, from the columns of the events and from documents.

A document is parsed once. Each column converts one value of the parsed JSON, by the rules of
`multiclouddb_tables.conversion`; only arrays, maps and structures are Spark's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, Final, Protocol, TypeAlias

import attrs
import orjson
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    UserDefinedType,
)

from multiclouddb_api import MulticloudDbError, NewItemStateMode, invalid_request
from multiclouddb_api.arrow import EVENT_SCHEMA
from multiclouddb_spi.faults import key_digest
from multiclouddb_tables.conversion import MisfitError, exact_converter, kind_of_json, members, tagged
from multiclouddb_tables.rules import DOCUMENT, check_cases
from multiclouddb_tables.sql import in_backticks

ROW_SCHEMA: Final = EVENT_SCHEMA.append(pa.field("sequence", pa.int64()))
"""The columns of an event, and `sequence`, the number of a row in its partition and batch."""

_SPARK_TYPES: Final[dict[pa.DataType, DataType]] = {
    pa.string(): StringType(),
    pa.bool_(): BooleanType(),
    pa.int64(): LongType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
}

SPARK_SCHEMA: Final = StructType([StructField(field.name, _SPARK_TYPES[field.type]) for field in ROW_SCHEMA])
"""The schema of the rows, as a Spark type."""


def type_text(kind: DataType) -> str:
    """Return a type as SQL that means the same under all settings of a session."""
    match kind:
        case TimestampType():
            return "timestamp_ltz"  # with spark.sql.timestampType, TIMESTAMP may be the type without a zone
        case StructType():
            fields = (f"{in_backticks(field.name)}: {type_text(field.dataType)}" for field in kind)
            return f"struct<{', '.join(fields)}>"
        case ArrayType():
            return f"array<{type_text(kind.elementType)}>"
        case MapType():
            return f"map<{type_text(kind.keyType)}, {type_text(kind.valueType)}>"
        case _:
            return kind.simpleString()


EVENT_COLUMNS: Final = ", ".join(
    f"{field.name} {type_text(field.dataType).upper()}" for field in SPARK_SCHEMA
)
"""The columns of the data source without `.schema(…)`, as DDL. Put them before columns of documents:
`.schema(f"{EVENT_COLUMNS}, status STRING, total DOUBLE")`."""

_CORRUPT: Final = "_corrupt_record"
_PERMISSIVE: Final = (
    f"; or set mode=PERMISSIVE, so that the value is null; then a column {_CORRUPT} STRING contains the "
    "document"
)
_OURS: Final = {field.name.lower(): field for field in SPARK_SCHEMA}
_SCALARS: Final[dict[type[DataType], pa.DataType]] = {
    BooleanType: pa.bool_(),
    ByteType: pa.int8(),
    ShortType: pa.int16(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    DateType: pa.date32(),
    TimestampType: pa.timestamp("us", tz="UTC"),
    TimestampNTZType: pa.timestamp("us"),
    BinaryType: pa.binary(),
}
# The names of types, because PySpark 4.0 does not have classes for all of them.
_ONLY_IN_SPARK: Final = frozenset({"variant", "geography", "geometry", "yearmonthinterval", "interval"})
"""The types whose values Python gets as Spark stores them, or not at all."""
_WITHOUT_FORM: Final = _ONLY_IN_SPARK | {"daytimeinterval", "udt"}
"""The types whose values have no form in a document."""
_Converter: TypeAlias = Callable[[Any, "_Parser"], Any]


@attrs.frozen
class Columns:
    """The columns of the rows, if they are not those of the events."""

    schema: StructType
    corrupt: str | None  # the column for documents that do not fit
    is_strict: bool

    def rows(self, events: pa.RecordBatch) -> pa.RecordBatch:
        """Make the columns of some events, which have the columns of `ROW_SCHEMA`."""
        typed = [field for field in self.schema if field.name not in ROW_SCHEMA.names]
        made: dict[str, list[Any]] = {field.name: [] for field in typed}
        wanted = [
            (field.name, made[field.name].append, _converter(field.dataType))
            for field in typed
            if field.name != self.corrupt
        ]
        if typed:
            texts, keys = events[DOCUMENT].to_pylist(), events["key"]
            for number, text in enumerate(texts):
                document = None if text is None else members(orjson.loads(text))
                parser = _Parser()
                for name, append, convert in wanted:
                    value = None if document is None else document.get(name)
                    append(None if value is None else parser.field(name, value, convert))
                if parser.misfit is not None and self.is_strict:
                    raise _unfit(keys[number].as_py(), *parser.misfit, self.schema, _PERMISSIVE)
                if self.corrupt is not None:
                    made[self.corrupt].append(None if parser.misfit is None else text)
        fields = [pa.field(field.name, arrow_type(field.dataType)) for field in self.schema]
        arrays = [
            pa.array(made[field.name], field.type) if field.name in made else events[field.name]
            for field in fields
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


@attrs.define
class _Parser:
    """Notes the first value of a document that does not fit."""

    misfit: tuple[list[str], object] | None = None
    path: list[str] = attrs.field(factory=list)

    def field(self, name: str, value: object, convert: _Converter) -> Any:
        """Convert a value that is not null; return None if it does not fit."""
        self.path.append(name)
        try:
            return convert(value, self)
        except (MisfitError, ValueError, TypeError, ArithmeticError):
            if self.misfit is None:
                self.misfit = [*self.path], value
            return None
        finally:
            self.path.pop()


class ColumnSettings(Protocol):
    """The options of the source that determine its columns."""

    @property
    def is_strict(self) -> bool | None:
        """Whether `mode` is `FAILFAST`; None if it is not given."""

    @property
    def corrupt_column(self) -> str | None:
        """The given name of the column of corrupt records."""

    @property
    def new_item_state(self) -> NewItemStateMode:
        """Whether events have documents."""

    def named(self, name: str) -> str:
        """Return the name of an option as the user spelled it."""


def columns_of(schema: StructType, settings: ColumnSettings) -> Columns | None:
    """Check the schema that Spark passes; return None for the schema of the source."""
    typed = []
    _check_names(schema)
    for field in schema:
        ours = _OURS.get(field.name.lower())
        if ours is None:
            typed.append(field)
        elif (field.name, field.dataType) != (ours.name, ours.dataType):
            kind = type_text(ours.dataType).upper()
            raise invalid_request(
                f"column {field.name}",
                f"is {field.dataType.simpleString()}, but the source has a column {ours.name} {kind}",
                f"write {ours.name} {kind}; for a field {field.name} of the documents, use "
                f"from_json({DOCUMENT}, …)",
            )
        _check_field(field)
    corrupt = settings.corrupt_column or _CORRUPT
    found = {field.name: field for field in typed}.get(corrupt)
    _check_options(settings, typed, found)
    if schema == SPARK_SCHEMA:
        return None
    return Columns(schema, None if found is None else found.name, settings.is_strict is not False)


def with_documents(rows: pa.Table, kind: StructType) -> pa.Table:
    """Return rows of `ROW_SCHEMA` with structures in place of the JSON of the documents.

    Args:
        rows: The rows.
        kind: The fields of the documents, with their types.
    """
    _check_names(kind)
    for field in kind:
        _check_field(field)
    wanted = [(field.name, _converter(field.dataType)) for field in kind]
    made: list[dict[str, Any] | None] = []
    for text, key in zip(rows[DOCUMENT].to_pylist(), rows["key"], strict=True):
        document = None if text is None else members(orjson.loads(text))
        if document is None:
            made.append(None)
            continue
        parser = _Parser()
        made.append(
            {
                name: None if document.get(name) is None else parser.field(name, document[name], convert)
                for name, convert in wanted
            }
        )
        if parser.misfit is not None:
            raise _unfit(key.as_py(), *parser.misfit, kind)
    place = rows.column_names.index(DOCUMENT)
    return rows.set_column(place, DOCUMENT, pa.array(made, arrow_type(kind)))


def _check_options(settings: ColumnSettings, typed: list[StructField], corrupt: StructField | None) -> None:
    """Refuse options that have no meaning with this schema."""
    name = settings.named("columnNameOfCorruptRecord")
    given = {"mode": settings.is_strict, name: settings.corrupt_column}
    for option, value in given.items():
        if value is not None and not typed:
            raise invalid_request(
                option,
                "has no meaning without columns of documents",
                "name them with .schema(…), or leave the option out",
            )
    if corrupt is None:
        if settings.corrupt_column is not None:
            column = settings.corrupt_column
            raise invalid_request(
                name, f"is {column}, which is not in the schema", f"add {column} STRING to it"
            )
    elif corrupt.dataType != StringType():
        kind = corrupt.dataType.simpleString()
        problem = f"is {kind}, but it is the column for documents that do not fit"
        raise invalid_request(
            f"column {corrupt.name}", problem, f"make it STRING, or set {name} to another column"
        )
    elif settings.is_strict is not False:
        raise invalid_request(
            f"column {corrupt.name}",
            "has no meaning without mode=PERMISSIVE, because a document that does not fit is an error",
            "set mode=PERMISSIVE, or leave the column out",
        )
    if typed and settings.new_item_state is NewItemStateMode.OMIT:
        raise invalid_request(
            settings.named("newItemState"),
            f"is omit, but the schema has a column of documents, {typed[0].name}",
            "leave the option or the column out",
        )


def _check_names(schema: StructType) -> None:
    check_cases(schema.fieldNames())
    if len(names := schema.fieldNames()) > len(set(names)):
        [name, *_] = [name for name in names if names.count(name) > 1]
        raise invalid_request(f"column {name}", "is in the schema twice", "leave one of them out")


def _check_field(field: StructField) -> None:
    _check_type(field.name, field.dataType)
    if not field.nullable:
        raise _is_not_null(field.name)


def _check_type(path: str, kind: DataType) -> None:
    """Refuse a type that JSON cannot give."""
    inner: list[tuple[str, DataType, bool]] = []
    match kind:
        case ArrayType():
            inner = [(f"{path}[]", kind.elementType, kind.containsNull)]
        case MapType():
            if kind.keyType != StringType():
                problem = f"has keys of type {kind.keyType.simpleString()}"
                raise invalid_request(
                    f"column {path}", problem, "make it MAP<STRING, …>: names are text in JSON"
                )
            inner = [(f"{path}{{}}", kind.valueType, kind.valueContainsNull)]
        case StructType():
            inner = [(f"{path}.{field.name}", field.dataType, field.nullable) for field in kind]
        case _:
            if kind != StringType() and type(kind) not in (*_SCALARS, DecimalType):
                raise invalid_request(
                    f"column {path}",
                    f"is {kind.simpleString()}, which a document cannot give",
                    f"make it STRING, and convert it in Spark, or use parse_json({DOCUMENT})",
                )
    for name, each, nullable in inner:
        _check_type(name, each)
        if not nullable:
            raise _is_not_null(name)


def _is_not_null(path: str) -> MulticloudDbError:
    return invalid_request(
        f"column {path}", "is NOT NULL, but a delete has no document, and a field may be missing",
        "leave NOT NULL out",
    )  # fmt: skip


def _unfit(key: str, path: list[str], value: object, schema: StructType, more: str = "") -> MulticloudDbError:
    [column] = [field for field in schema if field.name == path[0]]
    kind = column.dataType.simpleString()
    if path[1:]:
        kind += f", and {''.join(path)}"
    return invalid_request(
        f"column {column.name}",
        f"is {kind}, but the document of the key {key_digest(key)} has {kind_of_json(value)} there, which "
        "does not fit",
        f"give the column another type, such as STRING{more}",
    )


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the type in which Spark expects a column from Python."""
    match kind:
        case ArrayType():
            return pa.list_(pa.field("element", arrow_type(kind.elementType)))
        case MapType():
            return pa.map_(pa.string(), arrow_type(kind.valueType))
        case StructType():
            return pa.struct([pa.field(field.name, arrow_type(field.dataType)) for field in kind])
        case DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case _:
            return _SCALARS.get(type(kind), pa.string())


def is_comparable(kind: DataType) -> bool:
    """Return whether PySpark returns the values of a type in a form that a document may have."""
    return _part_of(kind, _WITHOUT_FORM) is None


def only_in_spark(kind: DataType) -> DataType | None:
    """Return the type that only Spark has, if a type is or contains one."""
    return _part_of(kind, _ONLY_IN_SPARK)


def has_void(kind: DataType) -> bool:
    """Return whether a type is, or contains, that of a column which has only nulls."""
    return _part_of(kind, {"void"}) is not None


def has_times(kind: DataType) -> bool:
    """Return whether a type is, or contains, that of a time with a zone."""
    return _part_of(kind, {"timestamp"}) is not None


def of_a_library(kind: DataType) -> DataType | None:
    """Return the type that a library has made, such as that of a vector, if a type is or contains one."""
    return _part_of(kind, {"udt"})


def _part_of(kind: DataType, names: Set[str]) -> DataType | None:
    """Return the first of the named types that a type is or contains."""
    parts: list[DataType] = []
    match kind:
        case ArrayType():
            parts = [kind.elementType]
        case MapType():
            parts = [kind.keyType, kind.valueType]
        case StructType():
            parts = [field.dataType for field in kind]
        case _:
            name = "udt" if isinstance(kind, UserDefinedType) else kind.typeName()
            return kind if name in names else None
    return next((found for part in parts if (found := _part_of(part, names)) is not None), None)


def spark_type(kind: pa.DataType) -> DataType:
    """Return the type of a column of a table in Spark.

    Args:
        kind: The type of a declared column, or of a column of an event.
    """
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    return next((made() for made, each in _SCALARS.items() if each == kind), StringType())


def _converter(kind: DataType) -> _Converter:
    match kind:
        case ArrayType():
            return _array(_converter(kind.elementType))
        case MapType():
            return _map(_converter(kind.valueType))
        case StructType():
            return _struct([(field.name, _converter(field.dataType)) for field in kind])
        case _:
            return _leaf(arrow_type(kind))


def _leaf(kind: pa.DataType) -> _Converter:
    convert = exact_converter(kind)
    return lambda value, _: convert(value)


def _array(convert: _Converter) -> _Converter:
    def made(value: Any, parser: _Parser) -> list[Any]:
        found = tagged(value)
        items = found[1] if found is not None and found[0] == "set" else value
        if type(items) is not list:
            raise MisfitError
        return [
            None if item is None else parser.field(f"[{number}]", item, convert)
            for number, item in enumerate(items)
        ]

    return made


def _members(value: Any) -> Mapping[str, Any]:
    """Return the fields of an object whose keys mean themselves."""
    found = members(value)
    if found is None:
        raise MisfitError
    return found


def _map(convert: _Converter) -> _Converter:
    def made(value: Any, parser: _Parser) -> list[tuple[str, Any]]:
        return [
            (name, None if item is None else parser.field(f".{name}", item, convert))
            for name, item in _members(value).items()
        ]

    return made


def _struct(fields: list[tuple[str, _Converter]]) -> _Converter:
    def made(value: Any, parser: _Parser) -> dict[str, Any]:
        members = _members(value)
        return {
            name: None if members.get(name) is None else parser.field(f".{name}", members[name], convert)
            for name, convert in fields
        }

    return made
