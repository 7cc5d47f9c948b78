"""Represents rows of a scan as received, in bytes."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator
from operator import attrgetter
from typing import Any, Final

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from multiclouddb_mongo.values import CODEC

__all__ = ["ROW_CODEC", "RawRow", "bytes_of"]


class RawRow(RawBSONDocument):
    """A row that PyMongo does not decode.

    PyMongo's own class checks each document that it makes. Even `find_raw_batches` makes and checks
    one `RawBSONDocument` for each row. Making and checking a `RawBSONDocument` takes longer than
    decoding a row. This class keeps only the bytes. The answer that contains the rows is also an
    object of this class. PyMongo reads fields of the answer, so this class can return fields.
    """

    __slots__ = ("_bytes", "_document", "_options")

    def __init__(self, bson_bytes: Any, codec_options: CodecOptions[RawBSONDocument] | None = None) -> None:
        self._bytes, self._options = bson_bytes, codec_options
        self._document: RawBSONDocument | None = None

    @property
    def raw(self) -> Any:
        """Return the document's bytes."""
        return self._bytes

    def items(self) -> ItemsView[str, Any]:
        """Return the document's fields."""
        return self._parsed().items()

    def __getitem__(self, name: str) -> Any:
        return self._parsed()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parsed())

    def __len__(self) -> int:
        return len(self._parsed())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RawBSONDocument) and bytes(self.raw) == bytes(other.raw)

    __hash__ = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {len(self.raw)} bytes>"

    def _parsed(self) -> RawBSONDocument:
        if self._document is None:
            self._document = RawBSONDocument(self._bytes, self._options)
        return self._document


_BYTES: Final = attrgetter("_bytes")


def bytes_of(rows: Iterable[RawRow]) -> list[bytes]:
    """Return the bytes of rows. If PyMongo provides the rows as views of an answer, the bytes are copied."""
    return list(map(bytes, map(_BYTES, rows)))


ROW_CODEC: Final[CodecOptions[RawRow]] = CODEC.with_options(document_class=RawRow)
"""The codec with which rows are received."""
