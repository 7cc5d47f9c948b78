"""Holds the rows of a scan: their raw form, and their mapping to events."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from hashlib import blake2b
from itertools import repeat
from typing import Any, Final

import attrs
from attrs import frozen
from bson import Int64, ObjectId
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from orjson import dumps

from multiclouddb_api import ChangeEvent, encode_json
from multiclouddb_api.key import MulticloudDbKey, trusted_keys
from multiclouddb_mongo.mapping import UNMAPPABLE, MongoView, why
from multiclouddb_mongo.position import UnreadRange, as_field, id_of
from multiclouddb_mongo.raw_change import RawDocument, bytes_of
from multiclouddb_mongo.values import CODEC, NORMAL_AS_DECODED, decode, decode_all, normal_key, portable
from multiclouddb_spi import RecordFault, RowMapper, Rows, Segment


class RawRow(RawDocument):
    """A row that PyMongo does not decode."""

    # PyMongo's own class checks each document that it makes. Even `find_raw_batches` makes and checks one
    # `RawBSONDocument` for each row. Making and checking a `RawBSONDocument` takes longer than decoding a
    # row. This class keeps only the bytes. The answer that contains the rows is also an object of this class.
    # PyMongo reads fields of the answer, so this class can return fields.

    __slots__ = ("_document", "_options")

    def __init__(self, bson_bytes: Any, codec_options: CodecOptions[RawBSONDocument] | None = None) -> None:
        self._bytes, self._options = bson_bytes, codec_options
        self._document: RawBSONDocument | None = None

    def items(self) -> ItemsView[str, Any]:
        return self._parsed().items()

    def __getitem__(self, name: str) -> Any:
        return self._parsed()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parsed())

    def __len__(self) -> int:
        return len(self._parsed())

    def _parsed(self) -> RawBSONDocument:
        if self._document is None:
            self._document = RawBSONDocument(self._bytes, self._options)
        return self._document


def copied(rows: Iterable[RawRow]) -> list[bytes]:
    """Return the bytes of rows. If PyMongo provides the rows as views of an answer, the bytes are copied."""
    return list(map(bytes, map(bytes_of, rows)))


ROW_CODEC: Final[CodecOptions[RawRow]] = CODEC.with_options(document_class=RawRow)
"""The codec with which rows are received."""


_DIGEST_BYTES: Final = 6
_DECIMAL: Final = b"\x13"
_AS_THEY_ARE: Final = frozenset({str, int, Int64})
# The form in which `canonical` writes keys of these types. Nearly all keys have one of these types.
_SIMPLE: Final[Mapping[type, Any]] = {
    **dict.fromkeys(_AS_THEY_ARE, lambda value: value),
    ObjectId: lambda value: {"$mongo.objectid": value.binary.hex()},
}


def rows_of(answer: bytes) -> list[bytes]:
    """Split an answer into its documents, which follow one another without separators."""
    rows, at, size = list[bytes](), 0, len(answer)
    while at < size:
        end = at + int.from_bytes(answer[at : at + 4], "little")
        rows.append(answer[at:end])
        at = end
    return rows


@frozen(eq=False)
class DocumentMapper(RowMapper):
    """Maps the rows of one segment; `start` is the position after which they come."""

    damaged = UNMAPPABLE
    view: MongoView
    segment: Segment
    start: UnreadRange

    def place_after(self, records: Sequence[bytes], count: int) -> str:
        return self.range_after(self.start, records, count).text

    def range_after(self, start: UnreadRange, rows: Sequence[bytes], count: int) -> UnreadRange:
        """Return the position after the first `count` of the rows that come after `start`."""
        if not count:
            return start
        last = id_of(rows[count - 1])
        seen: list[str] = []
        if start.names:
            first = count - 1
            while first and id_of(rows[first - 1]) == last:
                first -= 1
            seen = [self.digest(row) for row in rows[first:count]]
            if not first and start.begin[1:] == last:
                seen = [*start.seen, *seen]
        return attrs.evolve(start, begin=f"({last}", seen=tuple(seen))

    def unread(self, start: UnreadRange, rows: list[bytes]) -> list[bytes]:
        """Return the rows after a position."""
        # Rows with the position's `_id` that were already read are omitted (see `UnreadRange.seen`).
        if not start.seen:
            return rows
        last = start.begin[1:]
        return [row for row in rows if id_of(row) != last or self.digest(row) not in start.seen]

    def readable(self, rows: Sequence[bytes]) -> tuple[list[ChangeEvent], list[bytes]]:
        """Return the events of the rows that can be read, and the other rows."""
        try:
            return self.events(rows, 0, len(rows)), []
        except RecordFault:
            pass
        events: list[ChangeEvent] = []
        unread: list[bytes] = []
        for row in rows:
            try:
                events += self.events([row], 0, 1)
            except RecordFault:
                unread.append(row)
        return events, unread

    def key_of(self, row: bytes) -> MulticloudDbKey | None:
        """Return the key of a row that cannot be read, if its `_id` alone is the key and can be read."""
        if self.start.names:
            return None
        try:
            element = bytes(as_field("_id", id_of(row)).raw)
            return self._keys([decode(element)], [element])[0]
        except UNMAPPABLE:
            return None

    def has(self, row: bytes, wanted: Mapping[str, Any]) -> bool:
        """Return True if a row's key has these components, or if it cannot be decoded."""
        try:
            (key,) = self._keys([decode(row)], [row])
        except UNMAPPABLE:
            return True
        found = [key.components.get(name) for name in wanted]
        return encode_json(found) == encode_json(list(wanted.values()))

    def digest(self, row: bytes) -> str:
        """Return a digest of a document."""
        # The digests of documents that have the same `_id` on different shards are different.
        try:
            text = self._keys([decode(row)], [row])[0].canonical()
        except UNMAPPABLE:
            text = row
        return blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()

    def rows(self, records: Sequence[bytes], start: int, stop: int, *, texts: bool) -> Rows | None:
        if texts:
            return None
        view, part = self.view, records[start:stop]
        rows = decode_all(b"".join(part))
        natives: Iterable[Any] = deepcopy(rows) if view.native else repeat(None)
        keys = self._keys(rows, part)
        documents = _documents(rows, part) if view.with_new else repeat(None)
        return Rows(keys, documents, self._canonical(keys), natives=natives)

    def name_of(self, records: Sequence[bytes], index: int) -> str:
        return f"{_named(id_of(records[index]))} of {self.view.address.collection!r}"

    def why(self, error: Exception | None) -> str:
        return why(error)

    def _keys(self, rows: Sequence[dict[str, Any]], records: Sequence[bytes]) -> list[MulticloudDbKey]:
        """Return the keys in the form of the stream: the fields of the shard key, then `_id`."""
        names = self.start.names
        if names:
            return [_shard_key(row, names, record) for row, record in zip(rows, records, strict=True)]
        ids = [row["_id"] for row in rows]
        keys = [{"_id": each} for each in ids]
        return trusted_keys(
            keys if NORMAL_AS_DECODED.issuperset(map(type, ids)) else list(map(normal_key, keys, records))
        )

    def _canonical(self, keys: Sequence[MulticloudDbKey]) -> list[bytes] | None:
        """Return the texts of the usual keys, ten times faster than `canonical`; None for other keys."""
        if self.start.names:
            return None
        values = [key.components["_id"] for key in keys]
        kinds = set(map(type, values))
        if not kinds <= _SIMPLE.keys():
            return None
        if not kinds <= _AS_THEY_ARE:
            values = [_SIMPLE[type(value)](value) for value in values]
        return [b'[1,[["_id",%b]]]' % text for text in map(dumps, values)]


def _documents(rows: Sequence[dict[str, Any]], raw: Sequence[bytes]) -> list[dict[str, Any]]:
    # If a row does not contain the byte of the decimal type, it has no decimal to replace.
    return [portable(row) if _DECIMAL in each else row for row, each in zip(rows, raw, strict=True)]


def _shard_key(row: Mapping[str, Any], names: Sequence[str], record: bytes) -> MulticloudDbKey:
    components = {name: value for name in names if (value := _at(row, name)) is not _NOTHING}
    components.setdefault("_id", row["_id"])
    return trusted_keys([normal_key(components, record)], max(1, len(components) - 1))[0]


_NOTHING: Final = object()


def _at(row: Any, path: str) -> Any:
    for name in path.split("."):
        if not isinstance(row, Mapping) or name not in row:
            return _NOTHING
        row = row[name]
    return row


def _named(wanted: str) -> str:
    if wanted.startswith("07"):
        return f"the document with the _id ObjectId('{ObjectId(bytes.fromhex(wanted[2:]))}')"
    return f"a document whose _id has the BSON type {int(wanted[:2], 16)}"
