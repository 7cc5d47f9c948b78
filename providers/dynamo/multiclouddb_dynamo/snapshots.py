"""Scans a table for `Snapshot()`: the plan, its segments, and the reader of one segment."""

from __future__ import annotations

import base64
import reprlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, Final, TypeAlias, TypeVar

import attrs
import orjson
from attrs import frozen
from botocore.exceptions import ClientError, ParamValidationError

from multiclouddb_api import ChangeType, ErrorCategory, LookupAnswer, MulticloudDbKey
from multiclouddb_api.key import trusted_keys
from multiclouddb_dynamo.catalog import replaced
from multiclouddb_dynamo.client import RECORD_BYTES, Calls, Table, memory_of
from multiclouddb_dynamo.errors import GONE, ITS_OPERATOR, REJECTED, code_of
from multiclouddb_dynamo.mapping import View, json_text, key_text
from multiclouddb_dynamo.position import MOST_SECONDS, moment_of
from multiclouddb_dynamo.source import Source
from multiclouddb_dynamo.values import decode_map, encode_key, key_value
from multiclouddb_spi import (
    DAMAGED,
    Batch,
    ColumnMapper,
    Columns,
    Continue,
    Cursor,
    Deadline,
    InvalidCursor,
    Outcome,
    ProviderFault,
    Reader,
    RecordFault,
    Scanned,
    ScanPlan,
    Seed,
    Segment,
    cancelled,
    reason_of,
    segment_id_of,
    snapshot_event_ids,
    snapshot_id_of,
)
from multiclouddb_spi.abilities import LOOKUP_PLAN, answers_of, check_components
from multiclouddb_spi.faults import key_digest

FLOOR: Final = "00"
"""The floor of a snapshot: every `order_key` sorts after it, because no change's number of digits is 0."""
MOST_SEGMENTS: Final = 1_000_000  # the maximum number of segments that the service accepts

T = TypeVar("T")
Item: TypeAlias = Mapping[str, Any]  # maps each attribute to its value in typed JSON

_END: Final = "."
_LETTERS: Final = "SNB"
_MOST_KEYS: Final = 100  # of one BatchGetItem call
_MOST_DIGITS: Final = 8  # the maximum number of digits of a segment's number
_MOST_TEXT: Final = 4096  # a key has at most 2,048 bytes; base64 makes it longer by a third


@frozen
class Part:
    """A position in a segment of a scan."""

    plan_id: str
    seconds: int
    total: int
    segment: int
    key: tuple[str, ...] = ()

    @classmethod
    def of(cls, segment_id: str, cursor: Cursor) -> Part:
        plan_id, _, number = segment_id.removeprefix(snapshot_id_of("")).partition(":")
        if is_segment(cursor) and number.isascii() and number.isdecimal() and len(number) < _MOST_DIGITS:
            position: Any = cursor
            seconds, total, *key = position
            if int(number) < total:
                return cls(plan_id, seconds, total, int(number), tuple(key))
        raise InvalidCursor(f"{reprlib.repr(cursor)[:60]} is not a position in a scan")

    @property
    def segment_id(self) -> str:
        return segment_id_of(self.plan_id, str(self.segment))

    @property
    def cursor(self) -> Cursor:
        return [self.seconds, self.total, *self.key]

    @property
    def is_over(self) -> bool:
        return self.key == (_END,)

    def after(self, item: Item, names: tuple[str, ...]) -> Part:
        """Return the position after an item, or after the item that has the given key."""
        try:
            return attrs.evolve(self, key=tuple(_key_text(item[name]) for name in names))
        except DAMAGED:
            raise ProviderFault.of(
                ErrorCategory.PROVIDER_ERROR,
                f"an item in {self.text} lacks the table's key; please report this, because no service sends "
                "such an item",
            ) from None

    def start_key(self, names: tuple[str, ...]) -> dict[str, Any] | None:
        """Return the last key that was read, as typed JSON with binary values as bytes."""
        if not self.key:
            return None
        if len(self.key) != len(names):
            raise InvalidCursor(
                f"its key has {len(self.key)} attributes, but the table's key has {len(names)}"
            )
        return {name: _key_value(text) for name, text in zip(names, self.key, strict=True)}

    @property
    def text(self) -> str:
        return f"segment {self.segment + 1} of {self.total} of a scan"


