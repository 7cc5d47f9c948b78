"""Computes effective partition keys, by which the service places items in its partitions.

azure-cosmos computes them too, but with version 1 it hashes a whole number as if it had 32 bits, and leaves
out null; then a read of this key finds nothing. The values here are those of the vendor's other SDKs:
`PartitionKeyHashingTests` of Azure/azure-sdk-for-java and the tests of Azure/azure-sdk-for-rust.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

import mmh3

UNDEFINED: Final = object()
"""The component of an item that has no such property."""
_MASK: Final = (1 << 64) - 1
_MOST: Final = 100
"""With version 1, a text counts up to so many UTF-16 units, and is appended up to so many bytes."""
_NAN: Final = struct.pack("<Q", 0xFFF8000000000000)  # the one that .NET writes


def effective_key(values: Sequence[Any], version: int, *, hierarchical: bool) -> str:
    """Return the effective partition key, or the beginning that is common to all keys with these components.

    Raises:
        ValueError: If the vendor's SDKs disagree: with version 1, the 100th UTF-16 unit of the text is half a
            character.
    """
    if hierarchical:
        return "".join(_hash_128([value]) for value in values)
    return _version_1(values) if version == 1 else _hash_128(values)


def _hash_128(values: Iterable[Any]) -> str:
    low, high = mmh3.hash64(b"".join(_hashed(value, b"\xff") for value in values), 0, True, signed=False)
    digest = high.to_bytes(8, "big") + low.to_bytes(8, "big")
    # The two highest bits are 0, because no key is higher than "FF".
    return (bytes([digest[0] & 0x3F]) + digest[1:]).hex().upper()


def _hashed(value: Any, end_of_text: bytes) -> bytes:
    """Return the bytes of a component that are hashed."""
    if isinstance(value, str):
        return b"\x08" + value.encode() + end_of_text
    if _is_number(value):
        return b"\x05" + (_NAN if value != value else struct.pack("<d", float(value)))
    return _constant(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _constant(value: Any) -> bytes:
    if value is UNDEFINED:
        return b"\x00"
    if value is None:
        return b"\x01"
    if isinstance(value, bool):
        return b"\x03" if value else b"\x02"
    raise TypeError(f"a {type(value).__name__} cannot be a component of a partition key")


def _version_1(values: Iterable[Any]) -> str:
    cut = [_cut(value) if isinstance(value, str) else value for value in values]
    digest = mmh3.hash(b"".join(_hashed(value, b"\x00") for value in cut), 0, signed=False)
    return b"".join(_ordered(value) for value in [float(digest), *cut]).hex().upper()


def _cut(text: str) -> str:
    units = text.encode("utf-16-le")
    return units[: 2 * _MOST].decode("utf-16-le")


def _ordered(value: Any) -> bytes:
    """Return a component in the form whose bytes have the order of the values."""
    if isinstance(value, str):
        raw = value.encode()
        # A text that was cut has no end.
        end = b"\x00" if len(raw) <= _MOST else b""
        return b"\x08" + bytes(byte + 1 for byte in raw[: _MOST + 1]) + end
    return b"\x05" + _ordered_number(float(value)) if _is_number(value) else _constant(value)


def _ordered_number(value: float) -> bytes:
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    left = bits ^ (1 << 63) if bits < 1 << 63 else (~bits + 1) & _MASK
    found, left = [left >> 56], left << 8 & _MASK
    # Each byte contains seven bits. Its lowest bit says whether another byte follows.
    while left:
        found.append(left >> 56 | 1)
        left = left << 7 & _MASK
    if len(found) == 1:
        return bytes([*found, 0])
    return bytes([*found[:-1], found[-1] & 0xFE])
