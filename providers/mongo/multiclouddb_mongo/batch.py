"""Changes that were read and not mapped yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from multiclouddb_api import ChangeEvent
from multiclouddb_mongo.change import Raw, place_of_change
from multiclouddb_mongo.mapping import View, to_arrow, to_events
from multiclouddb_mongo.position import Place, cursor_of
from multiclouddb_spi import Batch, Cursor

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MongoBatch"]


class MongoBatch(Batch):
    """Changes of one stream.

    Args:
        changes: The change documents, as they came.
        view: What their events share.
        begin: The position in front of them.
        end: The position behind them, and behind what else was looked at.
    """

    def __init__(self, changes: Sequence[Raw], view: View, begin: Place, end: Place) -> None:
        self._changes, self._view, self._begin, self._end = changes, view, begin, end
        self.nbytes = sum(map(len, changes))

    def __len__(self) -> int:
        return len(self._changes)

    def cursor_after(self, count: int) -> Cursor:
        """The position behind the first `count` changes."""
        if count == len(self._changes):
            return cursor_of(self._end, self._view.start)
        place = place_of_change(self._changes[count - 1]) if count else self._begin
        return cursor_of(place, self._view.start)

    def events(self, start: int, stop: int) -> list[ChangeEvent]:
        """Map changes to events."""
        return to_events(self._changes, start, stop, self._view)

    def arrow(self, start: int, stop: int) -> pa.RecordBatch:
        """Map changes to Arrow."""
        return to_arrow(self._changes, start, stop, self._view)
