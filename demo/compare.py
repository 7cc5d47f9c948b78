"""Compares the table with its source, row by row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import attrs

from demo.places import Places
from demo.stores import open_store, plain
from demo.targets import target_of
from multiclouddb_api import decode_json, encode_json
from multiclouddb_verify import DifferenceKind

__all__ = ["Verdict", "compare", "tamper"]

_SHOWN: Final = 5


@attrs.frozen
class Verdict:
    """The result of the comparison.

    Attributes:
        rows: The number of documents in the store.
        missing: The number of keys that are missing in the table.
        extra: The number of keys that only the table contains.
        different: The number of keys whose documents differ.
        examples: The first differences, one line each.
    """

    rows: int
    missing: int
    extra: int
    different: int
    examples: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Return True if the table and the store contain the same documents."""
        return not (self.missing or self.extra or self.different)


def compare(places: Places) -> Verdict:
    """Compare every document of the store with its row in the table."""
    table = dict(_rows(places))
    rows = missing = different = 0
    examples: list[str] = []
    with closing(open_store()) as store:
        for name, document in store.rows():
            rows += 1
            found = table.pop(name, None)
            if found == document:
                continue
            missing += found is None
            different += found is not None
            examples.append(f"{name}: the store has {document}, the table {found or 'nothing'}")
    examples += [f"{name}: only in the table" for name in table]
    return Verdict(rows, missing, len(table), different, tuple(examples[:_SHOWN]))


def tamper(places: Places) -> str:
    """Change one row of the table to test the comparison; return the key of this row."""
    name = min(name for name, _ in _rows(places))
    target_of(places).damage(name, DifferenceKind.STALE)
    return name


def _rows(places: Places) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the key and the document of each row."""
    for key, document in target_of(places).rows():
        yield _canonical(key), plain(decode_json(document))


def _canonical(key: str) -> str:
    return encode_json(json.loads(key)).decode()
