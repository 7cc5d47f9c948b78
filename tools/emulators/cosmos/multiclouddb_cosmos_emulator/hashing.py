"""Computes effective partition keys: the positions of partition keys in the range from "" to "FF".

Version 2 hashes the whole key to 128 bits. A hierarchical key is hashed level by level. Therefore
the text for the first levels of a key is the beginning of the text for the whole key. Version 1
hashes the key to 32 bits and appends the key itself to the hash.

With version 1, azure-cosmos hashes a whole number as if it had 32 bits, and leaves out null. The vendor's
other SDKs do not: `PartitionKeyHashingTests` of Azure/azure-sdk-for-java.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import mmh3

from multiclouddb_cosmos_emulator.values import UNDEFINED, Json

__all__ = ["boundary_v1", "hash_hierarchy", "hash_v1", "hash_v2"]

_UNDEFINED, _NULL, _FALSE, _TRUE, _NUMBER, _STRING = b"\x00", b"\x01", b"\x02", b"\x03", b"\x05", b"\x08"
_MASK: Final = (1 << 64) - 1
_V1_LENGTH: Final = 100
_NAN: Final = struct.pack("<Q", 0xFFF8000000000000)  # the one that .NET writes


def _encoded(value: Json, end_of_string: bytes) -> bytes:
    """Return the bytes that are hashed for a component."""
    if value is UNDEFINED:
        return _UNDEFINED
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, int | float):
        return _NUMBER + (_NAN if value != value else struct.pack("<d", float(value)))
    return _STRING + str(value).encode() + end_of_string


def _hashed(encoded: bytes) -> str:
    low, high = mmh3.hash64(encoded, 0, True, signed=False)
    raw = high.to_bytes(8, "big") + low.to_bytes(8, "big")
    # The two highest bits are 0, because the end of the range is "FF".
    return (bytes([raw[0] & 0x3F]) + raw[1:]).hex().upper()


def hash_v2(values: Sequence[Json]) -> str:
    """Hash a key with version 2 into 32 hexadecimal digits."""
    return _hashed(b"".join(_encoded(value, b"\xff") for value in values))


def hash_hierarchy(values: Sequence[Json]) -> str:
    """Hash a key of kind `MultiHash` into 32 digits per level."""
    return "".join(_hashed(_encoded(value, b"\xff")) for value in values)


def hash_v1(values: Sequence[Json]) -> str:
    """Hash a key with version 1. A text counts up to 100 UTF-16 units, because the service counts so."""
    cut = [_cut(value) if isinstance(value, str) else value for value in values]
    encoded = b"".join(_encoded(value, b"\x00") for value in cut)
    digest = float(mmh3.hash(encoded, 0, signed=False))
    return b"".join(_ordered(value) for value in [digest, *cut]).hex().upper()


def boundary_v1(digest: int) -> str:
    """For version 1, return the lowest effective partition key with at least the given hash."""
    return _ordered(float(digest)).hex().upper()


def _cut(text: str) -> str:
    # .NET writes half a character as U+FFFD.
    return text.encode("utf-16-le")[: 2 * _V1_LENGTH].decode("utf-16-le", "replace")


def _ordered(value: Json) -> bytes:
    """Encode a component so that the bytes have the same order as the values."""
    if value is UNDEFINED:
        return _UNDEFINED
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, int | float):
        return _NUMBER + _ordered_number(float(value))
    raw = str(value).encode()
    short = len(raw) <= _V1_LENGTH
    return _STRING + bytes(byte + 1 for byte in raw[: _V1_LENGTH + 1]) + (b"\x00" if short else b"")


def _ordered_number(value: float) -> bytes:
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    payload = bits ^ (1 << 63) if bits < 1 << 63 else (~bits + 1) & _MASK
    out, payload = [payload >> 56], payload << 8 & _MASK
    # Each byte contains seven bits of the number. Its lowest bit is 1 in every byte except the last.
    while payload:
        out.append(payload >> 56 | 1)
        payload = payload << 7 & _MASK
    if len(out) == 1:
        return bytes([*out, 0])
    return bytes([*out[:-1], out[-1] & 0xFE])
