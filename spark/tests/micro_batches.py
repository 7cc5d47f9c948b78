"""Runs queries without Spark: calls the readers as Spark does, with offsets that were JSON in between."""

import json
import pickle
import uuid

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyspark_multiclouddb import merge_into_delta
from pyspark_multiclouddb.connection import close_connections
from pyspark_multiclouddb.options import parse_options
from pyspark_multiclouddb.readers import PlainStreamReader
from pyspark_multiclouddb.rows import ROW_SCHEMA
from pyspark_multiclouddb.stream import ChangeFeedStreamReader

from .tables import make_checkpoint, write_offset


def through_json(offset):
    return json.loads(json.dumps(offset))


def ids(rows):
    return sorted(row["event_id"] for row in rows)


class Query:
    """A query with its log of offsets; the process that plans and reads may be restarted.

    Attributes:
        log: The end of each planned micro-batch.
        done: The number of completed micro-batches.
        is_plain: True for the reader of Spark 4.0 and 4.1.
    """

    def __init__(self, source, *, is_plain=False, **options):
        self.source, self.is_plain = source, is_plain
        self.options = {"pollInterval": "0", "idleCheckpointInterval": "1 hour", **options}
        self.log, self.done = [], 0
        self.restart()

    def restart(self, **options):
        """Continue in a new process, with further options."""
        close_connections()
        self.options |= options
        self.settings = parse_options(self.source.options(**self.options)).for_stream()
        reader = (PlainStreamReader if self.is_plain else ChangeFeedStreamReader)(self.settings)
        self.reader = pickle.loads(pickle.dumps(reader))
        if self.is_plain and self.log:
            self.reader.partitions(self.log[-1], self.log[-1])
        return self

    def start_of(self, number):
        return self.log[number - 1] if number else through_json(self.reader.initialOffset())

    def plan(self, most=None, *, start=None):
        """Plan the next micro-batch; return False if there is nothing to read.

        Args:
            most: The limit that Spark passes: a number, `"all"`, or None for the limit of the reader.
            start: The start of the batch, if it is not the end of the batch before.
        """
        start = start or self.start_of(len(self.log))
        if self.is_plain:
            end = self.reader.latestOffset()
        elif most is None:
            end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        else:
            end = self.reader.latestOffset(start, ReadAllAvailable() if most == "all" else ReadMaxRows(most))
        if end == start:
            return False
        self.log.append(through_json(end))
        return True

    def tasks(self, number=-1):
        number %= len(self.log)
        tasks = self.reader.partitions(self.start_of(number), self.log[number])
        return [pickle.loads(pickle.dumps(task)) for task in tasks]

    def batches(self, number=-1):
        """Return what the tasks of a micro-batch read, in another order than that of the tasks."""
        return [batch for task in reversed(self.tasks(number)) for batch in self.reader.read(task)]

    def read(self, number=-1):
        """Return the rows of a micro-batch."""
        return [row for batch in self.batches(number) for row in batch.to_pylist()]

    def step(self, most=None):
        """Run the pending batch, or plan the next one; return its rows, or None if there is nothing."""
        if self.done == len(self.log) and not self.plan(most):
            return None
        rows = self.deliver(self.done)
        self.done += 1
        return rows

    def deliver(self, number):
        return self.read(number)

    def drain(self, most=None):
        """Run micro-batches until nothing is left; return their rows."""
        return [row for rows in iter(lambda: self.step(most), None) for row in rows]

    @property
    def report(self):
        return self.reader.reportLatestOffset()


class MergedQuery(Query):
    """A query with a snapshot, which merges its batches into a Delta table and keeps a checkpoint folder.

    Attributes:
        table: The Delta table.
        checkpoint: The folder of the checkpoint.
        passes_checkpoint: True to pass the checkpoint to the sink.
    """

    def __init__(self, source, folder, name="query", *, passes_checkpoint=True, **options):
        self.table, self.app_id, self.passes_checkpoint = folder / "table", name, passes_checkpoint
        self.checkpoint = make_checkpoint(folder / name, uuid.uuid4().hex)
        super().__init__(source, **{"startingPosition": "snapshot", **options})

    def plan(self, most=None):
        if not super().plan(most):
            return False
        write_offset(self.checkpoint, len(self.log) - 1, **self.log[-1])
        return True

    def deliver(self, number):
        table = pa.Table.from_batches(self.batches(number), schema=ROW_SCHEMA)
        where = self.checkpoint if self.passes_checkpoint else None
        merge_into_delta(table, number, self.table, self.app_id, checkpoint=where)
        (self.checkpoint / "commits" / str(number)).write_text("v1\n{}")
        return table.to_pylist()

    @property
    def snapshot(self):
        return self.log[-1]["s"]
