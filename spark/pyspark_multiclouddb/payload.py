"""Passes changes that the driver has read while it planned to the tasks, which need not read them again.

Only whole ranges are passed, as rows of the source before columns are made of them, so that a task decides
what happens to a value that does not fit. A range is left to its task if a record of it cannot be decoded, if
it has notices, or if it is too large. Nothing of this is stored: a batch that another process has planned is
read from the service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from multiclouddb_api.arrow import events_to_arrow
from multiclouddb_spi import Range, Step, collector_paused
from multiclouddb_spi.planning.pieces import Piece
from pyspark_multiclouddb.options import BATCH_PAYLOADS


class Payloads:
    """The rows of one micro-batch that have been read, by partition.

    Args:
        step: The step of the micro-batch, or None.
        most: `maxTaskPayload`.
    """

    def __init__(self, step: Step | None = None, most: int = 0) -> None:
        self._most, self._rows = most, dict[str, tuple[Range, bytes]]()
        if step is None or not step.read or not most:
            return
        left = BATCH_PAYLOADS * most
        for part in step.ranges():
            pieces = step.read.get(part.partition_id)
            rows = None if pieces is None else _encoded(pieces, min(left, most))
            if rows is not None:
                left -= len(rows)
                self._rows[part.partition_id] = part, rows

    def of(self, part: Range) -> bytes | None:
        """Return the rows of exactly this range, or None."""
        known, rows = self._rows.get(part.partition_id, (None, None))
        return rows if known == part else None

    def of_task(self, parts: Sequence[Range]) -> Mapping[int, bytes]:
        """Return the rows of the ranges of one task, by their places, as far as a task may carry them."""
        found, left = dict[int, bytes](), self._most
        for place, part in enumerate(parts):
            rows = self.of(part)
            if rows is not None and len(rows) <= left:
                left -= len(rows)
                found[place] = rows
        return found


def _encoded(pieces: Sequence[Piece], most: int) -> bytes | None:
    """Return records as rows; None if one of them cannot be decoded, or if they are too large."""
    sink = pa.BufferOutputStream()
    writer: pa.RecordBatchStreamWriter | None = None
    for piece in pieces:
        try:
            with collector_paused():
                rows = piece.batch.arrow(piece.first, piece.stop)
                if rows is None:
                    rows = events_to_arrow(piece.batch.events(piece.first, piece.stop))
        except Exception:  # noqa: BLE001 - its task meets the error again, and decides what to do
            return None
        if writer is None:
            writer = pa.ipc.new_stream(sink, rows.schema)
        writer.write_batch(rows)
        if sink.tell() > most:
            return None
    if writer is None:
        return None
    writer.close()
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded if len(encoded) <= most else None


def decoded(rows: bytes) -> Iterator[pa.RecordBatch]:
    """Return the batches of `Payloads.of_task`."""
    with pa.ipc.open_stream(rows) as reader:
        yield from reader
