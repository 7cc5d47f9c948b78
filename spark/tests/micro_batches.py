"""Runs queries without Spark: calls the readers as Spark does, with offsets that were JSON in between."""

import json
import pickle
import uuid
from contextlib import suppress
from types import SimpleNamespace

import pyarrow as pa
from deltalake import DeltaTable

from multiclouddb_api import ResourceAddress
from multiclouddb_spi import encode_partition_id
from pyspark_multiclouddb import live_rows, merge_into_delta
from pyspark_multiclouddb.connection import close_connections
from pyspark_multiclouddb.options import parse_options
from pyspark_multiclouddb.readers import PlainStreamReader
from pyspark_multiclouddb.source_columns import ROW_SCHEMA
from testing.spark_checkpoint import make_checkpoint, write_offset

with suppress(ImportError):  # before Spark 4.2
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    from pyspark_multiclouddb.stream import ChangeFeedStreamReader

# In place of a module's `os`: this module alone is in another process. PyMongo would drop its connections.
CHILD = SimpleNamespace(getpid=lambda: -1)
PARTITION = encode_partition_id("provider", ResourceAddress("main", "orders"), "first", "p0")
LOST = "lost"
"""The document of a change that the service sends without its document."""


def rows(*changes):
    """Make changes from tuples of key, order and document. For a delete, the document is None."""
    return pa.Table.from_pylist(
        [
            {
                "event_id": f"{key}@{order}",
                "type": "DELETE" if document is None else "UPDATE",
                "key": json.dumps({"id": key}),
                "new_item_state": None if document in (None, LOST) else json.dumps(document),
                "order_key": f"{order:06d}",
                "sequence": number,
                "database": "main",
                "collection": "orders",
                "partition_id": PARTITION,
            }
            for number, (key, order, document) in enumerate(changes)
        ],
        schema=ROW_SCHEMA,
    )


def with_columns(table, **values):
    """Replace columns of a table; a column keeps its type if the values allow it."""
    for name, each in values.items():
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.array(each))
    return table


def scanned(*keys, plan="p", floor="000010~", value="scan"):
    found = rows(*((key, 0, {value: key}) for key in keys))
    names = [f"snapshot:{plan}:{key}" for key in keys]
    many = len(keys)
    return with_columns(found, order_key=[floor] * many, event_id=names, backfilled=[True] * many)


def random_changes(dice, first, count, keys=20):
    return [
        (f"k{dice.randrange(keys)}", order, {"n": order} if dice.random() < 0.75 else None)
        for order in range(first, first + count)
    ]


def apply(model, changes):
    for key, _, document in sorted(changes, key=lambda change: change[1]):
        if document is None:
            model.pop(key, None)
        else:
            model[key] = document


def documents(path):
    table = live_rows(path).read_all()
    found = {json.loads(row["key"])["id"]: json.loads(row["new_item_state"]) for row in table.to_pylist()}
    assert len(found) == table.num_rows
    return found


def table_of(path):
    """Return all rows of a table by the ids of their documents."""
    found = DeltaTable(path).to_pyarrow_dataset().scanner(use_threads=False).to_table().to_pylist()
    table = {json.loads(row["key"])["id"]: row for row in found}
    assert len(table) == len(found)
    return table


def tombstones(path):
    return {key: row["order_key"] for key, row in table_of(path).items() if row["_deleted_at"] is not None}


def check_equal(path, source):
    """Check that a table contains what its source contains, and that no row waits for a snapshot."""
    assert documents(path) == source.documents
    assert all(row["order_key"] for row in table_of(path).values())


def notes_of(path, name):
    """Return what the commits of a table say under a name, from the oldest commit on."""
    history = DeltaTable(path).history()
    return [each[f"multiclouddb.{name}"] for each in reversed(history) if f"multiclouddb.{name}" in each]


def read_counted(frame, file):
    """Return a frame with the same rows. Each task that reads the frame writes a line to a file."""

    def counted(batches):
        with file.open("a") as lines:
            lines.write("read\n")
        yield from batches

    return frame.mapInArrow(counted, frame.schema)


def through_json(offset):
    return json.loads(json.dumps(offset))


def ids(rows):
    return sorted(row["event_id"] for row in rows)


class Query:
    """A query with its log of offsets; the process that plans and reads may be restarted."""

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
        """Plan the next micro-batch; return False if there is nothing to read."""
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
    """A query with a snapshot, which merges its batches into a Delta table and keeps a checkpoint folder."""

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
