"""Represents the records of a change stream, in the forms that the two dialects use."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import attrs
from google.protobuf.struct_pb2 import Value

from multiclouddb_spanner_emulator.clock import to_text
from multiclouddb_spanner_emulator.schema import Column

__all__ = ["Children", "DataChange", "Heartbeat", "Mod", "Record", "dumped", "to_value"]


def dumped(value: Any) -> str:
    """Return a JSON text with sorted names and without spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def to_value(value: Any) -> Value:
    """Return a value in the form that the protocol uses, in which whole numbers are texts."""
    match value:
        case None:
            return Value(null_value=0)
        case bool():
            return Value(bool_value=value)
        case int() | str():
            return Value(string_value=str(value))
        case float():
            return Value(number_value=value)
        case _:
            found = Value()
            found.list_value.SetInParent()
            found.list_value.values.extend(to_value(each) for each in value)
            return found


@attrs.frozen
class Mod:
    """One changed row: its key, its new values and its old values, each as a JSON text."""

    keys: str
    new_values: str
    old_values: str


@attrs.define(eq=False)
class DataChange:
    """A data change record.

    Attributes:
        commit: The commit timestamp of the record.
        sequence: The place of the record in its transaction.
        transaction: The transaction's id.
        is_last: True if the transaction has no later record in the same partition.
        table: The table.
        columns: Pairs: a reported column, and True if the column belongs to the primary key.
        mods: The rows.
        mod_type: `INSERT`, `UPDATE` or `DELETE`.
        capture: The value capture type.
        records: The number of records in the transaction.
        partitions: The number of partitions that contain records of the transaction.
        tag: The transaction's tag.
        is_system: True if the service itself wrote the transaction.
    """

    commit: int
    sequence: int
    transaction: str
    is_last: bool
    table: str
    columns: tuple[tuple[Column, bool], ...]
    mods: list[Mod]
    mod_type: str
    capture: str
    records: int = 0
    partitions: int = 0
    tag: str = ""
    is_system: bool = False
    _value: Any = None

    def fields(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the three arrays of a `ChangeRecord`."""
        columns = [
            [each.name, dumped(each.type.described()), key, each.ordinal] for each, key in self.columns
        ]
        mods = [[mod.keys, mod.new_values, mod.old_values] for mod in self.mods]
        told = [
            to_text(self.commit), f"{self.sequence:08d}", self.transaction, self.is_last, self.table, columns,
            mods, self.mod_type, self.capture, self.records, self.partitions, self.tag, self.is_system,
        ]  # fmt: skip
        return [told], [], []

    def value(self) -> Value:
        """Return the row as a value of GoogleSQL. The row is built only once, and then reused."""
        if self._value is None:
            self._value = _row(self)
        return self._value

    def text(self) -> str:
        """Return the row as the JSON text that a PostgreSQL database returns."""
        columns = ",".join(
            f'{{"is_primary_key":{dumped(key)},"name":{dumped(each.name)},"ordinal_position":{each.ordinal},'
            f'"type":{dumped(each.type.described())}}}'
            for each, key in self.columns
        )
        # The texts of a mod are inserted unchanged, even if they are not valid JSON.
        mods = ",".join(
            f'{{"keys":{mod.keys},"new_values":{mod.new_values},"old_values":{mod.old_values}}}'
            for mod in self.mods
        )
        rest = {
            "commit_timestamp": to_text(self.commit, "+00:00"),
            "is_last_record_in_transaction_in_partition": self.is_last,
            "is_system_transaction": self.is_system,
            "mod_type": self.mod_type,
            "number_of_partitions_in_transaction": self.partitions,
            "number_of_records_in_transaction": self.records,
            "record_sequence": f"{self.sequence:08d}",
            "server_transaction_id": self.transaction,
            "table_name": self.table,
            "transaction_tag": self.tag,
            "value_capture_type": self.capture,
        }
        return f'{{"data_change_record":{{"column_types":[{columns}],"mods":[{mods}],{dumped(rest)[1:]}}}'


@attrs.frozen
class Heartbeat:
    """A heartbeat record."""

    moment: int

    def fields(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the three arrays of a `ChangeRecord`."""
        return [], [[to_text(self.moment)]], []

    def value(self) -> Value:
        """Return the row as a value of GoogleSQL."""
        return _row(self)

    def text(self) -> str:
        """Return the row as the JSON text that a PostgreSQL database returns."""
        return dumped({"heartbeat_record": {"timestamp": to_text(self.moment, "+00:00")}})


@attrs.frozen
class Children:
    """A child partitions record.

    Attributes:
        start: The time at which the children begin.
        sequence: The index of this record among the child partitions records of one answer.
        children: Maps the token of each child to the tokens of its parents.
    """

    start: int
    sequence: int
    children: tuple[tuple[str, tuple[str, ...]], ...]

    def fields(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the three arrays of a `ChangeRecord`."""
        children = [[token, list(parents)] for token, parents in self.children]
        return [], [], [[to_text(self.start), f"{self.sequence:08d}", children]]

    def value(self) -> Value:
        """Return the row as a value of GoogleSQL."""
        return _row(self)

    def text(self) -> str:
        """Return the row as the JSON text that a PostgreSQL database returns."""
        told = {
            "start_timestamp": to_text(self.start, "+00:00"),
            "record_sequence": f"{self.sequence:08d}",
            "child_partitions": [
                {"token": token, "parent_partition_tokens": list(parents)} for token, parents in self.children
            ],
        }
        return dumped({"child_partitions_record": told})


Record: TypeAlias = DataChange | Heartbeat | Children


def _row(record: Record) -> Value:
    return to_value([record.fields()])


def _struct(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"code": "STRUCT", "struct_type": {"fields": [{"name": name, "type": of} for name, of in fields]}}


def _array(element: Any) -> dict[str, Any]:
    return {"code": "ARRAY", "array_element_type": element}


def _codes(text: str) -> Iterable[tuple[str, Any]]:
    for piece in text.split():
        name, code = piece.split(":")
        yield name, {"code": code}


CHANGE_RECORD: Final = _array(
    _struct(
        (
            "data_change_record",
            _array(
                _struct(
                    *_codes(
                        "commit_timestamp:TIMESTAMP record_sequence:STRING server_transaction_id:STRING "
                        "is_last_record_in_transaction_in_partition:BOOL table_name:STRING"
                    ),
                    (
                        "column_types",
                        _array(
                            _struct(
                                *_codes("name:STRING type:JSON is_primary_key:BOOL ordinal_position:INT64")
                            )
                        ),
                    ),
                    ("mods", _array(_struct(*_codes("keys:JSON new_values:JSON old_values:JSON")))),
                    *_codes(
                        "mod_type:STRING value_capture_type:STRING number_of_records_in_transaction:INT64 "
                        "number_of_partitions_in_transaction:INT64 transaction_tag:STRING "
                        "is_system_transaction:BOOL"
                    ),
                )
            ),
        ),
        ("heartbeat_record", _array(_struct(*_codes("timestamp:TIMESTAMP")))),
        (
            "child_partitions_record",
            _array(
                _struct(
                    *_codes("start_timestamp:TIMESTAMP record_sequence:STRING"),
                    (
                        "child_partitions",
                        _array(
                            _struct(
                                ("token", {"code": "STRING"}),
                                ("parent_partition_tokens", _array({"code": "STRING"})),
                            )
                        ),
                    ),
                )
            ),
        ),
    )
)
"""The type of the column `ChangeRecord`."""
