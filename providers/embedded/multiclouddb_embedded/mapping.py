"""Maps rows of the log to events, to Arrow and to positions. The functions are pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import orjson
from attrs import frozen

from multiclouddb_api import ChangeType, MulticloudDbError, decode_json
from multiclouddb_api.key import MulticloudDbKey, trusted_keys
from multiclouddb_spi import ColumnMapper, Columns, Cursor, InvalidCursor, Position, RecordFault, reason_of
from multiclouddb_spi import View as CommonView
from multiclouddb_spi.computed_once import computed_once

if TYPE_CHECKING:
    import pyarrow as pa

SEPARATOR: Final = "\x1e"
"""The character between the rows in a column of JSON texts.

The texts contain this character only in escaped form.
"""

ORDER_DIGITS: Final = 19
"""The number of digits in the highest possible sequence number. If numbers are padded to this length, their
texts sort like the numbers."""

Column: TypeAlias = Literal["keys", "docs", "olds"]


class Records:
    """Rows of one partition, stored by column."""

    # Numbers are parsed only when they are needed.

    def __init__(
        self,
        count: int,
        seqs: str,
        times: str,
        types: str,
        keys: bytes,
        docs: bytes | None,
        olds: bytes | None,
    ) -> None:
        self.count = count
        self.seqs_text, self.times_text, self.types_text = seqs, times, types
        self.keys, self.docs, self.olds = keys, docs, olds
        self._texts: dict[Column, list[bytes]] = {}
        self.arrow: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return self.count

    @computed_once
    def seqs(self) -> list[int]:
        return _numbers(self.seqs_text)

    @computed_once
    def orders(self) -> list[str]:
        """Return the sequence numbers as texts that sort like the numbers."""
        first, last = self.seqs_text.partition(",")[0], self.seqs_text.rpartition(",")[2]
        if len(first) < len(last):
            return [text.zfill(ORDER_DIGITS) for text in self.seqs_text.split(",")]
        zeros = "0" * (ORDER_DIGITS - len(first))  # the numbers ascend, so all texts have the same length
        return (zeros + self.seqs_text.replace(",", f",{zeros}")).split(",")

    @computed_once
    def times(self) -> list[int]:
        """Return the commit times in microseconds since 1970."""
        return _numbers(self.times_text)

    @computed_once
    def types(self) -> list[int]:
        """Return the numbers of the change types."""
        return _numbers(self.types_text)

    @property
    def nbytes(self) -> int:
        """Return the approximate memory that the rows occupy, including Python objects for numbers."""
        return len(self.keys) + len(self.docs or b"") + len(self.olds or b"") + 128 * self.count

    def column(self, name: Column) -> bytes | None:
        """Return a column of JSON texts, or None if the column was not read."""
        text: bytes | None = getattr(self, name)
        return text

    def texts(self, name: Column, start: int, stop: int) -> list[bytes]:
        """Return the JSON texts of the rows from `start` to `stop`, for a column that was read."""
        texts = self._texts.get(name)
        if texts is None:
            texts = (self.column(name) or b"").split(SEPARATOR.encode())
            if len(texts) != self.count:
                raise ValueError("a row contains a control character")
            self._texts[name] = texts
        return texts[start:stop]

    def select(self, indexes: Iterable[int]) -> Records:
        chosen = list(indexes)

        def numbers(values: list[int]) -> str:
            return ",".join([str(values[index]) for index in chosen])

        def picked(name: Column) -> bytes | None:
            if self.column(name) is None:
                return None
            texts = self.texts(name, 0, self.count)
            return SEPARATOR.encode().join([texts[index] for index in chosen])

        return Records(
            len(chosen), numbers(self.seqs), numbers(self.times), numbers(self.types),
            picked("keys") or b"", picked("docs"), picked("olds"),
        )  # fmt: skip


def _numbers(text: str) -> list[int]:
    values: list[int] = orjson.loads(f"[{text}]")
    return values


CHANGE_TYPES: Final = (ChangeType.CREATE, ChangeType.UPDATE, ChangeType.DELETE)
"""The change types, indexed by their number in the log."""

_KINDS: Final = dict(enumerate(CHANGE_TYPES))
_SEPARATOR: Final = SEPARATOR.encode()
_TAGGED: Final = b'"$'
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MAX_MICROS: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_MAX_SEQ: Final = 2**63 - 1


def from_micros(micros: int) -> datetime:
    """Convert microseconds since 1970 to an aware datetime."""
    return _EPOCH + timedelta(0, 0, micros)


def to_micros(moment: datetime) -> int:
    """Convert an aware datetime to microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def cursor_of(seq: int, ts: int) -> Cursor:
    """Return the position after change `seq`; no change after this position was committed before `ts`."""
    return [seq, ts]


