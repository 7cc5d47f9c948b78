"""Encodes and decodes continuation tokens, which are opaque to applications and contain checked data.

    token   = base64url( flag, CRC-32 of the payload, payload )      without padding
    flag    = "j": payload is JSON, "z": payload is raw-deflated JSON; whichever is shorter
    payload = {"v": 1, "p": provider, "r": [database, collection, incarnation], "s": scope,
               "o": digest of the options that change positions, "t": issued at (s), "c": state,
               "w": watermark (µs), "u": [read until (µs), whether it is estimated],
               "k": [[partition, skipped record], …],
               "n": 1 while no event was delivered}     the last four if any

Decoding runs no code from the token, inflates into a bounded buffer, and counts the values before it parses
them. Decoding any text results in either a token or `INVALID_REQUEST`. The engine never makes a token that it
cannot read again. The checksum detects damage, but not forgery. A token needs no protection from forgery,
because it gives nobody access to data.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeGuard

import attrs
import orjson
from attrs import frozen

from multiclouddb_api import (
    EntireCluster,
    EntireCollection,
    EntireDatabase,
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    FeedScope,
    LogicalPartition,
    MulticloudDbError,
    PhysicalPartition,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_api.codec import JsonValue, encode_json

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES: Final = range(-62_135_596_800_000_000, 253_402_300_800_000_000)
"""The earliest and the latest time: the years 1 to 9999."""


@frozen
class ReadUntil:
    """The moment before which every change has been returned.

    Attributes:
        micros: The moment, in the form that a token stores.
        estimated: True if an answer of the service made the moment likely, but did not prove it.
    """

    micros: int
    estimated: bool


def to_micros(moment: datetime) -> int:
    """Convert a time to the form that a token stores."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def to_moment(micros: int) -> datetime:
    """Return the time that `to_micros` has converted."""
    return _EPOCH + timedelta(microseconds=micros)


def is_micros(value: Any) -> TypeGuard[int]:
    """Return True if a value in a token's JSON is a time in microseconds, as `to_micros` returns it."""
    return type(value) is int and value in _TIMES


# A parser builds an object for each value, and a token of 84 kB can contain so many values that their objects
# take gigabytes. So the values are counted first, without an object for each byte.
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_LEVELS: Final = 16
MAX_VALUES: Final = 2_000_000
"""The highest number of values; object keys count as values, and an empty list or object counts as two."""

_SQUARED: Final = bytes.maketrans(b"{}", b"[]")
_CONTENT: Final = bytes(set(range(256)) - set(b'[]{},:"'))
_MARKS: Final = b',:"'


def beyond_bounds(text: bytes) -> str | None:
    """Return the limit that a JSON text exceeds, or None.

    If the text is not JSON, the result applies to the part that a parser would read before it stops.
    """
    if len(text) > MAX_BYTES:
        return f"it has more than {MAX_BYTES >> 20} MiB of JSON"
    if len(text) < MAX_VALUES and text.count(b"[") + text.count(b"{") <= MAX_LEVELS:
        return None  # most tokens have too few bytes for many values, and few brackets
    structure = _structure(text)
    if structure is None or (len(structure) >= MAX_VALUES and _count(structure) >= MAX_VALUES):
        return f"it has more than {MAX_VALUES} values"
    if _is_deep(structure.translate(None, _MARKS)):
        return f"it nests deeper than {MAX_LEVELS} levels"
    return None


def _structure(text: bytes) -> bytes | None:
    """Return only the brackets, commas and colons outside strings, with braces replaced by brackets."""
    if b"\\" in text:
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = text.translate(_SQUARED, _CONTENT)
    if marks.count(b'"') > 2 * MAX_VALUES:
        return None
    # Two adjacent quotes are an empty string, or the border between two strings. Removing them does not
    # change whether any other mark is inside or outside a string. After this, only the strings that contain
    # marks remain.
    parts = marks.replace(b'""', b"").split(b'"')
    return b"".join(parts[::2])


def _count(structure: bytes) -> int:
    """Count all values except the outermost: one for each opening bracket, comma and colon."""
    return sum(map(structure.count, (b"[", b",", b":")))


def _is_deep(brackets: bytes) -> bool:
    for _ in range(MAX_LEVELS):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


