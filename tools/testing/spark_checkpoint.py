"""Writes the folder in which Spark keeps the checkpoint of a query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["make_checkpoint", "write_offset"]


def make_checkpoint(folder: Path, query: str | None = None, batches: int = 0) -> Path:
    """Make the folder, with the id of its query, and with offsets without a snapshot."""
    for part in ("offsets", "commits"):
        (folder / part).mkdir(parents=True)
    if query is not None:
        (folder / "metadata").write_text(json.dumps({"id": query}))
    for number in range(batches):
        write_offset(folder, number)
    return folder


def write_offset(folder: Path, number: int, *, log_format: int = 1, **fields: Any) -> None:
    """Write where a batch ends, as Spark does before it runs the batch.

    Format 2 of the log is that of `spark.sql.streaming.offsetLog.formatVersion=2`.
    """
    offset = json.dumps({"v": 1, "src": "x", "c": {}, "inc": None, **fields})
    line = offset if log_format == 1 else f"orders_source:{offset}"
    text = "\n".join([f"v{log_format}", json.dumps({"batchWatermarkMs": 0}), line])
    (folder / "offsets" / str(number)).write_text(text)