def is_segment(cursor: Cursor) -> bool:
    """Return True if a cursor belongs to a segment and not to a shard."""
    match cursor:
        case [int() as seconds, int() as total, *key] if 0 <= seconds <= MOST_SECONDS:
            named = len(key) <= 2 and all(
                type(text) is str and text[:1] in _LETTERS and 1 < len(text) <= _MOST_TEXT for text in key
            )
            return 0 < total <= MOST_SEGMENTS and (named or key == [_END])
        case _:
            return False


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


@frozen
class RowMapper(ColumnMapper):
    """Maps the items of one segment."""

    view: View
    part: Part

    def cursor_after(self, records: Sequence[Item], count: int) -> Cursor:
        return self.part.after(records[count - 1], self.view.key_names).cursor

    def columns(self, records: Sequence[Item], start: int, stop: int, *, texts: bool) -> Columns:
        view, names, items = self.view, self.view.key_names, records[start:stop]
        keys = [{name: key_value(item[name]) for name in names} for item in items]
        parts = [[each[name] for each in keys] for name in names]
        document: Callable[[Any], Any] = json_text if texts else decode_map
        return Columns(
            snapshot_event_ids(self.part.plan_id, names, parts),
            [key_text(item, names) for item in items] if texts else trusted_keys(keys),
            repeat(ChangeType.CREATE),
            repeat(moment_of(self.part.seconds)),
            repeat(FLOOR),
            list(map(document, items)) if view.with_new else repeat(None),
            backfilled=repeat(True),
            natives=items if view.native else repeat(None),
        )

    def fault(self, records: Sequence[Item], index: int, error: Exception | None) -> RecordFault:
        where = self.part.after(records[index], self.view.key_names)
        try:
            key = key_text(records[index], self.view.key_names).decode()
        except DAMAGED:
            key = orjson.dumps(where.key).decode()
        return RecordFault(
            index,
            f"the item with the key {key_digest(key)} in {where.text}",
            f"it cannot be decoded as an item ({reason_of(error)})",
            where.cursor,
        )


# A segment of this size is read in about a minute. If a Spark task fails, its segment is read again.
_SEGMENT_BYTES: Final = 256 << 20
_LEAST_SEGMENTS: Final = 8  # this many segments are read at a time
_USUAL_SEGMENTS: Final = 32_000


class SameTable:
    """Checks that a table is still the table of a feed. Several threads can share one object."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._proved_at = -1.0

    def check(self) -> None:
        """Check that the table is still the same; a check that another thread began later counts too."""
        since = time.monotonic()
        with self._lock:
            if self._proved_at >= since:
                return
            began = time.monotonic()
            fault = replaced(self._source.calls, self._source.spec.address, self._source.arn)
            if fault is not None:
                raise fault
            self._proved_at = began

    def checked(self, ask: Callable[[], T]) -> T:
        """Read items, and check afterwards that they are those of the feed's table."""
        source = self._source
        try:
            answer = ask()
        except (ClientError, ParamValidationError) as error:
            # Another table with the same name may have a different key, and it cannot be read while it is
            # being created.
            if code_of(error) in GONE | REJECTED:
                fault = replaced(source.calls, source.spec.address, source.arn)
                if fault is not None:
                    raise fault from error
            raise
        self.check()
        return answer


def look_up(
    source: Source, same: SameTable, view: View, keys: Sequence[MulticloudDbKey]
) -> dict[MulticloudDbKey, LookupAnswer]:
    """Return the items of some of the keys, with one `BatchGetItem` call."""
    normal, wanted = dict[MulticloudDbKey, MulticloudDbKey](), dict[MulticloudDbKey, Item]()
    for key in keys[:_MOST_KEYS]:
        check_components(key, view.key_names)
        encoded = {name: encode_key(name, key[name]) for name in view.key_names}
        normal[key] = _key_of(encoded, view)
        wanted[normal[key]] = encoded  # the service refuses a call with equal keys
    name = str(source.spec.address.collection)
    items, unprocessed = same.checked(lambda: source.calls.items(name, list(wanted.values())))
    left = {_key_of(each, view) for each in unprocessed}
    if wanted.keys() == left:
        raise ProviderFault.of(
            ErrorCategory.THROTTLED,
            "the table's read capacity does not suffice for the keys; raise it, or look up fewer keys",
            retryable=True,
        )
    part = Part(LOOKUP_PLAN, source.seconds() or 0, 1, 0)
    rows = RowMapper(view, part).events(items, 0, len(items))
    return answers_of([key for key, each in normal.items() if each not in left], rows, normal.__getitem__)