def position_of(cursor: Cursor) -> tuple[int, int]:
    """Convert a stored position back to its parts; the inverse of `cursor_of`."""
    match cursor:
        case [seq, ts] if type(seq) is int and type(ts) is int:
            if 0 <= seq <= _MAX_SEQ and 0 <= ts <= _MAX_MICROS:
                return seq, ts
    raise InvalidCursor(f"{str(cursor)[:60]} is not a sequence number and a time")


def describe(cursor: Cursor) -> Position:
    """Return a cursor as readable text."""
    seq, ts = position_of(cursor)
    return Position(f"sequence {seq}", from_micros(ts))


@frozen
class EmbeddedView(CommonView):
    """What all events of one partition share."""

    partition_components: int  # the number of leading components of a key that form the partition key


def _timestamps(times: Iterable[int]) -> list[datetime]:
    """Convert commit times. The changes of a transaction share one time object."""
    epoch, delta, previous, moment = _EPOCH, timedelta, 0, _EPOCH
    moments = []
    for ts in times:
        if ts != previous:
            moment, previous = epoch + delta(0, 0, ts), ts
        moments.append(moment)
    return moments


def _values(records: Records, name: Column, start: int, stop: int) -> Sequence[Any]:
    # If the column was not read, all values are None.
    column = records.column(name)
    if column is None:
        return [None] * (stop - start)
    if stop - start != records.count:
        column = _SEPARATOR.join(records.texts(name, start, stop))
    values: list[Any] = orjson.loads(b"[%b]" % column.replace(_SEPARATOR, b","))
    if len(values) != stop - start:
        raise ValueError("the number of values is not the number of rows")
    if b"$" in column and _TAGGED in column:  # searching for a single byte is much faster
        for index, text in enumerate(records.texts(name, start, stop)):
            if _TAGGED in text:
                values[index] = decode_json(text)
    if not {dict, type(None)}.issuperset(map(type, values)) or (name == "keys" and not all(values)):
        raise ValueError("not one JSON object per row, or an empty key")
    return values


def _natives(records: Records, start: int, stop: int) -> list[dict[str, Any]]:
    """Return each row as a dict, with the texts as SQLite stores them."""

    def texts(name: Column) -> Iterable[str | None]:
        if records.column(name) is None:
            return repeat(None, stop - start)
        return [None if text == b"null" else text.decode() for text in records.texts(name, start, stop)]

    numbers = (records.seqs[start:stop], records.times[start:stop], records.types[start:stop])
    columns = zip(*numbers, texts("keys"), texts("docs"), texts("olds"), strict=True)
    return [dict(zip(("seq", "ts", "type", "key", "doc", "old"), row, strict=True)) for row in columns]


def _split(text: str | bytes, separator: str, count: int) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = pc.list_flatten(pc.split_pattern(pa.array([text], pa.string()), separator))
    if len(parts) != count:
        raise ValueError("a row contains a control character")
    return parts


def _texts(records: Records, name: Column) -> Any:
    """Return a column of JSON objects or nulls: an Arrow array, or `repeat` if it was not read."""
    import pyarrow.compute as pc

    column = records.column(name)
    if column is None:
        return repeat(None)
    texts = _split(column, SEPARATOR, len(records))
    objects = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    if pc.all(objects).as_py():
        return texts
    nulls = pc.equal(texts, "null")
    if name == "keys" or not pc.all(pc.or_(objects, nulls)).as_py():
        raise ValueError("not one JSON object per row")
    return pc.if_else(nulls, None, texts)


