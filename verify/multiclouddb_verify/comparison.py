"""Decides whether a row of the target equals the source: pure functions, without I/O.

K is the position that the sink has stored. It is read before anything else, so the target contains everything
up to K, or the target is wrong.

1. A key that has not changed since K has one value, which the scan has read: the row must equal it.
2. A key that has changed since K may have any of its versions since K. A row with one of them is equal; any
   other row is judged again, with a later K.
3. A row whose `order_key` is above everything that the source has ever used refuses all later changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt
import orjson

from multiclouddb_api import MulticloudDbError, decode_json
from multiclouddb_api.codec import canonical_json

__all__ = [
    "GONE",
    "UNKNOWN",
    "UNREADABLE",
    "Integers",
    "Join",
    "Kind",
    "Seen",
    "Verdict",
    "canonical",
    "canonicals",
    "digest",
    "digests_of",
    "document_digest",
    "first_difference",
    "join",
    "judge",
    "text_digest",
    "text_digests",
]

GONE: Final = 0
"""The digest of a document that does not exist."""
UNREADABLE: Final = 1
"""The digest of a text that cannot be decoded."""
UNKNOWN: Final = 2
"""The digest of a document that exists, but which the change did not contain."""
_FAST: Final = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)

Integers = npt.NDArray[np.int64]


class Kind(StrEnum):
    """The kind of a difference."""

    MISSING = "missing"
    """The source has the document, and the target has no row of it."""
    GHOST = "ghost"
    """The target has the document, and the source does not."""
    STALE = "stale"
    """The target has another value, or the same value of another type."""
    UNREADABLE = "unreadable"
    """The target has a text that is not a document."""
    DUPLICATE = "duplicate"
    """The target has several rows of one key."""
    TOMBSTONE = "tombstone"
    """The target says that the document was deleted, and the source has it."""
    BLOCKED = "blocked"
    """The row has an `order_key` that is higher than that of any change, so it would refuse later changes."""


class Verdict(StrEnum):
    """What a round says about a key that does not differ."""

    EQUAL = "equal"
    WAIT = "wait"
    """The key has changed since the sink's position: judge it again in a later round."""


@attrs.frozen
class Seen:
    """One row of the target; `digest` is `GONE` for a tombstone."""

    order_key: str
    digest: int


def digest(data: bytes) -> int:
    """Return 64 bits that stand for a text."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)


def digests_of(texts: Iterable[bytes]) -> Integers:
    """Return the same as `digest`, for many texts."""
    return np.frombuffer(b"".join([blake2b(text, digest_size=8).digest() for text in texts]), dtype="<i8")


def canonical(value: Any) -> bytes:
    """Return the same as `canonical_json`, which is slow because it looks at every value."""
    try:
        return _checked(orjson.dumps(value, option=_FAST), value)
    except (TypeError, ValueError, RecursionError):
        return canonical_json(value)


def canonicals(values: Sequence[Any]) -> list[bytes]:
    """Return the same as `canonical`, for many values."""
    dumps = orjson.dumps
    try:
        texts = [dumps(value, None, _FAST) for value in values]
    except (TypeError, ValueError, RecursionError):
        return list(map(canonical, values))
    return [
        # A UUID has four dashes as text, and NaN is null.
        text if text.count(b"-") < 4 and b"null" not in text and b'"$' not in text else _checked(text, value)
        for text, value in zip(texts, values, strict=True)
    ]


def _checked(text: bytes, value: Any) -> bytes:
    """Return a text of orjson if it stands for the value, and otherwise the canonical text."""
    if b'"$' not in text and ((b"null" not in text and text.count(b"-") < 4) or orjson.loads(text) == value):
        return text
    return canonical_json(value)


def document_digest(document: Mapping[str, Any] | None) -> int:
    """Return the digest of a document of the source; `GONE` for None."""
    return GONE if document is None else digest(canonical(document))


def text_digest(text: str | None) -> int:
    """Return the digest of a document in the target's text; equal values have equal digests."""
    if text is None:
        return UNREADABLE
    try:
        if '"$' in text:
            return digest(canonical_json(decode_json(text)))
        return digest(orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS))
    except (
        MulticloudDbError,
        TypeError,
        ValueError,
    ):  # orjson raises TypeError if the text is nested too deep
        return UNREADABLE


def text_digests(texts: Sequence[str | None]) -> Integers:
    """Return the same as `text_digest`, for many texts."""
    dumps, loads, option = orjson.dumps, orjson.loads, orjson.OPT_SORT_KEYS
    if None not in texts:
        try:
            return digests_of(
                [
                    canonical_json(decode_json(text)) if '"$' in text else dumps(loads(text), None, option)  # type: ignore[operator, arg-type]
                    for text in texts
                ]
            )
        except (MulticloudDbError, TypeError, ValueError):
            pass
    return np.fromiter(map(text_digest, texts), dtype=np.int64, count=len(texts))