def _key_of(item: Item, view: View) -> MulticloudDbKey:
    """Return the key of an item in its normal form."""
    return MulticloudDbKey({name: key_value(item[name]) for name in view.key_names})


def segments_of(wanted: int | None, table: Table) -> int:
    """Return the number of segments for a scan."""
    if wanted is None:
        wanted = min(max(-(-table.nbytes // _SEGMENT_BYTES), _LEAST_SEGMENTS), _USUAL_SEGMENTS)
    return min(wanted, MOST_SEGMENTS)


def plan_scan(source: Source, seeds: list[Seed], wanted: int | None) -> ScanPlan:
    """Plan a scan, and read one item to find out early whether the identity may scan the table."""
    _scan(source.calls, str(source.spec.address.collection), Part("", 0, 1, 0), source.table, 1)
    seconds = source.seconds()
    if seconds is None:  # the service gives no time; nothing depends on the time of a row
        seconds = int(datetime.now(UTC).timestamp())
    total, items = segments_of(wanted, source.table), source.table.items
    plan_id = secrets.token_hex(6)
    cursor: Cursor = [plan_id, seconds, total, items // total, 0]
    return ScanPlan(plan_id, cursor, tuple(seeds), FLOOR, moment_of(seconds), total, items or None)


def cut(cursor: Cursor, count: int) -> tuple[list[Segment], Cursor | None]:
    """Take the next segments from a plan, without I/O."""
    match cursor:
        case [str() as plan_id, int() as seconds, int() as total, int() as items, int() as number] if (
            0 <= number < total <= MOST_SEGMENTS and items >= 0
        ):
            pass
        case _:
            raise InvalidCursor("it is not a plan of a scan")
    end = min(total, number + count)
    parts = [Part(plan_id, seconds, total, each) for each in range(number, end)]
    found = [Segment(part.segment_id, part.cursor, items or None) for part in parts]
    return found, None if end == total else [plan_id, seconds, total, items, end]


def _scan(calls: Calls, name: str, part: Part, table: Table, limit: int, native: bool = False) -> Any:
    after = part.start_key(table.key_names)
    return calls.scan(name, (part.segment, part.total), after, limit, native=native)


class SegmentReader(Reader):
    """Reads the items of one segment, with one `Scan` call per fetch."""

    def __init__(self, source: Source, same: SameTable, view: View, part: Part) -> None:
        self._source, self._same, self._view, self._part = source, same, view, part
        self._item_bytes = RECORD_BYTES
        self._cancelled = threading.Event()

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """Fetch items. An answer of the service contains at most a megabyte."""
        if self._cancelled.is_set():
            raise cancelled()
        if self._part.is_over:
            return self._batch([], self._part, {}, 0)
        begin, limit = self._part, min(max_records, max(1, max_bytes // self._item_bytes))
        answer = self._answer(limit)
        items: list[Item] = answer["Items"]
        nbytes = memory_of(answer, len(items))
        if items:
            self._item_bytes = max(1, nbytes // len(items))
        last = answer.get("LastEvaluatedKey")
        # The service may examine many items and return none of them. In that case, the key belongs to none of
        # the returned items.
        self._part = begin.after(last, self._view.key_names) if last else attrs.evolve(begin, key=(_END,))
        if self._part == begin:
            raise ProviderFault.of(
                ErrorCategory.PERMANENT_FAILURE,
                f"Scan: a page of {begin.text} ends with the key after which it begins, so the scan never "
                f"ends; {ITS_OPERATOR}",
            )
        return self._batch(items, begin, answer, nbytes)

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        """Do nothing, because the reader holds no resources."""

    def _answer(self, limit: int) -> Any:
        source, name = self._source, str(self._source.spec.address.collection)
        return self._same.checked(
            lambda: _scan(source.calls, name, self._part, source.table, limit, self._view.native)
        )

    def _batch(self, items: list[Item], begin: Part, answer: Any, nbytes: int) -> Batch:
        outcome: Outcome = Scanned() if self._part.is_over else Continue()
        charge = (answer.get("ConsumedCapacity") or {}).get("CapacityUnits")
        return Batch(
            items,
            RowMapper(self._view, begin),
            begin.cursor,
            self._part.cursor,
            outcome,
            nbytes,
            caught_up=self._part.is_over,
            charge=None if charge is None else float(charge),
            requests=1 if answer else 0,
        )
