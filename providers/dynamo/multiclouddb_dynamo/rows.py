"""Maps the items of a scan to events and to Arrow, and defines positions in a scan. The functions are pure.

The cursor of a plan is `[plan id, s, segments, items in a segment, next segment]`. The cursor of a segment is
`[s, segments, …]`: before the first item, `…` is empty; after the last item, it is `"."`; otherwise it is the
key of the last item that was read. The key contains one text for each attribute, with the letter of its type
and its value. `s` is the snapshot's time in seconds since 1970. The segment's id contains the plan's id and
the segment's number.
"""

from __future__ import annotations

import base64
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import attrs
import orjson

from multiclouddb_api import ChangeEvent, ChangeType, ErrorCategory
from multiclouddb_api.event import trusted_events
from multiclouddb_api.key import trusted_keys
from multiclouddb_dynamo.mapping import View
from multiclouddb_dynamo.position import MOST_SECONDS
from multiclouddb_dynamo.values import decode, decode_map, json_map
from multiclouddb_spi import (
    Cursor,
    InvalidCursor,
    Mapper,
    ProviderFault,
    RecordFault,
    segment_id_of,
    snapshot_event_ids,
    snapshot_id_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FLOOR", "MOST_SEGMENTS", "Item", "Part", "RowMapper", "is_segment", "moment_of"]

FLOOR: Final = "00"
"""The floor of a snapshot.

The `order_key` of every change sorts after the floor, because it begins with the number of its digits, which
is never 0.
"""
MOST_SEGMENTS: Final = 1_000_000
"""The maximum number of segments that the service accepts."""

Item: TypeAlias = Mapping[str, Any]
"""Maps each attribute to its value in typed JSON."""

_Mapped = TypeVar("_Mapped")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_END: Final = "."
_LETTERS: Final = "SNB"
_MOST_DIGITS: Final = 8  # the maximum number of digits of a segment's number
_MOST_TEXT: Final = 4096  # a key has at most 2,048 bytes; base64 makes it longer by a third
# The exceptions that the code below raises for a damaged item.
_DAMAGED: Final = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError)


def moment_of(seconds: int) -> datetime:
    """Return the time of a snapshot."""
    return _EPOCH + timedelta(seconds=seconds)


@attrs.frozen
class Part:
    """A position in a segment of a scan.

    Attributes:
        plan_id: The snapshot's id.
        seconds: The time of the snapshot, in seconds since 1970.
        total: The number of segments.
        segment: The number of this segment.
        key: The last key that was read, in the form of the cursor; empty at the start of the segment.
    """

    plan_id: str
    seconds: int
    total: int
    segment: int
    key: tuple[str, ...] = ()

    @classmethod
    def of(cls, segment_id: str, cursor: Cursor) -> Part:
        """Return the position that a cursor represents.

        Args:
            segment_id: The segment's id.
            cursor: The cursor in this segment.

        Raises:
            InvalidCursor: Raised if the cursor does not belong to a segment.
        """
        plan_id, _, number = segment_id.removeprefix(snapshot_id_of("")).partition(":")
        if is_segment(cursor) and number.isascii() and number.isdecimal() and len(number) < _MOST_DIGITS:
            position: Any = cursor
            seconds, total, *key = position
            if int(number) < total:
                return cls(plan_id, seconds, total, int(number), tuple(key))
        raise InvalidCursor(f"{reprlib.repr(cursor)[:60]} is not a position in a scan")

    @property
    def segment_id(self) -> str:
        """The segment's id."""
        return segment_id_of(self.plan_id, str(self.segment))

    @property
    def cursor(self) -> Cursor:
        """Return the position in the form that a token stores."""
        return [self.seconds, self.total, *self.key]

    @property
    def is_over(self) -> bool:
        """Return True if the position is after the last item of the segment."""
        return self.key == (_END,)

    def at_end(self) -> Part:
        """Return the position after the last item."""
        return attrs.evolve(self, key=(_END,))

    def after(self, item: Item, names: tuple[str, ...]) -> Part:
        """Return the position after an item, or after the item that has the given key.

        Raises:
            ProviderFault: Raised if the item has no key, because the scan cannot continue after an
                item without a key.
        """
        try:
            return attrs.evolve(self, key=tuple(_key_text(item[name]) for name in names))
        except _DAMAGED:
            raise ProviderFault.of(
                ErrorCategory.PROVIDER_ERROR,
                f"an item in {self.text} lacks the table's key; please report this, because no service sends "
                "such an item",
            ) from None

    def start_key(self, names: tuple[str, ...]) -> dict[str, Any] | None:
        """Return the last key that was read, as typed JSON with binary values as bytes.

        Return None at the start of the segment.

        Raises:
            InvalidCursor: Raised if the cursor's key and the table's key differ in their number of
                attributes.
        """
        if not self.key:
            return None
        if len(self.key) != len(names):
            raise InvalidCursor(
                f"its key has {len(self.key)} attributes, but the table's key has {len(names)}"
            )
        return {name: _key_value(text) for name, text in zip(names, self.key, strict=True)}

    @property
    def text(self) -> str:
        """Return a readable text."""
        return f"segment {self.segment + 1} of {self.total} of a scan"


