"""Follows changes, and notes when it got each.

The command is `python -m benchmarks.follow KIND URL DATABASE COLLECTION FOLDER`. All settings
are the defaults. The process may be killed at any moment, and the next one continues.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["NOTES", "NUMBER", "READERS"]

NUMBER: Final = "number"
"""The field of a document that contains the number of its change."""
NOTES: Final = "notes.jsonl"


def worker(url: str, database: str, collection: str, folder: Path) -> None:
    """Follow with a worker, whose checkpoints are files."""
    from multiclouddb_api import ChangeFeedRequest, Now, ResourceAddress, connect

    address = ResourceAddress(database or None, collection)
    store = f"file://{folder / 'checkpoints'}"
    first = True
    with (
        connect(url) as client,
        client.iterate_changes(
            ChangeFeedRequest(address, Now()), checkpoint_store=store, checkpoint_name="reader"
        ) as changes,
    ):
        for page in changes.pages():
            # The position after a page without events is stored before the page is here.
            if page.events or first:
                note(folder, (event.new_item_state[NUMBER] for event in page.events if event.new_item_state))
            first = False


def spark(url: str, database: str, collection: str, folder: Path) -> None:
    """Follow with a query of Structured Streaming."""
    from pyspark.sql import functions as f

    from pyspark_multiclouddb import local_session

    place = {"url": url, "collection": collection} | ({"database": database} if database else {})

    def handle(batch: DataFrame, _: int) -> None:
        number = f.get_json_object("new_item_state", f"$.{NUMBER}").cast("int")
        note(folder, (found for (found,) in batch.select(number).collect()))

    with local_session("follow", **{"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}) as session:
        changes = session.readStream.format("multiclouddb").option("startingPosition", "now")
        writer = changes.options(**place).load().writeStream.foreachBatch(handle)
        writer.option("checkpointLocation", str(folder / "checkpoints")).start().awaitTermination()


def note(folder: Path, numbers: Iterable[object]) -> None:
    """Append one line. A process that is killed leaves a complete line or no line."""
    got = [int(str(number)) for number in numbers]
    line = json.dumps({"at": time.time(), "numbers": got}).encode() + b"\n"
    descriptor = os.open(folder / NOTES, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


READERS: Final[dict[str, Callable[[str, str, str, Path], None]]] = {"worker": worker, "spark": spark}

if __name__ == "__main__":
    _, kind, *place, folder = sys.argv
    url, database, collection = place
    READERS[kind](url, database, collection, Path(folder))