def _flaw(records: Records, index: int) -> str | None:
    """Describe the problem of one row, without the row's content."""
    names: Sequence[tuple[Column, str]] = (("keys", "key"), ("docs", "document"), ("olds", "old document"))
    for name, title in names:
        try:
            tuple(_values(records, name, index, index + 1)) if records.column(name) is not None else ()
        except (ValueError, MulticloudDbError):
            return f"its {title} is not the JSON object that was stored"
    if not 0 <= records.types[index] < len(CHANGE_TYPES):
        return f"it has the unknown type {records.types[index]}"
    if not 0 <= records.times[index] <= _MAX_MICROS:
        return f"it has the impossible time {records.times[index]}"
    return None


@frozen(eq=False, repr=False)
class EmbeddedMapper(ColumnMapper):
    """Maps the rows of one partition."""

    view: EmbeddedView  # what all events of the partition share

    def cursor_after(self, records: Records, count: int) -> Cursor:
        return cursor_of(records.seqs[count - 1], records.times[count - 1])

    def arrow(self, records: Records, start: int, stop: int) -> pa.RecordBatch | None:
        """Map rows to Arrow; the parts of a batch are cut from one, which is faster than making each."""
        whole = records.arrow
        if whole is None and 0 < stop - start < records.count:
            with suppress(RecordFault):  # the damaged row may lie outside the part
                whole = records.arrow = super().arrow(records, 0, records.count)
        return super().arrow(records, start, stop) if whole is None else whole.slice(start, stop - start)

    def columns(self, records: Records, start: int, stop: int, *, texts: bool) -> Columns:
        if texts:
            return _text_columns(
                records if stop - start == len(records) else records.select(range(start, stop))
            )
        # Rows are mapped by column, and in C if possible, because mapping accounts for most of the reading
        # time.
        orders = records.orders[start:stop]
        return Columns(
            orders,
            trusted_keys(_values(records, "keys", start, stop), self.view.partition_components),
            map(_KINDS.__getitem__, records.types[start:stop]),
            _timestamps(records.times[start:stop]),
            orders,
            _values(records, "docs", start, stop),
            _values(records, "olds", start, stop),
            natives=_natives(records, start, stop) if self.view.native else repeat(None),
        )

    def fault(self, records: Records, index: int, error: Exception | None) -> RecordFault:
        seq, ts = records.seqs[index], records.times[index]
        reason = _flaw(records, index) or f"it cannot be decoded ({reason_of(error)})"
        where = self.named(f"sequence {seq}", lambda: self._key(records, index))
        return RecordFault(index, where, reason, cursor_of(seq, min(max(ts, 0), _MAX_MICROS)))

    def _key(self, records: Records, index: int) -> MulticloudDbKey:
        (components,) = _values(records, "keys", index, index + 1)
        return MulticloudDbKey(components, self.view.partition_components)


def _text_columns(records: Records) -> Columns:
    """Return Arrow columns of all rows, without parsing the documents."""
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(records)
    if not count:
        return Columns([], [], [], [], [])
    order = pc.utf8_lpad(_split(records.seqs_text, ",", count), ORDER_DIGITS, "0")
    times = _split(records.times_text, ",", count).cast(pa.int64())
    if not 0 <= pc.min(times).as_py() <= pc.max(times).as_py() <= _MAX_MICROS:
        raise ValueError("a time is out of range")
    types = pa.array([kind.value for kind in CHANGE_TYPES])
    return Columns(
        order,
        _texts(records, "keys"),
        types.take(_split(records.types_text, ",", count).cast(pa.int8())),
        times.cast(pa.timestamp("us", tz="UTC")),
        order,
        _texts(records, "docs"),
        _texts(records, "olds"),
    )