def judge(
    rows: Sequence[Seen],
    versions: Mapping[str, int],
    scanned: int,
    *,
    moved: bool,
    ceiling: str | None,
    own: str | None = None,
    exact: bool = False,
) -> Verdict | Kind:
    """Judge one key.

    Args:
        rows: The rows of the target with this key, from one version of it.
        versions: The digests of the versions of the key since the first K, by their `order_key`.
        scanned: The digest that the scan has read; `GONE` if it has not found the key.
        moved: Whether the key has changed since the last K.
        ceiling: An `order_key` that is higher than that of each change before the rows were read, if known.
        own: The `order_key` of the scanned row, where each row has its own.
        exact: Whether no row may have a higher `order_key` than the key's last change. Where the rows of a
            snapshot sort after all earlier changes, a row may.
    """
    if len(rows) > 1:
        return Kind.DUPLICATE
    row = rows[0] if rows else None
    if row is not None and ceiling is not None and row.order_key > ceiling:
        return Kind.BLOCKED
    if moved:
        if row is not None and versions.get(row.order_key) == row.digest:
            return Verdict.EQUAL
        return Verdict.WAIT
    last = max(versions, default=own)
    expected = versions[max(versions)] if versions else scanned
    found = GONE if row is None else row.digest
    if expected == UNKNOWN:
        return Verdict.WAIT
    if found == expected:
        # A lower `order_key` than that of the last change does no harm.
        above = exact and row is not None and last is not None and row.order_key > last
        return Kind.BLOCKED if above else Verdict.EQUAL
    if found == UNREADABLE:
        return Kind.UNREADABLE
    if expected == GONE:
        return Kind.GHOST
    if found != GONE:
        return Kind.STALE
    return Kind.MISSING if row is None else Kind.TOMBSTONE


@attrs.frozen
class Join:
    """The result of comparing the digests of one range of hashes.

    Attributes:
        equal: The number of documents that are equal.
        rest: The hashes of all other keys, which are judged one by one.
    """

    equal: int
    rest: Integers


def join(
    source: tuple[Integers, Integers],
    target: tuple[Integers, Integers],
    suspects: npt.NDArray[np.bool_],
    changed: Collection[int],
) -> Join:
    """Compare the digests of keys that have not changed, and that both sides have once.

    Args:
        source: The hashes of the keys that the scan has found, and the digests of their documents.
        target: The same of the rows of the target.
        suspects: For each row of the target, whether its `order_key` has to be looked at.
        changed: The hashes of the keys that have changed since K.
    """
    ours, our_digests = _sorted_pairs(*source)
    order = np.argsort(target[0], kind="stable")
    theirs, their_digests, suspects = target[0][order], target[1][order], suspects[order]
    once = _single(theirs)
    plain = _single(ours)
    at = np.searchsorted(theirs, ours)
    inside = at < len(theirs)
    at = np.where(inside, at, 0)
    if len(theirs):
        same = inside & plain & (theirs[at] == ours) & once[at]
        same &= (their_digests[at] == our_digests) & ~suspects[at]
    else:
        same = np.zeros(len(ours), dtype=bool)
    moved = np.fromiter(changed, dtype=np.int64, count=len(changed))
    if len(moved):
        same &= ~np.isin(ours, moved)
    settled = np.zeros(len(theirs), dtype=bool)
    settled[at[same]] = True
    # A tombstone of a key that the source does not have is right.
    gone = np.flatnonzero(once & (their_digests == GONE) & ~suspects)
    settled[gone[~np.isin(theirs[gone], ours) & ~np.isin(theirs[gone], moved)]] = True
    return Join(int(same.sum()), np.unique(np.concatenate([ours[~same], theirs[~settled], moved])))


def _sorted_pairs(hashes: Integers, digests: Integers) -> tuple[Integers, Integers]:
    """Sort by hash; a row that a scan has delivered twice with the same value counts once."""
    order = np.lexsort((digests, hashes))
    hashes, digests = hashes[order], digests[order]
    if not len(hashes):
        return hashes, digests
    new = np.ones(len(hashes), dtype=bool)
    new[1:] = (hashes[1:] != hashes[:-1]) | (digests[1:] != digests[:-1])
    return hashes[new], digests[new]


def _single(ordered: Integers) -> npt.NDArray[np.bool_]:
    """Return for each of the sorted hashes whether it occurs once."""
    single = np.ones(len(ordered), dtype=bool)
    if len(ordered) > 1:
        same = ordered[1:] == ordered[:-1]
        single[1:] &= ~same
        single[:-1] &= ~same
    return single


_MISSING: Final = object()


def first_difference(ours: Any, theirs: Any, path: str = "$") -> tuple[str, Any, Any] | None:
    """Return the first path at which two values differ, with both values; None if they are equal.

    A value that one side lacks is returned as None.
    """
    if canonical_json([ours]) == canonical_json([theirs]):
        return None
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in sorted({*ours, *theirs}):
            one, other = ours.get(name, _MISSING), theirs.get(name, _MISSING)
            where = f"{path}.{name}"
            if one is _MISSING or other is _MISSING:
                return where, None if one is _MISSING else one, None if other is _MISSING else other
            if found := first_difference(one, other, where):
                return found
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if found := first_difference(one, other, f"{path}[{number}]"):
                return found
    return path, ours, theirs
