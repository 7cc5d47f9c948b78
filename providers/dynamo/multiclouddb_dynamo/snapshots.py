"""Scans a table for `Snapshot()`: the plan, its segments, and the reader of one segment.

`Scan.shared` is the number of segments, and the name of a segment is its own number. The service
needs both in each call. A position is the key of the last item that was read, as a JSON list of texts, or "."
at the end. The rest of a plan is `[items in a segment, number of the next segment]`.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import repeat
from typing import Any, Final, TypeAlias, TypeVar

import orjson
from attrs import frozen
from botocore.exceptions import ClientError, ParamValidationError

from multiclouddb_api import ErrorCategory, LookupAnswer, MulticloudDbKey, NotKnown, invalid_request
from multiclouddb_api.key import trusted_keys
from multiclouddb_dynamo.catalog import replaced
from multiclouddb_dynamo.client import RECORD_BYTES, Table, memory_of
from multiclouddb_dynamo.errors import GONE, ITS_OPERATOR, REJECTED, code_of
from multiclouddb_dynamo.mapping import DynamoView, json_text, key_text
from multiclouddb_dynamo.position import moment_of
from multiclouddb_dynamo.source import ReaderContext
from multiclouddb_dynamo.values import decode_map, encode_key, key_value, spelled_otherwise
from multiclouddb_spi import (
    DAMAGED,
    AnsweredRows,
    Batch,
    Continue,
    Cursor,
    Deadline,
    InvalidCursor,
    Outcome,
    ProviderFault,
    Reader,
    RowMapper,
    Rows,
    Scan,
    Scanned,
    ScanPlan,
    Seed,
    Segment,
    cancelled,
    canonical_texts,
    check_components,
    look_up,
    looked_up,
)
from multiclouddb_spi.faults import key_digest, one_line

FLOOR: Final = "00"
"""The floor of a snapshot: every `order_key` sorts after it, because no change's number of digits is 0."""
MOST_SEGMENTS: Final = 1_000_000  # the maximum number of segments that the service accepts

T = TypeVar("T")
Item: TypeAlias = Mapping[str, Any]  # maps each attribute to its value in typed JSON

_END: Final = "."
_LETTERS: Final = "SNB"
_MOST_KEYS: Final = 100  # of one BatchGetItem call
_KEY_BYTES: Final = (2048, 1024)  # the service's maximum for the partition key and for the sort key
_SPELLED: Final = NotKnown(
    "this server does not find an item whose number is written in another form, so the item may be there"
)
_MOST_DIGITS: Final = 8  # the maximum number of digits of a segment's number
_MOST_TEXT: Final = 4096  # a key has at most 2,048 bytes; base64 makes it longer by a third


def part_of(segment: Segment) -> tuple[int, int]:
    """Return the number of a segment, and the number of all segments of its scan."""
    total, name = segment.scan.shared, segment.name
    if type(total) is int and 0 < total <= MOST_SEGMENTS and name.isascii() and name.isdecimal():
        number = int(name) if len(name) < _MOST_DIGITS else total
        if number < total:
            return number, total
    raise InvalidCursor("it is not a segment of a scan")


