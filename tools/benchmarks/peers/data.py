"""Defines the changes that every peer reads, and checks that a peer has read each of them once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

__all__ = ["FIELDS", "LostError", "check_keys", "document", "item", "key", "keys_in"]

FIELDS: Final = tuple(f"field{index}" for index in range(7))
_KEY: Final = re.compile(r"key-(\d{7})")
_FIRST: Final = 1_000_000


class LostError(Exception):
    """Raised if a peer has not delivered every change exactly once."""


def key(number: int) -> str:
    """Return the key of a document."""
    return f"key-{number:07}"


def document(number: int) -> dict[str, Any]:
    """Make a document of 325 bytes of BSON in nine fields."""
    fields = dict.fromkeys(FIELDS[:-1], "x" * 27)
    return {"_id": key(number), "number": _FIRST + number, **fields, FIELDS[-1]: "x" * 34}


def item(number: int) -> dict[str, dict[str, str]]:
    """Make an item of 325 bytes, as DynamoDB counts them, in nine attributes."""
    fields = {name: {"S": "x" * 37} for name in FIELDS}
    return {"pk": {"S": key(number)}, "number": {"N": str(_FIRST + number)}, **fields}


def keys_in(file: Path) -> list[int]:
    """Return the numbers in a file of keys, one from each line.

    The program of each peer writes a key in the form in which the peer returns the key, for example as JSON.

    Raises:
        LostError: Raised if a line contains no key.
    """
    numbers = []
    for line in file.read_text(encoding="utf-8").splitlines():
        found = _KEY.search(line)
        if not found:
            raise LostError(f"it delivered something that is no change of the test: {line[:80]!r}")
        numbers.append(int(found.group(1)))
    return numbers


def check_keys(delivered: Iterable[int], least: int, written: int) -> None:
    """Check that a peer has delivered enough changes: the first changes of the feed, each exactly once.

    Args:
        delivered: The numbers of the delivered changes, in any order.
        least: The number of changes that a peer must read.
        written: The number of changes in the feed. A peer that delivers batches may read more than it must.

    Raises:
        LostError: Raised if a change is missing, unknown or delivered twice.
    """
    counts = Counter(delivered)
    last = max(counts, default=-1) + 1
    for what, found in (
        ("it lost", set(range(max(last, least))) - counts.keys()),
        ("it delivered unknown changes:", {number for number in counts if number >= written}),
        ("it delivered more than once", {number for number, count in counts.items() if count > 1}),
    ):
        if found:
            raise LostError(f"{what} {len(found):,} of {max(last, least):,}, the first is {key(min(found))}")
