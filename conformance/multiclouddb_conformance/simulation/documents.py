"""Returns the documents of a simulated collection, in the order of a scan.

The documents are the current ones, or those that existed after a given commit.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from typing import Any, Final

from multiclouddb_api import MulticloudDbKey
from multiclouddb_conformance.simulation.log import Document, Log

__all__ = ["PLACES", "ScannedLog", "place_in_scan"]

PLACES: Final = 2**62
"""Each key's place in a scan is a number below this value."""


def place_in_scan(key: MulticloudDbKey) -> int:
    """Return the place of a key in the order of a scan. The place is the same in every process."""
    return int.from_bytes(hashlib.blake2b(key.canonical(), digest_size=8).digest(), "big") >> 2


class ScannedLog(Log):
    """A log whose documents can be scanned."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._scans: dict[Any, Any] = {}

    def rows(self, low: int, high: int, commit: int | None) -> list[tuple[MulticloudDbKey, Document]]:
        """Return the documents between two places in a scan.

        Args:
            low: The first place.
            high: The end of the range; the document at this place is not returned.
            commit: Return the documents as they were after this commit; None means the current documents.
        """
        with self.changed:
            when = (self._incarnation, self.head if commit is None else commit, commit)
            if when not in self._scans:
                documents = self._documents if commit is None else self._documents_at(commit)
                rows = sorted((place_in_scan(key), key, document) for key, document in documents.items())
                self._scans = {when: ([place for place, *_ in rows], rows)}
            places, rows = self._scans[when]
            return [row[1:] for row in rows[bisect_left(places, low) : bisect_left(places, high)]]

    def _documents_at(self, commit: int) -> dict[MulticloudDbKey, Document]:
        found: dict[MulticloudDbKey, Document] = {}
        for written in self.truth:
            if written.commit > commit:
                break
            if written.document is None:
                found.pop(written.key, None)
            else:
                found[written.key] = written.document
        return found
