"""How changes that were read are mapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from multiclouddb_api import ChangeEvent
from multiclouddb_mongo.change import Raw, place_of_change
from multiclouddb_mongo.mapping import View, to_arrow, to_events
from multiclouddb_mongo.position import cursor_of
from multiclouddb_spi import Cursor, Mapper

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MongoMapper"]


@attrs.frozen
class MongoMapper(Mapper):
    """Maps the changes of one stream.

    Attributes:
        view: What their events share.
    """

    view: View

    def cursor_behind(self, records: Sequence[Raw], count: int) -> Cursor:
        """The position behind the first `count` changes."""
        return cursor_of(place_of_change(records[count - 1]), self.view.start)

    def events(self, records: Sequence[Raw], start: int, stop: int) -> list[ChangeEvent]:
        """Map changes to events."""
        return to_events(records, start, stop, self.view)

    def arrow(self, records: Sequence[Raw], start: int, stop: int) -> pa.RecordBatch:
        """Map changes to Arrow."""
        return to_arrow(records, start, stop, self.view)
