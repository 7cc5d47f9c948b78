"""Encodes and hashes many JSON texts at once, in one buffer, without a Python object for each text."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
from numpy.lib.stride_tricks import as_strided

from multiclouddb_api import MulticloudDbError, Tagged, decode_json, encode_json
from multiclouddb_api.codec import canonical_json, deep_json

__all__ = [
    "SEPARATOR",
    "Integers",
    "Lines",
    "as_jsonb",
    "canonicals",
    "column_digests",
    "digests_of",
    "parsed",
    "written",
]

Integers: TypeAlias = npt.NDArray[np.int64]

_PLAIN: Final = (
    orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
)
SEPARATOR: Final = b",\n,"
"""Stands after each text: what orjson writes around a line end in a list."""
_BETWEEN: Final = orjson.Fragment(b"\n")
_SPACE: Final = 32
_IN_SEPARATOR: Final = np.bincount(np.frombuffer(SEPARATOR, np.uint8), minlength=256)
_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_INT: Final = b"0" * 19
_NUMBER: Final = "\0number"
_INT64_DIGITS: Final = 20
_WORDS: Final = 1 << 17
"""The number of words that are hashed at once, so that they stay in the processor's cache."""
_SHIFT: Final = np.uint64(32)
_BYTES: Final = np.uint64(8)
_LAST: Final = np.uint64(7)
_ONE: Final = np.uint64(1)
_FIRST: Final = np.uint64(0xFF51AFD7ED558CCD)
_SECOND: Final = np.uint64(0xC4CEB9FE1A85EC53)
_LENGTH: Final = np.uint64(0x9E3779B97F4A7C15)


@attrs.frozen(eq=False)
class Lines:
    """Texts of JSON in one buffer, each followed by `SEPARATOR`, which JSON cannot contain unescaped."""

    data: bytes
    ends: Integers
    """The place after the separator of each text."""

    @classmethod
    def of(cls, texts: Iterable[bytes]) -> Lines:
        """Put texts together."""
        return cls.cut(b"".join([text + SEPARATOR for text in texts]))

    @classmethod
    def cut(cls, data: bytes) -> Lines:
        """Find the separators."""
        return cls(data, np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == SEPARATOR[1]) + 2)

    @classmethod
    def joined(cls, parts: Sequence[Lines]) -> Lines:
        """Put lines together."""
        return cls.cut(b"".join([part.data for part in parts]))

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.ends)

    def texts(self) -> list[bytes]:
        """Return each text."""
        return self.data.split(SEPARATOR)[:-1]

    def values(self) -> Any:
        """Decode all texts at once; tagged values stay as they are."""
        return orjson.loads(b"[%b]" % self.data[: -len(SEPARATOR)].replace(SEPARATOR, b","))

    def digests(self) -> Integers:
        """Return 64 bits that stand for each text."""
        edges = _edges(self.ends)
        return _hashed(np.frombuffer(self.data, dtype=np.uint8), edges[:-1], edges[1:] - len(SEPARATOR))

    def take(self, order: Integers) -> Lines:
        """Return the texts in another order, or some of them."""
        if not len(order):
            return Lines.of([])
        buffers = [None, pa.py_buffer(_edges(self.ends)), pa.py_buffer(self.data)]
        array = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self), buffers)
        _, edges, data = array.take(pa.array(order)).buffers()
        return Lines(data.to_pybytes(), np.frombuffer(edges, dtype=np.int64)[1 : len(order) + 1])


def _edges(ends: Integers) -> Integers:
    return np.concatenate([np.zeros(1, dtype=np.int64), ends])


def canonicals(values: list[Any], *, are_decoded: bool = False) -> Lines:
    """Return the canonical text of each value; `are_decoded` if all of them were JSON without types."""
    return _encoded(values, orjson.OPT_SORT_KEYS, canonical_json, are_decoded=are_decoded)


def written(values: list[Any]) -> Lines:
    """Return the text of each value as a sink writes it."""
    return _encoded(values, 0, encode_json)


