"""Represents change documents as received, in bytes, and the answers in which they were received."""

from __future__ import annotations

import threading
from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final, TypeAlias

import attrs
import bson
from attrs import frozen
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from multiclouddb_mongo.position import After, At, Place, ticks_at, token_text
from multiclouddb_mongo.values import CODEC, LENIENT_RAW, decode

Raw: TypeAlias = bytes | memoryview
"""The type of received bytes. PyMongo passes large changes as views of the answer."""

_HEAD: Final = b"\x03_id\x00"  # a document named _id, which follows the length of the whole document
_TOKEN: Final = 4 + len(_HEAD)
_LENGTH: Final = 4
_TOKEN_END: Final = _TOKEN + _LENGTH
_DATA_HEAD: Final = b"\x02_data\x00"
_DATA: Final = _TOKEN + 4 + len(_DATA_HEAD)
_OPERATION: Final = b"\x02operationType\x00"
_ITEM_CHANGES: Final = tuple(
    _OPERATION + (len(name) + 1).to_bytes(_LENGTH, "little") + name + b"\x00"
    for name in (b"insert", b"update", b"replace", b"delete")
)
_SPLIT: Final = b"\x03splitEvent\x00"
_NAMESPACE: Final = b"\x03ns\x00"
_KEY: Final = b"\x03documentKey\x00"
_DECIMAL: Final = b"\x13"  # the type of an element; a length or a number may contain this byte too
_NULL: Final = b"\x0a"
_PIECE: Final = 1 << 18
_LONGEST: Final = max(map(len, _ITEM_CHANGES))


_FIRST: Final = b"\x04firstBatch\x00"
_NEXT: Final = b"\x04nextBatch\x00"
_CURSOR: Final = b"\x03cursor\x00"


@frozen
class Answer:
    """What an answer of the server says of its changes.

    Attributes:
        count: How many changes it has.
        opened: True if it belongs to the command that opens a stream, which PyMongo repeats to resume one.
        over: True if the server has closed its cursor.
        log_end: The cluster time, in ticks, up to which a majority had the log when the server answered; None
            if the server does not tell it.
    """

    count: int
    opened: bool
    over: bool
    log_end: int | None = None


class _Received(threading.local):
    answer: Answer | None = None


_received: Final = _Received()


def last_answer() -> Answer | None:
    """Return what the last answer with changes said that this thread has received since the last call."""
    # PyMongo decodes an answer in the thread that has asked for it. If it does not make the answer with the
    # class of the documents, the result is None, and nothing is known of the answer.
    found, _received.answer = _received.answer, None
    return found


class RawDocument(RawBSONDocument):
    """A document that PyMongo does not decode."""

    __slots__ = ("_bytes",)
    _bytes: Raw

    @property
    def raw(self) -> Raw:
        return self._bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RawBSONDocument) and bytes(self.raw) == bytes(other.raw)

    __hash__ = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {len(self.raw)} bytes>"


bytes_of: Final[Callable[[RawDocument], Raw]] = attrgetter("_bytes")
"""Returns the bytes of a document, like its attribute `raw`, but runs no Python code."""


class RawChange(RawDocument):
    """A change that PyMongo does not decode."""

    # Reading only the `_id` of a change takes a tenth of the time of decoding the whole change.
    # PyMongo's own class decodes all fields when one of them is read. PyMongo's streams read the `_id` of
    # every change, to keep it as the resume token. This class returns the whole change as the `_id`. PyMongo
    # first stores the whole change as the token. When PyMongo copies the stored change, the copy contains
    # only the resume token. Documents that do not begin with an `_id`, such as the answer that contains the
    # changes, behave as in PyMongo's class.

    __slots__ = ()

    def __init__(self, bson_bytes: Raw, codec_options: CodecOptions[RawBSONDocument] | None = None) -> None:
        self._bytes = bson_bytes
        if bson_bytes[_LENGTH:_TOKEN] != _HEAD:
            super().__init__(bson_bytes, codec_options)
            name = _batch_of(bson_bytes)
            if name is not None:
                _received.answer = Answer(len(self[name]), name == "firstBatch", not self["id"])
            elif bson_bytes[_LENGTH : _LENGTH + len(_CURSOR)] == _CURSOR:
                self._add_log_end()

    def items(self) -> ItemsView[str, Any]:
        return decoded(self._bytes).items() if self._is_change() else super().items()

    def __getitem__(self, name: str) -> Any:
        if name == "_id" and self._is_change():
            return self
        return decoded(self._bytes)[name] if self._is_change() else super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        return iter(decoded(self._bytes)) if self._is_change() else super().__iter__()

    def __len__(self) -> int:
        return len(decoded(self._bytes)) if self._is_change() else super().__len__()

    def __deepcopy__(self, memo: object) -> dict[str, Any]:
        return _token(self._bytes) if self._is_change() else decoded(self._bytes)

    def _is_change(self) -> bool:
        return self._bytes[_LENGTH:_TOKEN] == _HEAD

    def _add_log_end(self) -> None:
        # The first look at a field also makes the object of the field `cursor`, which stores the answer.
        stamp, answer = self.get("operationTime"), _received.answer
        if answer is not None and isinstance(stamp, Timestamp):
            _received.answer = attrs.evolve(answer, log_end=ticks_at(At(stamp.time, stamp.inc)))