def is_segment(cursor: Cursor) -> bool:
    """Return True if a cursor belongs to a segment and not to a shard."""
    match cursor:
        case [int() as seconds, int() as total, *key]:
            return 0 <= seconds <= MOST_SECONDS and 0 < total <= MOST_SEGMENTS and _is_key(key)
        case _:
            return False


def _is_key(key: list[Any]) -> bool:
    if key == [_END]:
        return True
    return len(key) <= 2 and all(
        type(text) is str and text[:1] in _LETTERS and 1 < len(text) <= _MOST_TEXT for text in key
    )


def _key_text(value: Mapping[str, Any]) -> str:
    (tag,) = value
    raw = value[tag]
    if tag == "B" and type(raw) is bytes:
        raw = base64.b64encode(raw).decode("ascii")
    if tag not in _LETTERS or type(raw) is not str or not raw:
        raise ValueError("not the value of a key")
    return f"{tag}{raw}"


def _key_value(text: str) -> dict[str, Any]:
    tag, raw = text[0], text[1:]
    if tag != "B":
        return {tag: raw}
    try:
        return {tag: base64.b64decode(raw, validate=True)}
    except ValueError as error:
        raise InvalidCursor("its key is not base64") from error


@attrs.frozen
class RowMapper(Mapper):
    """Maps the items of one segment.

    Attributes:
        view: The properties that all events of the segment share.
        part: The position of the items in the scan.
    """

    view: View
    part: Part

    def cursor_after(self, records: Sequence[Item], count: int) -> Cursor:
        """Return the position after the first `count` items."""
        return self.part.after(records[count - 1], self.view.key_names).cursor

    def events(self, records: Sequence[Item], start: int, stop: int) -> list[ChangeEvent]:
        """Map items to events."""
        return self._mapped(records, start, stop, self._events)

    def arrow(self, records: Sequence[Item], start: int, stop: int) -> pa.RecordBatch:
        """Map items to Arrow. Items are converted directly to JSON text, and no events are created."""
        return self._mapped(records, start, stop, self._arrow)

    def _mapped(
        self, records: Sequence[Item], start: int, stop: int, mapped: Callable[[Sequence[Item]], _Mapped]
    ) -> _Mapped:
        try:
            return mapped(records[start:stop])
        except _DAMAGED:
            pass
        for index in range(start, stop):
            try:
                mapped(records[index : index + 1])
            except _DAMAGED as error:
                raise self._fault(records, index, type(error).__name__) from None
        raise self._fault(records, start, "it is not clear which item is damaged")

    def _fault(self, records: Sequence[Item], index: int, reason: str) -> RecordFault:
        where = self.part.after(records[index], self.view.key_names)
        named = ", ".join(
            f"{name} = {text[1:]}" for name, text in zip(self.view.key_names, where.key, strict=True)
        )
        return RecordFault(
            index,
            f"the item with {reprlib.repr(named)[1:-1]} in {where.text}",
            f"it cannot be decoded as an item ({reason})",
            where.cursor,
        )

    def _events(self, items: Sequence[Item]) -> list[ChangeEvent]:
        view, names = self.view, self.view.key_names
        documents: Iterable[Any] = repeat(None)
        if view.with_new:
            documents = found = list(map(decode_map, items))
            components = [{name: document[name] for name in names} for document in found]
        else:
            components = [{name: decode(item[name]) for name in names} for item in items]
        columns: list[Iterable[Any]] = [
            self._event_ids(components),
            trusted_keys(components),
            repeat(ChangeType.CREATE),
            repeat(moment_of(self.part.seconds)),
            documents,
            repeat(None),
            repeat(FLOOR),
            repeat(False),
            repeat(True),
            repeat(view.address),
            repeat(view.partition_id),
            items if view.native else repeat(None),
        ]
        return trusted_events(len(items), columns)

    def _event_ids(self, components: Sequence[dict[str, Any]]) -> list[str]:
        names = self.view.key_names
        columns = [[each[name] for each in components] for name in names]
        return snapshot_event_ids(self.part.plan_id, names, columns)

    def _arrow(self, items: Sequence[Item]) -> pa.RecordBatch:
        import pyarrow as pa

        from multiclouddb_spi.arrow import EVENT_SCHEMA

        view, names, count, text = self.view, self.view.key_names, len(items), pa.string()
        components = [{name: decode(item[name]) for name in names} for item in items]
        columns = [
            pa.array(self._event_ids(components), text),
            pa.repeat(pa.scalar(ChangeType.CREATE.value, text), count),
            pa.array([_json_text({name: item[name] for name in names}) for item in items], text),
            pa.repeat(pa.scalar(moment_of(self.part.seconds), pa.timestamp("us", tz="UTC")), count),
            pa.array(map(_json_text, items), text) if view.with_new else pa.nulls(count, text),
            pa.nulls(count, text),
            pa.repeat(pa.scalar(FLOOR, text), count),
            pa.repeat(pa.scalar(False), count),
            pa.repeat(pa.scalar(True), count),
            *(
                pa.repeat(pa.scalar(value, text), count)
                for value in (view.address.database, view.address.collection, view.partition_id)
            ),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)


def _json_text(attributes: Item) -> bytes:
    return orjson.dumps(json_map(attributes))
