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


def write_offset(folder: Path, number: int, **fields: Any) -> None:
    """Write where a batch ends, as Spark does before it runs the batch."""
    offset = {"v": 1, "src": "x", "c": {}, "inc": None, **fields}
    text = "\n".join(["v1", json.dumps({"batchWatermarkMs": 0}), json.dumps(offset)])
    (folder / "offsets" / str(number)).write_text(text)
