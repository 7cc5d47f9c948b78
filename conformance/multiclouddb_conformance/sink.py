"""A target that merges events by key and `order_key`; a snapshot must make the target equal to its source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from multiclouddb_api import ChangeEvent, ChangeType, MulticloudDbKey

__all__ = ["Sink"]

_NONE = ""


class Sink:
    """Stores rows by key, each row with the `order_key` of its event.

    Attributes:
        tombstones: True to keep deleted keys with their `order_key`.
    """

    def __init__(self, *, tombstones: bool = True) -> None:
        self.tombstones = tombstones
        self._rows: dict[MulticloudDbKey, tuple[str, Mapping[str, Any] | None]] = {}

    def apply(self, events: Iterable[ChangeEvent]) -> None:
        """Merge events; an event that is older than the stored row or tombstone of its key is ignored."""
        for event in events:
            known = self._rows.get(event.key)
            if known is not None and event.order_key < known[0]:
                continue
            deleted = event.type is ChangeType.DELETE
            if deleted and not self.tombstones:
                self._rows.pop(event.key, None)
            else:
                self._rows[event.key] = (event.order_key, None if deleted else event.new_item_state)

    def begin_again(self) -> None:
        """Record that another snapshot begins: its rows are newer than everything stored so far."""
        self._rows = {key: (_NONE, document) for key, (_, document) in self._rows.items()}

    def end_backfill(self) -> None:
        """Record that the snapshot is over: delete all rows that it did not contain."""
        self._rows = {key: row for key, row in self._rows.items() if row[0] != _NONE}

    def drop_tombstones(self) -> None:
        """Forget deleted keys."""
        self._rows = {key: row for key, row in self._rows.items() if row[1] is not None}

    def rows(self) -> dict[MulticloudDbKey, Mapping[str, Any]]:
        """Map each key to its document, without deleted documents."""
        return {key: document for key, (_, document) in self._rows.items() if document is not None}

    def copy(self) -> Sink:
        """Return a copy.

        A test uses the copy as an earlier state of the target, without the last pages and their
        token.
        """
        made = Sink(tombstones=self.tombstones)
        made._rows = dict(self._rows)
        return made
