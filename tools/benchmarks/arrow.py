"""Reads pages as the Spark source does, with events in Arrow batches and documents as JSON text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.row import Done
from multiclouddb_api import ChangeFeedPage, ChangeFeedRequest, ClientConfig, OperationOptions

if TYPE_CHECKING:
    from multiclouddb_spi.engine import Engine

__all__ = ["ArrowReader", "arrow_reader"]


class ArrowReader:
    """Reads pages, and collects the ids of their events.

    Attributes:
        count: The number of events so far.
    """

    def __init__(self, engine: Engine) -> None:
        self.count = 0
        self._engine = engine
        self._ids: list[Any] = []

    def read(self, request: ChangeFeedRequest) -> ChangeFeedPage:
        """Read the next page, and only count its events."""
        reading = self._engine.read(request, OperationOptions(), lambda batch, i, j: batch.arrow(i, j))
        for arrow in reading.values:
            if arrow is not None:
                self.count += len(arrow)
                self._ids.append(arrow.column("event_id"))
        return reading.page

    def done(self) -> Done:
        """Return the number and the ids of all events that were read."""
        return Done(self.count, ids=(text for column in self._ids for text in column.to_pylist()))


@contextmanager
def arrow_reader(config: ClientConfig) -> Iterator[ArrowReader]:
    """Open an engine, and provide a reader that uses it."""
    from multiclouddb_spi import open_provider
    from multiclouddb_spi.engine import Engine

    with closing(Engine(open_provider(config), config)) as engine:
        yield ArrowReader(engine)
