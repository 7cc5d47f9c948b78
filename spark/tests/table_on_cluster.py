"""Tests a table of Spark on `local-cluster`; `test_table_places.py` runs it in another process."""

import os
import signal
import statistics
from pathlib import Path

import pytest

from multiclouddb_conformance.sink_harness import documents, rows
from multiclouddb_conformance.waiting import wait_until
from pyspark_multiclouddb import merge_into_table
from pyspark_multiclouddb.named_table import NamedTable

from .test_table_targets import sink  # noqa: F401 - a fixture

MILLION = 1_000_000


def executors():
    """Return the processes of the executors."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            command, status = (each / "cmdline").read_bytes(), (each / "stat").read_text()
        except OSError:
            continue
        parent = int(status.rpartition(")")[2].split()[1])
        if b"CoarseGrainedExecutorBackend" in command and parent == jvm():
            found.append(int(each.name))
    return found


def jvm():
    """Return the process of the driver's JVM."""
    [pid] = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[:1]
    return int(pid)


def cpu_seconds():
    """Return the CPU time of the driver: Python and JVM."""
    fields = Path(f"/proc/{jvm()}/stat").read_text().rpartition(")")[2].split()
    own = os.times()
    return own.user + own.system + sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("before", [True, False])
def test_batch_whose_executors_die_around_the_merge_is_merged_by_its_repetition(sink, monkeypatch, before):  # noqa: F811
    sink.merge(rows(*((f"k{number}", 1, {"n": 1}) for number in range(100))))
    commit, left = NamedTable.commit, [1]

    def call(self, statement, check=None):
        if statement.startswith("MERGE") and left:
            left.pop()
            if not before:
                commit(self, statement, check)
            lost = executors()
            assert len(lost) == 2
            for pid in lost:
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not set(lost) & set(executors()), seconds=60)
            if not before:
                raise RuntimeError("the driver notices later")
        return commit(self, statement, check)

    monkeypatch.setattr(NamedTable, "commit", call)
    batch = rows(*((f"k{number}", 2, None if number % 2 else {"n": 2}) for number in range(100)))
    with pytest.raises(Exception, match=r"checkpoint|the driver notices later|lost"):
        sink.merge(batch)
    sink.merge(batch)
    assert documents(sink) == {f"k{number}": {"n": 2} for number in range(0, 100, 2)}


def made(spark, count, order):
    """Make a batch on the executors."""
    return spark.range(count, numPartitions=4).selectExpr(
        "concat('{\"id\":', id, '}') AS key",
        "'UPDATE' AS type",
        f"concat(id, '@{order}') AS event_id",
        "false AS backfilled",
        f"'{order:06d}' AS order_key",
        "timestamp_micros(id) AS timestamp",
        "concat('{\"n\":', id, ',\"text\":\"', repeat('x', 200), '\"}') AS new_item_state",
    )


def test_driver_gets_few_rows_and_its_work_does_not_grow(sink, spark, tmp_path):  # noqa: F811
    name, costs = sink.table, {MILLION // 10: [], MILLION: []}
    reads, order = tmp_path / "reads", 0

    def counted(batches):
        from pyspark import TaskContext

        with reads.open("a") as file:
            file.write(f"{TaskContext.get().partitionId()}\n")
        yield from batches

    java = spark.sparkContext._jvm
    counter = java.multiclouddb.test.Counter
    listener = counter()
    spark._jsparkSession.listenerManager().register(listener)
    try:
        for count in [*costs, *list(costs) * 3]:
            order += 1
            reads.unlink(missing_ok=True)
            spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
            before, began = counter.rows(), cpu_seconds()
            frame = made(spark, count, order)
            assert merge_into_table(
                frame.mapInArrow(counted, frame.schema), order - 1, name, create_using="test",
                source="provider:main/orders",
            )  # fmt: skip
            costs[count].append(cpu_seconds() - began)
            spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
            assert 1 <= counter.rows() - before <= 100
            assert sorted(map(int, reads.read_text().split())) == [0, 1, 2, 3]
    finally:
        spark._jsparkSession.listenerManager().unregister(listener)
    # The first of each compiles.
    small, large = (statistics.median(found[1:]) for found in costs.values())
    print(f"CPU seconds of the driver: {costs}")  # noqa: T201 - the figure of the page
    assert large <= 1.2 * small + 0.1
