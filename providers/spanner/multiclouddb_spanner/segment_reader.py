"""Reads the rows of one segment of a snapshot, and maps them to events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, TypeAlias

import attrs
from attrs import frozen
from google.cloud.spanner_v1 import PartialResultSet, TypeCode

from multiclouddb_api import ChangeEvent, LookupAnswer, MulticloudDbKey, encode_json
from multiclouddb_api.key import trusted_keys
from multiclouddb_spanner.catalog import ChangeStreamInfo
from multiclouddb_spanner.client import CancelScope, QueryResult
from multiclouddb_spanner.errors import is_broken, is_lost_version
from multiclouddb_spanner.mapping import SpannerView
from multiclouddb_spanner.position import micros, moment_of
from multiclouddb_spanner.records import Shape, plain_value, shape_of, values_of
from multiclouddb_spanner.snapshots import Scans, check_keys, key_text, keys_read, range_read
from multiclouddb_spanner.values import integers, key_part, key_value, normal
from multiclouddb_spi import (
    DAMAGED,
    AnsweredRows,
    Batch,
    Continue,
    Cursor,
    Deadline,
    Outcome,
    Reader,
    RecordFault,
    RowMapper,
    Rows,
    Scanned,
    Segment,
    canonical_texts,
    check_components,
    look_up,
    looked_up,
)
from multiclouddb_spi.faults import key_digest
from multiclouddb_spi.time_limits import answer_deadline

Row: TypeAlias = Sequence[Any]
"""A row: its values in protobuf, in the order of the columns, with the key columns first."""


@frozen(eq=False)
class _Rows:
    """Some rows, in one list of values, row after row; a list for each row would take longer."""

    values: list[Any]
    width: int

    def __len__(self) -> int:
        return len(self.values) // self.width

    def row(self, index: int) -> Row:
        return self.values[index * self.width : (index + 1) * self.width]

    def last_key(self, view: SpannerView) -> str:
        return key_text(self.row(len(self) - 1)[: len(view.key_names)])

    def part(self, start: int, stop: int) -> _Rows:
        return _Rows(self.values[start * self.width : stop * self.width], self.width)


_MOST_KEYS: Final = 500
_VALUE_BYTES: Final = 64
# Divided by four, this is the number of rows to read after a connection has broken within an answer.
_FIRST_LIMIT: Final = 2048
_SPARE_SECONDS: Final = 0.25
_TEXTS: Final = frozenset(
    {"BYTES", "DATE", "ENUM", "INT64", "INTERVAL", "JSON", "NUMERIC", "PROTO", "STRING", "TIMESTAMP", "UUID"}
)
_TEXT: Final = attrgetter("string_value")


_NO_ROWS: Final = _Rows([], 1)


@frozen(eq=False)
class _Fields:
    """The columns of an answer to a read."""

    shape: Shape
    codes: tuple[str, ...]

    @classmethod
    def of(cls, fields: Iterable[Any]) -> _Fields:
        kinds = [(field.name, _kind(field.type_)) for field in fields]
        return cls(shape_of(kinds), tuple(kind["code"] for _, kind in kinds))

    def values(self, rows: _Rows) -> list[list[Any]]:
        return [self._converted(index, rows.values[index :: rows.width]) for index in range(rows.width)]

    def _converted(self, index: int, column: Sequence[Any]) -> list[Any]:
        if self.codes[index] in _TEXTS:
            found: list[Any] = list(map(_TEXT, column))
            if "" in found:
                found = [
                    text or (None if of.HasField("null_value") else "")
                    for text, of in zip(found, column, strict=True)
                ]
            elif self.codes[index] == "INT64":
                return integers(found)
        else:
            found = [plain_value(value) for value in column]
        convert: Callable[[Any], Any] | None = self.shape.python.get(self.shape.names[index])
        if convert is None:
            return found
        return [None if value is None else convert(value) for value in found]


def _kind(type_: Any) -> dict[str, Any]:
    """Return a type in the form of a change record."""
    code = TypeCode(type_.code).name
    if code == "ARRAY":
        return {"code": code, "array_element_type": _kind(type_.array_element_type)}
    return {"code": code}


@frozen(eq=False)
class _Mapper(RowMapper):
    """Maps rows that were all read at the same timestamp."""

    view: SpannerView
    segment: Segment
    fields: _Fields

    def rows(self, records: _Rows, start: int, stop: int, *, texts: bool) -> Rows | None:
        if texts:
            return None
        view, shape, part = self.view, self.fields.shape, records.part(start, stop)
        if shape.problem is not None:
            raise ValueError(shape.problem)
        values = self.fields.values(part)
        forms = [shape.keys.get(name) for name in view.key_names]
        keys = [
            column if form is None else [normal(value, form) for value in column]
            for column, form in zip(values, forms, strict=False)
        ]
        found = [dict(zip(view.key_names, key, strict=True)) for key in zip(*keys, strict=True)]
        documents: Iterable[Any] = repeat(None)
        if view.with_new and view.whole:
            documents = [dict(zip(shape.names, row, strict=True)) for row in zip(*values, strict=True)]
        natives: Iterable[Any] = repeat(None)
        if view.native:
            plain = (map(plain_value, part.row(at)) for at in range(len(part)))
            natives = [dict(zip(shape.names, row, strict=True)) for row in plain]
        return Rows(trusted_keys(found), documents, canonical_texts(view.key_names, keys), natives=natives)

    def readable(self, records: _Rows) -> tuple[list[ChangeEvent], list[MulticloudDbKey | None]]:
        """Return the events of the rows that can be read, and the keys of the others."""
        try:
            return self.events(records, 0, len(records)), []
        except RecordFault:
            pass
        events, unread = list[ChangeEvent](), list[MulticloudDbKey | None]()
        for index in range(len(records)):
            try:
                events += self.events(records, index, index + 1)
            except RecordFault:
                unread.append(self._key_of(records, index))
        return events, unread

    def place_after(self, records: _Rows, count: int) -> str:
        return records.part(count - 1, count).last_key(self.view)

    def name_of(self, records: _Rows, index: int) -> str:
        key = self._key_of(records, index)
        if key is None:
            return super().name_of(records, index)
        return f"the row with the key {key_digest(encode_json(key.components).decode())}"

    def _key_of(self, records: _Rows, index: int) -> MulticloudDbKey | None:
        """Return the key of a row that cannot be read, if its key columns can."""
        width, forms = len(self.view.key_names), self.fields.shape.keys
        try:
            values = self.fields.values(_Rows(list(records.row(index)[:width]), width))
            return MulticloudDbKey(
                {
                    name: normal(value, forms.get(name))
                    for name, (value,) in zip(self.view.key_names, values, strict=True)
                }
            )
        except DAMAGED:
            return None

    def why(self, error: Exception | None) -> str:
        return self.fields.shape.problem or super().why(error)


class SegmentReader(Reader):
    """Reads one segment forward with one read of its key range, which stays open between fetches."""

    def __init__(self, scans: Scans, view: SpannerView, segment: Segment) -> None:
        check_keys(segment.after, segment.last)
        self._scans, self._source = scans, scans.source
        self._view, self._segment = view, segment
        self._began = self._at = micros(segment.scan.moment)  # the time at which rows are read may be later
        self._table: ChangeStreamInfo | None = None
        self._scope = CancelScope()
        self._outcome: Outcome = Continue()
        # The state of the answer: the received rows, the number of taken rows, their size, and the last key.
        self._answer: QueryResult | None = None
        self._messages: Iterator[_Rows] = iter(())
        self._kept = False
        self._mapper = _Mapper(view, segment, _Fields.of(()))
        self._rows = _NO_ROWS
        self._used = 0
        self._size = 1
        self._received = segment.after
        self._limit = self._arrived = 0
        self._bytes = 0
        self._requests = 0
        self._looked = False

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        self._scope.check()
        deadline = answer_deadline(deadline)
        begin = self._segment.cursor
        taken: list[Any] = []
        nbytes, self._requests = 0, 0
        if isinstance(self._outcome, Scanned):
            return self._batch(begin, taken, 0)
        try:
            nbytes = self._take(taken, max_records, max_bytes, deadline) if self._look(deadline) else 0
        except Exception as error:
            if self._answer is not None and is_broken(error):
                self._source.row_limits.broke(self._view.partition_id, self._limit or _FIRST_LIMIT)
            self._end_answer()
            if not taken:
                scope = self._scope.at(deadline)
                if is_lost_version(error):
                    # Read at a later time. This is correct, because the stream also delivers the changes
                    # since the snapshot.
                    self._at = self._scans.later(self._at, scope)
                elif self._scans.is_gone(self._table, error, scope):
                    self._outcome = Scanned()
                else:
                    raise
        if self._answer is not None and not self._kept:  # it stays open if a slot is free
            self._kept = self._source.slots.acquire(blocking=False)
            if not self._kept:
                self._end_answer()
        return self._batch(begin, taken, nbytes)

    def cancel(self) -> None:
        self._scope.cancel()

    def close(self) -> None:
        self._end_answer()

    def _look(self, deadline: Deadline) -> bool:
        """Check that the table and the stream are still those of the snapshot; False if nothing is left."""
        scope = self._scope.at(deadline)
        checked = self._scans.check(self._began, scope, lately=self._looked)
        self._looked = True
        self._table = found = self._scans.table(self._segment, self._at, checked, scope)
        if found is None:
            self._end_answer()
            self._outcome = Scanned()
            return False
        shown = attrs.evolve(self._view, key_names=found.key_names, whole=found.whole)
        if shown != self._view:
            self._end_answer()
            self._rows, self._used, self._received = _NO_ROWS, 0, self._segment.after
            self._view = shown
        return True

    # -- The answer

    def _begin(self, deadline: Deadline) -> None:
        view, scans, info = self._view, self._scans, self._table
        assert info is not None
        whole = view.whole and (view.with_new or view.native)
        names = scans.columns(info, self._at, whole=whole, scope=self._scope.at(deadline))
        self._requests += 1
        self._limit, self._arrived = self._source.row_limits.of(view.partition_id) or 0, 0
        request = range_read(info.table, names, self._received, self._segment.last, self._at, self._limit)
        self._answer = self._source.client.read(request, self._scope.at(deadline))
        messages, width = self._metered(self._answer), len(names)
        self._messages = (_Rows(values, width) for values in values_of(messages, width))

    def _metered(self, answer: QueryResult) -> Iterator[PartialResultSet]:
        for number, message in enumerate(answer):
            raw = PartialResultSet.pb(message)
            if number == 0:
                self._mapper = _Mapper(self._view, self._segment, _Fields.of(raw.metadata.row_type.fields))
            self._bytes += raw.ByteSize() + _VALUE_BYTES * len(raw.values)
            yield message

    def _end_answer(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.cancel()
        if self._kept:
            self._kept = False
            self._source.slots.release()

    def _take(self, taken: list[Any], max_records: int, max_bytes: int, deadline: Deadline) -> int:
        """Take the values of as many rows as the limits allow, and return their total size."""
        nbytes = number = 0
        while True:
            left = len(self._rows) - self._used
            fitting = max(0 if number else 1, (max_bytes - nbytes) // self._size)
            count = min(left, max_records - number, fitting)
            taken += self._rows.part(self._used, self._used + count).values
            self._used += count
            number += count
            nbytes += count * self._size
            if count < left or number >= max_records or nbytes >= max_bytes:
                return nbytes
            rows = self._receive(deadline)
            if rows is None:
                self._end_answer()
                self._outcome = Scanned()
                return nbytes

    def _receive(self, deadline: Deadline) -> _Rows | None:
        """Wait for the next message. Return None after the last message."""
        answer = self._answer
        if answer is not None and (
            answer.expires > deadline.at or answer.expires - time.monotonic() < _SPARE_SECONDS
        ):
            self._end_answer()
        while True:
            if self._answer is None:
                if self._received and self._received == self._segment.last:
                    return None
                self._begin(deadline)
            rows = next(self._messages, None)
            if rows is not None:
                self._arrived += len(rows)
                break
            self._source.row_limits.arrived(self._view.partition_id)
            if not self._limit or self._arrived < self._limit:
                break
            self._end_answer()
        self._scope.check()
        if rows is not None and len(rows):
            self._size, self._bytes = max(1, self._bytes // len(rows)), 0
            self._rows, self._used = rows, 0
            self._received = rows.last_key(self._view)
        return rows

    def _batch(self, begin: Cursor, taken: list[Any], nbytes: int) -> Batch:
        rows = _Rows(taken, self._rows.width)
        if taken:
            self._segment = self._segment.at(rows.last_key(self._view))
        return Batch(
            rows,
            self._mapper,
            begin,
            self._segment.cursor,
            self._outcome,
            nbytes,
            caught_up=isinstance(self._outcome, Scanned),
            requests=self._requests,
        )


def look_up_rows(
    scans: Scans, view: SpannerView, keys: Sequence[MulticloudDbKey], deadline: Deadline
) -> dict[MulticloudDbKey, LookupAnswer]:
    """Return the rows of some of the keys, as of one moment after the call began."""
    scope, client, info = CancelScope(answer_deadline(deadline)), scans.source.client, scans.source.info

    def normal_key(key: MulticloudDbKey) -> MulticloudDbKey:
        check_components(key, view.key_names)
        parts = zip(key.components.items(), info.key_types, strict=True)
        return MulticloudDbKey({name: key_value(name, kind, value) for (name, value), kind in parts})

    def ask(asked: list[MulticloudDbKey]) -> AnsweredRows:
        wanted = [[key_part(name, value) for name, value in key.components.items()] for key in asked]
        at = client.now(scope)
        shown = attrs.evolve(view, whole=scans.check(at, scope, lately=True).whole)
        whole = shown.whole and (view.with_new or view.native)
        names, segment = scans.columns(info, at, whole=whole, scope=scope), looked_up(moment_of(at))
        answer = client.read(keys_read(info.table, names, wanted, at), scope)
        fields, events, unread = list[_Fields](), list[ChangeEvent](), list[MulticloudDbKey | None]()

        def messages() -> Iterator[PartialResultSet]:
            for message in answer:
                if not fields:
                    fields.append(_Fields.of(PartialResultSet.pb(message).metadata.row_type.fields))
                yield message

        try:
            for values in values_of(messages(), len(names)):
                rows, others = _Mapper(shown, segment, fields[0]).readable(_Rows(values, len(names)))
                events += rows
                unread += others
        finally:
            answer.cancel()
        return AnsweredRows(events, unread=unread)

    return look_up(keys, _MOST_KEYS, normal_key, ask)
