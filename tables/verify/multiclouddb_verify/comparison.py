"""Decides whether a row of the target equals the source: pure functions, without I/O.

K is the position that the sink has stored. It is read before anything else, so the target contains everything
up to K, or the target is wrong.

1. A key that has not changed since K has one value, which the scan has read: the row must equal it.
2. A key that has changed since K may have any of its versions since K. A row with one of them is equal; any
   other row is judged again, with a later K.
3. A row whose `order_key` is above everything that the source has ever used refuses all later changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from multiclouddb_api.codec import canonical_json
from multiclouddb_verify.texts import Integers, canonicals, parsed

__all__ = [
    "BURIED",
    "GONE",
    "UNKNOWN",
    "UNREADABLE",
    "DifferenceKind",
    "Join",
    "Seen",
    "Verdict",
    "document_digests",
    "first_difference",
    "is_certain",
    "join",
    "judge",
    "judge_foreign",
    "places_in",
    "text_digests",
]

GONE: Final = 0
"""The digest of a document that does not exist."""
UNREADABLE: Final = 1
"""The digest of a text that cannot be decoded."""
UNKNOWN: Final = 2
"""The digest of a document that exists, but which the change did not contain."""
BURIED: Final = 3
"""The digest of a tombstone that has something of its document. It equals no document, because who reads the
live rows does not see it, nor `GONE`, because a tombstone has nothing but the key."""


class DifferenceKind(StrEnum):
    """What is wrong with a key."""

    MISSING = "missing"
    """The source has the document, but the table has no row of it."""
    GHOST = "ghost"
    """The table has the document, or a tombstone with something of it, but the source does not."""
    STALE = "stale"
    """The table has another value, or the same value with another type."""
    UNREADABLE = "unreadable"
    """The table has a text that is no document."""
    DUPLICATE = "duplicate"
    """The table has several rows of the key."""
    TOMBSTONE = "tombstone"
    """The table has a tombstone, but the source has the document."""
    BLOCKED = "blocked"
    """The row's `order_key` is higher than that of any change, so no later change would replace the row."""
    FOREIGN = "foreign"
    """The sink never writes the text of the row's key, for example because it has a space in it."""


class Verdict(StrEnum):
    """The result of a round for a key that does not differ."""

    EQUAL = "equal"
    WAIT = "wait"
    """The key has changed since the sink's position: judge it again in a later round."""


@attrs.frozen
class Seen:
    """One row of the target; `digest` is `GONE` for a tombstone."""

    order_key: str
    digest: int


def document_digests(documents: Sequence[Mapping[str, Any] | None]) -> Integers:
    """Return the digest of each document of the source; `GONE` for None."""
    if None not in documents:
        return canonicals(list(documents)).digests()
    found = np.full(len(documents), GONE, dtype=np.int64)
    there = [at for at, document in enumerate(documents) if document is not None]
    found[there] = canonicals([documents[at] for at in there]).digests()
    return found


def text_digests(texts: Sequence[str | None]) -> Integers:
    """Return the digest of each document in the target's text; equal values have equal digests."""
    found = None if None in texts else parsed(texts)  # type: ignore[arg-type]
    if found is not None:
        return found.digests()
    if len(texts) == 1:
        return np.full(1, UNREADABLE, dtype=np.int64)
    middle = len(texts) // 2
    return np.concatenate([text_digests(texts[:middle]), text_digests(texts[middle:])])


def judge(
    rows: Sequence[Seen],
    versions: Mapping[str, int],
    scanned: int,
    *,
    moved: bool,
    ceiling: str,
    own: str | None = None,
    exact: bool = False,
) -> Verdict | DifferenceKind:
    """Judge one key.

    Args:
        rows: The rows of the target with this key, from one version of it.
        versions: The digests of the versions of the key since the first K, by their `order_key`.
        scanned: The digest that the scan has read; `GONE` if it has not found the key.
        moved: Whether the key has changed since the last K.
        ceiling: An `order_key` that is higher than that of each change before the rows were read.
        own: The `order_key` of the scanned row, where each row has its own.
        exact: Whether no row may have a higher `order_key` than the key's last change. Where the rows of a
            snapshot sort after all earlier changes, a row may.
    """
    if len(rows) > 1:
        return DifferenceKind.DUPLICATE
    row = rows[0] if rows else None
    if row is not None and row.order_key > ceiling:
        return DifferenceKind.BLOCKED
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
        return DifferenceKind.BLOCKED if above else Verdict.EQUAL
    if found == UNREADABLE:
        return DifferenceKind.UNREADABLE
    if expected == GONE:
        return DifferenceKind.GHOST
    if found not in (GONE, BURIED):
        return DifferenceKind.STALE
    return DifferenceKind.MISSING if row is None else DifferenceKind.TOMBSTONE


def is_certain(kind: DifferenceKind, rows: Sequence[Seen], ceiling: str) -> bool:
    """Return whether a row of the table is wrong whatever the source has.

    Args:
        kind: The difference that was judged.
        rows: As in `judge`.
        ceiling: As in `judge`.
    """
    match kind:
        case DifferenceKind.UNREADABLE | DifferenceKind.DUPLICATE | DifferenceKind.FOREIGN:
            return True
        case DifferenceKind.BLOCKED:
            return rows[0].order_key > ceiling
        case _:
            return False


def judge_foreign(rows: Sequence[Seen]) -> Verdict | DifferenceKind:
    """Judge a key whose text the sink would not write: no row of it may have a document."""
    return DifferenceKind.FOREIGN if any(row.digest != GONE for row in rows) else Verdict.EQUAL


@attrs.frozen
class Join:
    """The result of comparing the digests of one range of hashes.

    Attributes:
        equal: The number of documents that are equal.
        rest: The hashes of all other keys, which are judged one by one.
        still: The number of the source's keys that have not changed.
        different: The number of them that have no row with the same digest.
        ghosts: The number of documents that only the target has, and whose keys have not changed.
    """

    equal: int
    rest: Integers
    still: int
    different: int
    ghosts: int


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
    moved = np.sort(np.fromiter(changed, dtype=np.int64, count=len(changed)))
    still = ~places_in(moved, ours)[1]
    at, same = places_in(theirs, ours)
    if len(theirs):
        same &= their_digests[at] == our_digests
    different = int((still & ~same).sum())
    same &= still & _single(ours)
    if len(theirs):
        same &= once[at] & ~suspects[at]
    settled = np.zeros(len(theirs), dtype=bool)
    settled[at[same]] = True
    # A tombstone of a key that the source does not have is right.
    gone = np.flatnonzero(once & (their_digests == GONE) & ~suspects)
    settled[gone[~places_in(ours, theirs[gone])[1] & ~places_in(moved, theirs[gone])[1]]] = True
    rest = np.unique(np.concatenate([ours[~same], theirs[~settled], moved]))
    is_ghost = ~places_in(ours, theirs)[1] & ~places_in(moved, theirs)[1] & (their_digests != GONE)
    return Join(int(same.sum()), rest, int(still.sum()), different, int(is_ghost.sum()))


def places_in(ordered: Integers, wanted: Integers) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Return a place in the sorted numbers for each wanted one, and whether it is there."""
    if not len(ordered):
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=bool)
    at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return at, ordered[at] == wanted


def _sorted_pairs(hashes: Integers, digests: Integers) -> tuple[Integers, Integers]:
    """Sort by hash; a row that a scan has delivered twice with the same value counts once."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    if len(hashes) < 2 or not (ordered[1:] == ordered[:-1]).any():
        return ordered, digests[order]
    order = np.lexsort((digests, hashes))
    hashes, digests = hashes[order], digests[order]
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