def _encoded(
    values: list[Any], option: int, exact: Callable[[Any], bytes], *, are_decoded: bool = False
) -> Lines:
    """Encode values by orjson, and those by the codec that orjson cannot encode, or encodes otherwise."""
    if not values:
        return Lines.of([])
    pairs: list[Any] = [_BETWEEN] * (2 * len(values))
    pairs[::2] = values
    try:
        text = orjson.dumps(pairs, None, _PLAIN | option)
    except (TypeError, ValueError, RecursionError):
        return Lines.of(_one(value, option, exact) for value in values)
    found = Lines.cut(text[1:-1] + SEPARATOR[-1:])
    # `{"$...": ...}` would mean something else, NaN becomes null, and a UUID becomes a text.
    has_marks = b"$" in text and b'"$' in text
    if has_marks or (not are_decoded and (b"null" in text or _has_uuid(text)) and found.values() != values):
        return Lines.of(
            exact(value) if _differs(each, value) else each
            for each, value in zip(found.texts(), values, strict=True)
        )
    return found


def _one(value: Any, option: int, exact: Callable[[Any], bytes]) -> bytes:
    try:
        text = orjson.dumps(value, None, _PLAIN | option)
    except (TypeError, ValueError, RecursionError):
        return exact(value)
    return exact(value) if _differs(text, value) else text


def _differs(text: bytes, value: Any) -> bool:
    """Return whether a text of orjson stands for another value."""
    if b'"$' in text:
        return True
    may_differ = b"null" in text or text.count(b"-") > 3
    return may_differ and bool(orjson.loads(text) != value)


def _has_uuid(text: bytes) -> bool:
    """Return whether a text may contain a UUID, whose four dashes are at equal distances."""
    if text.count(b"-") < 4:
        return False
    dashes = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord("-"))
    return bool(((dashes[3:] - dashes[:-3] == 15) & (dashes[2:-1] - dashes[1:-2] == 5)).any())


def parsed(texts: Sequence[str]) -> Lines | None:
    """Return the canonical texts of JSON texts, or None if one of them is damaged.

    A text with a name twice in one object is damaged, because readers take different ones of its values.
    """
    # What would join damaged texts to one value would hide a mark between them.
    mark = secrets.randbits(52)
    try:
        text = f"[{f',{mark},'.join(texts)}]"
        values = orjson.loads(text)
        if len(values) != 2 * len(texts) - 1 or values[1::2].count(mark) != len(texts) - 1:
            return None
        values = values[::2]
        is_plain = "$" not in text or '"$' not in text
        if not is_plain:
            values = [
                decode_json(each) if '"$' in each else value
                for each, value in zip(texts, values, strict=True)
            ]
        found = canonicals(values, are_decoded=is_plain)
        if _has_same_bytes("".join(texts), found.data, len(texts)):
            return found
        # orjson has rounded a number or left a name out, or a text is not written as those of a sink.
        return canonicals(
            [
                value if _has_same_bytes(each, line + SEPARATOR, 1) else _exact(each)
                for each, value, line in zip(texts, values, found.texts(), strict=True)
            ]
        )
    except (MulticloudDbError, TypeError, ValueError, RecursionError):
        return None


def _has_same_bytes(text: str, lines: bytes, count: int) -> bool:
    """Return whether texts consist of the bytes of their canonical texts, in any order, but for spaces.

    Then orjson has changed nothing: names may have another order, and PostgreSQL writes spaces. An int that
    only an unsigned integer can hold is not the same, because a document has it as text.
    """
    data = text.encode()
    if _LONG_INT in data.translate(_AS_ZEROS):
        return False
    bytes_of = [np.bincount(np.frombuffer(each, np.uint8), minlength=256) for each in (data, lines)]
    bytes_of[1] -= count * _IN_SEPARATOR
    for each in bytes_of:
        each[_SPACE] = 0
    return bool((bytes_of[0] == bytes_of[1]).all())


def _exact(text: str) -> Any:
    """Parse a JSON text with types; refuse a name that an object has twice.

    A number that no document of a sink has, because it is written as text there, is one of a type of its own.
    """
    value = json.loads(
        text, parse_int=_whole, parse_float=_fraction, parse_constant=_refuse, object_pairs_hook=_once
    )
    return decode_json(deep_json(value, _in_json, _PLAIN))


def literal(digits: str) -> Tagged:
    """Return the value that stands for a number that is neither an int of 64 bits nor the text of a float."""
    return Tagged(_NUMBER, digits)


def _whole(text: str) -> int | Tagged:
    if len(text) > _INT64_DIGITS:
        return literal(text)
    number = int(text)
    return number if -(2**63) <= number < 2**63 else literal(text)