VERSION: Final = 1
_MOST_CHARACTERS: Final = MAX_BYTES // 3 * 4 + 16
# The memory that the parser and the values need for each byte of JSON, and the limit for all values together.
_PARSER_TAKES, _MOST_FOR_A_BYTE, _MOST_FOR_VALUES = 14, 32, 250_000_000
_FIELD: Final = "continuation_token"
_PLAIN, _DEFLATED = b"j", b"z"


@frozen
class Envelope:
    """The parts of a decoded token.

    Attributes:
        provider_id: The id of the provider that made the token.
        address: The resource.
        incarnation: The incarnation of the resource, or None if the service has no such id.
        scope: The `scope_text` of the request that made the token.
        options_digest: The `ProviderOptions.position_digest` of the request that made the token.
        state: The lineage, or the way in which the feed ended; see `multiclouddb_spi.continuation.state`.
        issued_at: The Unix time in seconds at which the token was made.
        watermark: The highest watermark that a page has reported, in µs since 1970, or None.
        skipped: The records that could not be decoded and that a read from this token skips, each with its
            partition and position.
        read_until: The moment before which every change has been returned, or None.
        fresh: True if no page before this token has delivered an event.
    """

    provider_id: str
    address: ResourceAddress
    incarnation: str | None
    scope: str
    options_digest: str
    state: JsonValue
    issued_at: int = attrs.field(factory=lambda: int(time.time()))
    watermark: int | None = None
    skipped: tuple[tuple[str, str], ...] = ()
    read_until: ReadUntil | None = None
    fresh: bool = False


def scope_text(scope: FeedScope, partition_id: str | None = None) -> str:
    """Return a scope in the form that a token stores; a partition key only as a digest."""
    match scope:
        case EntireCollection():
            return "collection"
        case EntireDatabase():
            return "database"
        case EntireCluster():
            return "cluster"
        case LogicalPartition(key):
            text = encode_json([[name, value] for name, value in key.partition_key.items()])
            return f"key:{hashlib.sha256(text).hexdigest()[:16]}"
        case PhysicalPartition(with_descendants=with_descendants):
            return f"{'descendants' if with_descendants else 'partition'}:{partition_id}"


def encode_token(envelope: Envelope) -> str:
    """Return the token's text."""
    address = envelope.address
    body: dict[str, Any] = {
        "v": VERSION,
        "p": envelope.provider_id,
        "r": [address.database, address.collection, envelope.incarnation],
        "s": envelope.scope,
        "o": envelope.options_digest,
        "t": envelope.issued_at,
        "c": envelope.state,
    }
    if envelope.watermark is not None:
        body["w"] = envelope.watermark
    if envelope.read_until is not None:
        body["u"] = [envelope.read_until.micros, envelope.read_until.estimated]
    if envelope.fresh:
        body["n"] = 1
    if envelope.skipped:
        body["k"] = [list(item) for item in envelope.skipped]
    try:
        plain = orjson.dumps(body)
        problem = beyond_bounds(plain)
    except orjson.JSONEncodeError as error:
        plain, problem = b"", f"it is not JSON, or nests deeper than {MAX_LEVELS} levels ({error})"
    if problem is not None:
        raise _cannot_be_made(envelope, problem)
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    deflated = deflate.compress(plain) + deflate.flush()
    flag, payload = (_DEFLATED, deflated) if len(deflated) < len(plain) else (_PLAIN, plain)
    return _text(flag + zlib.crc32(payload).to_bytes(4, "big") + payload)


