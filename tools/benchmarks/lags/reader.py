"""Follows the changes, and notes when it got each; `python -m benchmarks.lags.reader KIND FOLDER`.

All settings are the defaults. A process may be killed at any moment, and the next one continues.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from benchmarks.lags.writer import NUMBER
from demo.places import COLLECTION, Places, append_line
from demo.stores import find_store
from multiclouddb_api import ChangeFeedRequest, Now, connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["READERS", "events", "spark"]


def events(places: Places) -> None:
    """Follow with a worker, whose checkpoints are files."""
    url, database = find_store()
    address = COLLECTION if database is None else f"{database}/{COLLECTION}"
    with (
        connect(url) as client,
        client.iterate_changes(
            ChangeFeedRequest(address, Now()),
            checkpoint_store=f"file://{places.checkpoint.resolve()}",
            checkpoint_name="reader",
        ) as changes,
    ):
        for page in changes.pages():
            # The position after a page without events is stored before the page is here.
            if page.events or not places.merged.exists():
                _note(places, (event.new_item_state[NUMBER] for event in page.events if event.new_item_state))


def spark(places: Places) -> None:
    """Follow with a query of Structured Streaming."""
    from pyspark.sql import functions as f

    from demo.pipeline import run_query
    from pyspark_multiclouddb import local_session

    url, database = find_store()
    place = {"url": url, "collection": COLLECTION} | ({} if database is None else {"database": database})

    def handle(batch: DataFrame, _: int) -> None:
        number = f.get_json_object("new_item_state", f"$.{NUMBER}").cast("int")
        _note(places, (found for (found,) in batch.select(number).collect()))

    with local_session("lags") as session:

        def start() -> StreamingQuery:
            changes = session.readStream.format("multiclouddb").option("startingPosition", "now")
            writer = changes.options(**place).load().writeStream.foreachBatch(handle)
            return writer.option("checkpointLocation", str(places.checkpoint.resolve())).start()

        run_query(start, lambda: False)


def _note(places: Places, numbers: Iterable[object]) -> None:
    got = [int(str(number)) for number in numbers]
    append_line(places.merged, at=time.time(), numbers=got)


READERS: Final[dict[str, Callable[[Places], None]]] = {"events": events, "spark": spark}

if __name__ == "__main__":
    READERS[sys.argv[1]](Places(sys.argv[2]))