def _fraction(text: str) -> float | Tagged:
    number = float(text)
    is_same = math.isfinite(number) and Decimal(repr(number)) == Decimal(text)
    return number if is_same else literal(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _in_json(value: Any) -> Any:
    assert isinstance(value, Tagged)
    return {f"${value.tag}": value.value}


def as_jsonb(value: Any) -> Any:
    """Return a value as a column of type `jsonb` gives it back.

    Its numbers are of the type `numeric`: there is no -0.0, and a float from 1e16 on is written with an
    exponent, and comes back as a whole number.
    """
    if type(value) is float and math.isfinite(value):
        if value == 0.0:
            return 0.0
        exact = Decimal(repr(value))
        is_whole = int(exact.as_tuple().exponent) >= 0
        return _whole(str(int(exact))) if is_whole else value
    if type(value) is list:
        return [as_jsonb(each) for each in value]
    if type(value) is dict:
        return {name: as_jsonb(each) for name, each in value.items()}
    return value


def digests_of(texts: Iterable[bytes]) -> Integers:
    """Return the same as `Lines.digests`, for texts of any kind."""
    found = list(texts)
    ends = np.cumsum(np.fromiter(map(len, found), dtype=np.int64, count=len(found)))
    data = np.frombuffer(b"".join(found), dtype=np.uint8)
    return _hashed(data, _edges(ends)[:-1], ends)


def column_digests(column: pa.Array) -> Integers:
    """Return the same as `digests_of`, for a column of texts without nulls."""
    if not len(column):
        return np.empty(0, dtype=np.int64)
    column = column.cast(pa.large_binary())
    _, places, data = column.buffers()
    edges = np.frombuffer(places, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    return _hashed(np.frombuffer(data or b"", dtype=np.uint8), edges[:-1], edges[1:])


def _hashed(data: npt.NDArray[np.uint8], starts: Integers, ends: Integers) -> Integers:
    """Hash parts of a buffer.

    A text is a row of words of eight bytes, the last one filled up with zeros. Each word is mixed and
    multiplied with an odd number of its place; the digest is the mixed sum of them, and of the length. Two
    texts that differ have one digest with a probability of about 2⁻⁶³.
    """
    lengths = ends - starts
    counts = (lengths >> 3) + 1
    found = np.empty(len(starts), dtype=np.uint64)
    edges, total = [0], np.cumsum(counts)
    while edges[-1] < len(starts):
        done = total[edges[-1] - 1] if edges[-1] else 0
        edges.append(max(edges[-1] + 1, int(np.searchsorted(total, done + _WORDS, "right"))))
    for first, last in pairwise(edges):
        begin, end = int(starts[first]), int(ends[last - 1])
        # Eight more bytes, because the last word of a text may reach beyond the buffer.
        part = np.concatenate([data[begin:end], np.zeros(8, dtype=np.uint8)])
        words = as_strided(part[:8].view(np.uint64), shape=(len(part) - 7,), strides=(1,))
        count = counts[first:last]
        firsts = np.cumsum(count) - count
        places = np.arange(int(count.sum())) - np.repeat(firsts, count)
        mixed = words[np.repeat(starts[first:last] - begin, count) + 8 * places]
        length = lengths[first:last].astype(np.uint64)
        mixed[firsts + count - 1] &= (_ONE << (_BYTES * (length & _LAST))) - _ONE
        mixed ^= mixed >> _SHIFT
        mixed *= _FIRST
        mixed ^= mixed >> _SHIFT
        mixed *= _multipliers(int(count.max()))[places]
        summed = np.add.reduceat(mixed, firsts) + (length + _ONE) * _LENGTH
        summed ^= summed >> _SHIFT
        summed *= _SECOND
        found[first:last] = summed ^ (summed >> _SHIFT)
    return found.view(np.int64)


_known = [np.empty(0, dtype=np.uint64)]


def _multipliers(count: int) -> npt.NDArray[np.uint64]:
    """Return an odd number for each place."""
    if len(_known[0]) < count:
        numbers = np.arange(1, 2 * count + 1, dtype=np.uint64) * _LENGTH
        numbers ^= numbers >> _SHIFT
        numbers *= _FIRST
        numbers ^= numbers >> _SHIFT
        numbers *= _SECOND
        _known[0] = (numbers ^ (numbers >> _SHIFT)) | _ONE
    return _known[0]