def _cannot_be_made(envelope: Envelope, problem: str) -> MulticloudDbError:
    return MulticloudDbError(
        f"{_FIELD}: cannot be made ({problem}); if the feed is too large, read its partitions one by one "
        "with client.plan_partitions; if a position is nested too deeply, the provider must write it as text",
        ErrorDetail(ErrorCategory.PERMANENT_FAILURE, provider=envelope.provider_id, operation="read_changes"),
    )


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def decode_token(token: str) -> Envelope:
    """Decode a token into its parts; the caller compares the parts with the request."""
    try:
        body = _parse(_payload(token))
    except MemoryError as error:
        raise invalid_request(
            _FIELD, "is too large for the memory that this process may use", "give the process more memory"
        ) from error
    version = body.get("v")
    if isinstance(version, int) and version > VERSION:
        raise invalid_request(
            _FIELD,
            f"has version {version}, this library reads up to {VERSION}",
            "upgrade multiclouddb",
            ErrorReason.UNKNOWN_VERSION,
        )
    match body:
        case {
            "v": 1,
            "p": str(provider),
            "r": [str() | None as database, str() | None as collection, str() | None as incarnation],
            "s": str(scope),
            "o": str(options),
            "t": int(issued),
            "c": state,
        }:
            return Envelope(
                provider, _address(database, collection), incarnation, scope, options, state, issued,
                _watermark(body.get("w")), _skipped(body.get("k", [])), _read_until(body.get("u")),
                _fresh(body.get("n")),
            )  # fmt: skip
        case _:
            raise _damaged("fields are missing or of the wrong type")


def _payload(token: str) -> bytes:
    if len(token) > _MOST_CHARACTERS:
        raise _damaged("it is too large")
    try:
        padded = token + "=" * (-len(token) % 4)
        raw = binascii.a2b_base64(padded.encode("ascii").translate(_FROM_URL), strict_mode=True)
    except (ValueError, UnicodeEncodeError) as error:
        raise _damaged("it is not base64url text") from error
    last = len(raw) // 3
    if _text(raw[3 * last :]) != token[4 * last :]:
        raise _damaged("its last characters are not what this library writes")
    flag, checksum, payload = raw[:1], raw[1:5], raw[5:]
    if flag not in (_PLAIN, _DEFLATED) or len(checksum) != 4:
        raise _damaged("it does not begin like a token")
    if zlib.crc32(payload).to_bytes(4, "big") != checksum:
        raise _damaged("its checksum does not match")
    return payload if flag == _PLAIN else _inflate(payload)


_FROM_URL: Final = bytes.maketrans(b"-_+/", b"+/  ")


def _inflate(payload: bytes) -> bytes:
    inflate = zlib.decompressobj(-15)
    try:
        plain = inflate.decompress(payload, MAX_BYTES)
    except zlib.error as error:
        raise _damaged("it cannot be inflated") from error
    if not inflate.eof or inflate.unused_data:
        raise _damaged("it is cut short or too large")
    return plain


def _parse(payload: bytes) -> dict[str, Any]:
    problem = beyond_bounds(payload)
    if problem is not None:
        raise _damaged(problem)
    # If the parser cannot allocate memory for the values, it ends the process. Therefore, the memory is
    # allocated here first, and freed before the parser runs.
    bytes(_PARSER_TAKES * len(payload) + min(_MOST_FOR_A_BYTE * len(payload), _MOST_FOR_VALUES))
    try:
        body = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise _damaged("it contains no JSON") from error
    if not isinstance(body, dict):
        raise _damaged("it contains no JSON object")
    return body


def _address(database: str | None, collection: str | None) -> ResourceAddress:
    try:
        return ResourceAddress(database, collection)
    except MulticloudDbError as error:
        raise _damaged("its address is empty") from error


def _watermark(value: object) -> int | None:
    if value is None or is_micros(value):
        return value
    raise _damaged("its watermark is not a time")


def _fresh(value: object) -> bool:
    if value is None or (type(value) is int and value == 1):
        return value is not None
    raise _damaged("it does not say whether it has delivered an event")


def _read_until(value: object) -> ReadUntil | None:
    match value:
        case None:
            return None
        case [micros, bool(estimated)] if is_micros(micros):
            return ReadUntil(micros, estimated)
    raise _damaged("the moment until which it was read is not a time")


def _skipped(value: object) -> tuple[tuple[str, str], ...]:
    match value:
        case list() if all(
            isinstance(item, list) and len(item) == 2 and all(isinstance(text, str) for text in item)
            for item in value
        ):
            return tuple((item[0], item[1]) for item in value)
    raise _damaged("its skipped records are unreadable")


def _damaged(reason: str) -> MulticloudDbError:
    return invalid_request(
        _FIELD,
        f"is not a token of this library or is damaged ({reason})",
        "pass a page's continuation_token unchanged; store it as text or blob without a length limit",
        ErrorReason.MALFORMED,
    )
