"""One process in the life of a mirror, which kills itself at a chosen step or is killed from outside.

    python life.py FILE

The file contains a JSON object: `source` and `target`; `spark`, true to read with Spark; `dies_at`, the
number of the step at which the process is killed, or null; `refuses`, true to let a Delta table refuse the
documents that are marked as bad; `aside`, the folder for rows that the table refuses; `pause`, the seconds
that a position may wait; and `began`, a file that is made when the first step begins.
"""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import multiclouddb_postgres.checkpoints
import multiclouddb_postgres.sink
from multiclouddb_api import MulticloudDbError, connect, invalid_request
from multiclouddb_api.set_aside import SetAsideFolder
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_mirror import destinations, mirror, mirroring
from multiclouddb_tables.delta import DeltaTarget

STEPS = ("prepare", "set_feed_mark", "store", "outdate", "bury", "merge", "claim", "store_position")
"""The methods of a table that write, each in one commit."""


class Life:
    def __init__(self, given):
        self.given, self.steps = given, 0

    def step(self):
        Path(self.given["began"]).touch()
        if self.steps == self.given["dies_at"]:
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps += 1

    def mortal(self, owner, name):
        """Put a step before a function and one after it."""
        action = getattr(owner, name)

        def run(*arguments, **named):
            self.step()
            found = action(*arguments, **named)
            self.step()
            return found

        setattr(owner, name, run)

    def patch(self):
        EmbeddedFeed.visible_after = lambda feed: 0.02
        mirroring._PAGE_EVENTS = 5
        destinations._DELTA_SECONDS = self.given["pause"]
        if self.given["refuses"]:
            merge = DeltaTarget.merge

            def merging(table, rows, notes, *, is_last):
                if any(text is not None and '"bad"' in text for text in rows["new_item_state"].to_pylist()):
                    raise invalid_request("batch", "has a row that the table refuses", "change it")
                return merge(table, rows, notes, is_last=is_last)

            DeltaTarget.merge = merging
        for name in STEPS:
            self.mortal(DeltaTarget, name)
        for module in (multiclouddb_postgres.sink, multiclouddb_postgres.checkpoints):
            self.mortal(module, "repeated")
        for name in ("add", "_write"):
            self.mortal(SetAsideFolder, name)

    @contextlib.contextmanager
    def settings(self):
        if not self.given["spark"]:
            yield {"set_aside": self.given["aside"], "max_set_aside": 1000}
            return
        from pyspark_multiclouddb import local_session
        from pyspark_multiclouddb import mirroring as on_spark

        options = on_spark._options

        def few(config, request):
            found = {**options(config, request), "maxRecordsPerTrigger": "10", "pollInterval": "50 ms"}
            return found | ({"snapshotSegments": "8"} if "startingPosition" in found else {})

        on_spark._options = few
        session = local_session(
            "life",
            **{
                "spark.master": "local[2]",
                "spark.sql.shuffle.partitions": 1,
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            },
        )
        session.sparkContext.setLogLevel("OFF")
        yield {"spark": session}
        session.stop()


def main(file):
    life = Life(json.loads(Path(file).read_text()))
    life.patch()
    with connect(life.given["source"]) as client, life.settings() as settings:
        try:
            report = mirror(client, "main/orders", life.given["target"], **settings)
        except MulticloudDbError as error:
            sys.stdout.write(json.dumps({"category": str(error.category), "message": error.message}))
            sys.exit(3)
    sys.stdout.write(json.dumps(report.to_dict()))


if __name__ == "__main__":
    main(sys.argv[1])