def _batch_of(answer: Raw) -> str | None:
    """Return the name of the list of changes with which an answer begins."""
    head = bytes(answer[_LENGTH : _LENGTH + len(_FIRST)])
    if head == _FIRST:
        return "firstBatch"
    return "nextBatch" if head.startswith(_NEXT) else None


RAW_CODEC: Final[CodecOptions[RawChange]] = CODEC.with_options(document_class=RawChange)
"""The codec with which changes are received."""


def decoded(change: Raw) -> dict[str, Any]:
    """Return a change as a dict."""
    return decode(change)


def item_changes(changes: Sequence[Raw]) -> int:
    """Return how many of the first changes are a create, update or delete in the server's form."""
    # The change after them must be checked in another way. Most tokens of a stream have the same length.
    head, at = b"", 0
    for index, change in enumerate(changes):
        if change[_LENGTH:_TOKEN_END] != head:
            if change[_LENGTH:_TOKEN] != _HEAD:
                return index
            head = bytes(change[_LENGTH:_TOKEN_END])
            at = _TOKEN + int.from_bytes(head[-_LENGTH:], "little")
        known = change if type(change) is bytes else bytes(change[: at + _LONGEST])
        if not known.startswith(_ITEM_CHANGES, at):
            return index
    return len(changes)


def untouched_changes(changes: Sequence[Raw]) -> int:
    """Return how many of the first changes are a whole create, update or delete with the required fields."""
    count = item_changes(changes)
    for index in range(count):
        text = bytes(changes[index])
        if _SPLIT in text or _NAMESPACE not in text or _KEY not in text:
            return index
    return count


def text_before(until: Place) -> bytes:
    """Return a text for `is_before`: a change whose token sorts before this text is before `until`."""
    if isinstance(until, At):
        return f"82{until.seconds:08X}".encode()
    return until.data.partition(".")[0].encode() if until.data.startswith("82") else b""


def is_before(change: Raw, text: bytes) -> bool:
    """Return True if the change's token certainly sorts before the given text."""
    if change[_LENGTH:_TOKEN] != _HEAD or change[_DATA - len(_DATA_HEAD) : _DATA] != _DATA_HEAD:
        return False
    end = _DATA + _LENGTH + int.from_bytes(change[_DATA : _DATA + _LENGTH], "little") - 1
    data = bytes(change[_DATA + _LENGTH : end])
    return data.startswith(b"82") and data < text


def with_decimals(changes: Sequence[Raw]) -> list[int]:
    """Return the indexes of the changes that may contain a `Decimal128`; the others have no mark of one."""
    return [index for index, change in enumerate(changes) if _may_have_decimal(change)]


def has_null(change: Raw, names: Sequence[str]) -> bool:
    """Return True if one of these fields may be null; a document may contain the same bytes."""
    text = bytes(change)
    return any(_NULL + name.encode() + b"\x00" in text for name in names)


def _may_have_decimal(change: Raw) -> bool:
    if type(change) is bytes:
        return _DECIMAL in change
    # Only bytes can be searched. A copy of the whole change would have up to 16 MB.
    return any(_DECIMAL in bytes(change[at : at + _PIECE]) for at in range(0, len(change), _PIECE))


def place_of_change(change: Raw) -> After:
    """Return the position after a change."""
    if change[_LENGTH:_TOKEN] == _HEAD:
        return After("e", token_text(_token(change)))
    return After("e", token_text(RawBSONDocument(change)["_id"]))


def wall_seconds(change: Raw) -> int | None:
    """Return the time of the write by the server's wall clock, or None if the change does not have it."""
    moment = RawBSONDocument(bytes(change), LENIENT_RAW).get("wallTime")
    return int(moment.replace(tzinfo=UTC).timestamp()) if isinstance(moment, datetime) else None


def namespace_of(change: Mapping[str, Any], field: str = "ns") -> str:
    """Return the `database/collection` of a change, with a question mark for a name that is missing."""
    namespace = change.get(field)
    names = namespace if isinstance(namespace, Mapping) else {}
    return f"{names.get('db', '?')}/{names.get('coll', '?')}"


def alike_to(collection: str) -> str:
    """Return the name of the only other collection whose changes a server sends as those of a collection."""
    return f"{collection}\n"


def is_of_another(change: Mapping[str, Any], collection: str) -> bool:
    """Return True if the server takes a change of another collection for one of this collection."""
    names = [name.get("coll") for name in map(change.get, ("ns", "to")) if isinstance(name, Mapping)]
    return collection not in names and alike_to(collection) in names


def _token(change: Raw) -> dict[str, Any]:
    """Return the resume token, which is the first field of a change."""
    length = int.from_bytes(change[_TOKEN : _TOKEN + _LENGTH], "little")
    return bson.decode(change[_TOKEN : _TOKEN + length], CODEC)