def start_key(after: str, names: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the key after which to read, as typed JSON with binary values as bytes; None to begin."""
    if not after:
        return None
    try:
        texts = json.loads(after)  # orjson refuses half of a surrogate pair
    except ValueError as error:
        raise InvalidCursor("its key is not JSON") from error
    if type(texts) is not list or len(texts) != len(names):
        raise InvalidCursor(f"its key does not have the {len(names)} attributes of the table's key")
    return {name: _key_value(text) for name, text in zip(names, texts, strict=True)}


def _text_of(item: Item, names: tuple[str, ...]) -> str:
    """Return the key of an item as the text of a position."""
    texts = [_key_text(item[name]) for name in names]
    try:
        return orjson.dumps(texts).decode()
    except TypeError:  # half of a surrogate pair, which only an escape can hold
        return json.dumps(texts)


def _shown(segment: Segment) -> str:
    number, total = part_of(segment)
    return f"segment {number + 1} of {total} of a scan"


def _key_text(value: Mapping[str, Any]) -> str:
    (tag,) = value
    raw = value[tag]
    if tag == "B" and type(raw) is bytes:
        raw = base64.b64encode(raw).decode("ascii")
    if tag not in _LETTERS or not isinstance(raw, str) or not raw:
        raise ValueError("not the value of a key")
    return f"{tag}{raw}"


def _key_value(text: Any) -> dict[str, Any]:
    if not (type(text) is str and text[:1] in _LETTERS and 1 < len(text) <= _MOST_TEXT):
        raise InvalidCursor("its key is not the key of an item")
    tag, raw = text[0], text[1:]
    if tag != "B":
        return {tag: raw}
    try:
        return {tag: base64.b64decode(raw, validate=True)}
    except ValueError as error:
        raise InvalidCursor("its key is not base64") from error


@frozen
class ItemMapper(RowMapper):
    """Maps the items of one segment."""

    view: DynamoView
    segment: Segment

    def rows(self, records: Sequence[Item], start: int, stop: int, *, texts: bool) -> Rows:
        view, names, items = self.view, self.view.key_names, records[start:stop]
        keys = [{name: key_value(item[name]) for name in names} for item in items]
        document: Callable[[Any], Any] = json_text if texts else decode_map
        return Rows(
            [key_text(item, names) for item in items] if texts else trusted_keys(keys),
            list(map(document, items)) if view.with_new else repeat(None),
            canonical_texts(names, [[each[name] for each in keys] for name in names]),
            natives=items if view.native else repeat(None),
        )

    def place_after(self, records: Sequence[Item], count: int) -> str:
        try:
            return _text_of(records[count - 1], self.view.key_names)
        except DAMAGED:
            raise ProviderFault.of(
                ErrorCategory.PROVIDER_ERROR,
                f"an item in {_shown(self.segment)} lacks the table's key; please report this, because no "
                "service sends such an item",
            ) from None

    def name_of(self, records: Sequence[Item], index: int) -> str:
        try:
            key = key_text(records[index], self.view.key_names).decode()
        except DAMAGED:
            key = self.place_after(records, index + 1)
        return f"the item with the key {key_digest(key)} in {_shown(self.segment)}"


# A segment of this size is read in about a minute. If a Spark task fails, its segment is read again.
_SEGMENT_BYTES: Final = 256 << 20
_UNIT_BYTES: Final = 4096  # of one read unit; a consistent read costs twice as much as another
_LEAST_SEGMENTS: Final = 8  # this many segments are read at a time
_USUAL_SEGMENTS: Final = 32_000


class SameTable:
    """Checks that a table is still the table of a feed. Several threads can share one object."""

    def __init__(self, source: ReaderContext) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._proved_at = -1.0
        self._compares_values = False

    def compares_values(self) -> bool:
        """Return True if the service is known to compare numbers of keys by their value, as DynamoDB does.

        Some servers with its API compare them as they are written, so that they do not find `0.0000001` if
        `1E-7` is asked for. An item that is there is asked for with its number in another form.
        """
        source, name = self._source, str(self._source.spec.address.collection)

        def ask() -> bool:
            answer = source.calls.scan(name, (0, 1), None, 1, native=False)
            if not answer["Items"]:
                return not answer.get("LastEvaluatedKey")  # an empty table has no item
            key = {each: answer["Items"][0][each] for each in source.table.key_names}
            other = {each: spelled_otherwise(value) for each, value in key.items()}
            try:
                found, _ = source.calls.items(name, [other])
            except ClientError as error:
                if code_of(error) not in REJECTED:
                    raise
                return False
            self._compares_values = len(found) == 1
            return self._compares_values

        return self._compares_values or source.calls.is_at_aws or self.checked(ask)

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


def look_up_items(
    source: ReaderContext, same: SameTable, view: DynamoView, keys: Sequence[MulticloudDbKey]
) -> dict[MulticloudDbKey, LookupAnswer]:
    """Return the items of some of the keys, with one `BatchGetItem` call."""
    names = view.key_names

    def encoded(key: MulticloudDbKey) -> Item:
        return {name: encode_key(name, key[name]) for name in names}

    def normal(key: MulticloudDbKey) -> MulticloudDbKey:
        check_components(key, names)
        return _key_of(encoded(key), view)

    def ask(asked: list[MulticloudDbKey]) -> AnsweredRows:
        table, wanted = str(source.spec.address.collection), list(map(encoded, asked))
        try:
            items, unprocessed = same.checked(lambda: source.calls.items(table, wanted))
        except ClientError as error:
            fault = _refused(source.table, wanted, error) if code_of(error) in REJECTED else None
            if fault is None:
                raise
            raise fault from error
        left = {_key_of(each, view) for each in unprocessed}
        if left.issuperset(asked):
            raise ProviderFault.of(
                ErrorCategory.THROTTLED,
                "the table's read capacity does not suffice for the keys; raise it, or look up fewer keys",
                retryable=True,
            )
        readable, unread = list[Item](), list[MulticloudDbKey | None]()
        for item in items:
            if _decoded(decode_map, item) is None:
                unread.append(_decoded(lambda each: _key_of(each, view), item))
            else:
                readable.append(item)
        mapper = ItemMapper(view, looked_up(moment_of(source.seconds() or 0)))
        return AnsweredRows(mapper.events(readable, 0, len(readable)), left, unread)

    answers = look_up(keys, _MOST_KEYS, normal, ask)
    absent = [key for key, answer in answers.items() if answer is None and _has_number(key)]
    if absent and not same.compares_values():
        answers |= dict.fromkeys(absent, _SPELLED)
    return answers


def _has_number(key: MulticloudDbKey) -> bool:
    return any(isinstance(value, int | float | Decimal) for value in key.components.values())


def _refused(table: Table, wanted: Sequence[Item], error: ClientError) -> Exception | None:
    """Return the fault for keys that the service has refused; None if nobody knows whose it is."""
    for name, kind, most in zip(table.key_names, table.key_types, _KEY_BYTES, strict=False):
        if kind is None:
            return None
        for tag, value in (each for item in wanted for each in item[name].items()):
            size = len(value.encode(errors="surrogatepass") if isinstance(value, str) else value)
            if tag != kind or not 0 < size <= most:
                return invalid_request(
                    "keys",
                    f"has a key whose attribute {name!r} is of the type {tag} and has {size} bytes",
                    f"give one of the table's type {kind}, as event.key has it, with 1 to {most} bytes",
                )
    said = one_line(str(error.response.get("Error", {}).get("Message", "")))
    return ProviderFault.of(
        ErrorCategory.PERMANENT_FAILURE,
        f"BatchGetItem: {code_of(error)} ({said}), although the keys have the types and sizes of the table's "
        f"keys; {ITS_OPERATOR}",
        code_of(error),
    )


def _decoded(decode: Callable[[Item], T], item: Item) -> T | None:
    try:
        return decode(item)
    except DAMAGED:
        return None


def _key_of(item: Item, view: DynamoView) -> MulticloudDbKey:
    return MulticloudDbKey({name: key_value(item[name]) for name in view.key_names})


def segments_of(wanted: int | None, table: Table) -> int:
    """Return the number of segments for a scan."""
    if wanted is None:
        wanted = min(max(-(-table.nbytes // _SEGMENT_BYTES), _LEAST_SEGMENTS), _USUAL_SEGMENTS)
    return min(wanted, MOST_SEGMENTS)


def plan_scan(source: ReaderContext, seeds: list[Seed], wanted: int | None) -> ScanPlan:
    """Plan a scan, and read an item to find out early whether the identity may scan the table."""
    total, name = segments_of(wanted, source.table), str(source.spec.address.collection)
    first = source.calls.scan(name, (0, total), None, 1, native=False)["Items"]
    # Some servers answer each segment with the whole table (sivchari/kumo#610, stackshy/cloudemu#734). Then
    # each row would be delivered once a segment.
    if total > 1 and first and source.calls.scan(name, (1, total), None, 1, native=False)["Items"] == first:
        total = 1
    seconds = source.seconds()
    if seconds is None:  # the service gives no time; nothing depends on the time of a row
        seconds = int(datetime.now(UTC).timestamp())
    items = source.table.items
    scan = Scan(FLOOR, moment_of(seconds), total)
    # A table that was made within six hours may have no counts yet.
    units = max(total, -(-source.table.nbytes // _UNIT_BYTES)) if source.table.nbytes else None
    return ScanPlan(scan, [items // total, 0], tuple(seeds), total, items or None, units)


def cut(scan: Scan, rest: Cursor, count: int) -> tuple[list[Segment], Cursor | None]:
    """Take the next segments from a plan, without I/O."""
    match scan.shared, rest:
        case int() as total, [int() as items, int() as number] if type(total) is int and (
            0 <= number < total <= MOST_SEGMENTS and items >= 0
        ):
            pass
        case _:
            raise InvalidCursor("it is not a plan of a scan")
    end = min(total, number + count)
    found = [scan.segment(str(each), records=items or None) for each in range(number, end)]
    return found, None if end == total else [items, end]


class SegmentReader(Reader):
    """Reads the items of one segment, with one `Scan` call per fetch."""

    def __init__(self, source: ReaderContext, same: SameTable, view: DynamoView, segment: Segment) -> None:
        self._source, self._same, self._view, self._segment = source, same, view, segment
        self._part, self._mapper = part_of(segment), ItemMapper(view, segment)
        self._place()
        self._item_bytes = RECORD_BYTES
        self._cancelled = threading.Event()

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """Fetch items. An answer of the service contains at most a megabyte."""
        if self._cancelled.is_set():
            raise cancelled()
        begin = self._segment
        if self._is_over:
            return self._batch([], begin, {}, 0)
        answer = self._answer(min(max_records, max(1, max_bytes // self._item_bytes)))
        items: list[Item] = answer["Items"]
        nbytes = memory_of(answer, len(items))
        if items:
            self._item_bytes = max(1, nbytes // len(items))
        last = answer.get("LastEvaluatedKey")
        # The service may examine many items and return none of them. In that case, the key belongs to none of
        # the returned items.
        self._segment = begin.at(self._mapper.place_after([last], 1) if last else _END)
        if self._segment == begin:
            raise ProviderFault.of(
                ErrorCategory.PERMANENT_FAILURE,
                f"Scan: a page of {_shown(begin)} ends with the key after which it begins, so the scan never "
                f"ends; {ITS_OPERATOR}",
            )
        self._place()
        return self._batch(items, begin, answer, nbytes)

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        """Do nothing, because the reader holds no resources."""

    def _place(self) -> None:
        after = self._segment.after
        self._is_over = after == _END
        self._start = None if self._is_over else start_key(after, self._view.key_names)

    def _answer(self, limit: int) -> Any:
        source, name = self._source, str(self._source.spec.address.collection)
        return self._same.checked(
            lambda: source.calls.scan(name, self._part, self._start, limit, native=self._view.native)
        )

    def _batch(self, items: list[Item], begin: Segment, answer: Any, nbytes: int) -> Batch:
        outcome: Outcome = Scanned() if self._is_over else Continue()
        charge = (answer.get("ConsumedCapacity") or {}).get("CapacityUnits")
        return Batch(
            items,
            self._mapper,
            begin.cursor,
            self._segment.cursor,
            outcome,
            nbytes,
            caught_up=self._is_over,
            charge=None if charge is None else float(charge),
            requests=1 if answer else 0,
        )
