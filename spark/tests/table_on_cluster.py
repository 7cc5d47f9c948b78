"""Tests a table of Spark on `local-cluster`; `test_table_places.py` runs it in another process."""

import os
import signal
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


class Work:
    """Counts what the driver does: queries, rows that it gets, tasks of each stage, and calls from Python."""

    def __init__(self, spark, monkeypatch):
        self._context, self._session = spark.sparkContext, spark._jsparkSession
        self._counter = self._context._jvm.multiclouddb.test.Counter
        self._listener = self._counter()
        self._session.listenerManager().register(self._listener)
        self._calls, self._seen = 0, set()
        client = type(self._context._gateway._gateway_client)
        send = client.send_command

        def counted(gateway, command, *more, **named):
            # Python's garbage collection tells the JVM at any time which objects it has dropped.
            self._calls += not command.startswith("m")
            return send(gateway, command, *more, **named)

        monkeypatch.setattr(client, "send_command", counted)

    def of(self, call):
        """Return the counts of a call, and the bytes of its tasks' results, which vary by a few."""
        self._new_stages()
        rows, queries, before = self._counter.rows(), self._counter.queries(), self._calls
        assert call()
        calls = self._calls - before
        stages = self._new_stages()
        counts = {
            "queries": self._counter.queries() - queries,
            "rows": self._counter.rows() - rows,
            "tasks": [each.numTasks() for each in stages],
            "calls": calls,
        }
        return counts, sum(each.resultSize() for each in stages)

    def close(self):
        self._session.listenerManager().unregister(self._listener)

    def _new_stages(self):
        context = self._context._jsc.sc()
        context.listenerBus().waitUntilEmpty()
        none = self._context._gateway.new_array(self._context._jvm.double, 0)
        stages = context.statusStore().stageList(None, False, False, none, None)
        new = [each for each in map(stages.apply, range(stages.size())) if each.stageId() not in self._seen]
        self._seen |= {each.stageId() for each in new}
        return sorted(new, key=lambda each: each.stageId())


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


def test_driver_gets_few_rows_and_its_work_does_not_grow(sink, spark, tmp_path, monkeypatch):  # noqa: F811
    found, reads, order = {MILLION // 10: [], MILLION: []}, tmp_path / "reads", 0

    def counted(batches):
        from pyspark import TaskContext

        with reads.open("a") as file:
            file.write(f"{TaskContext.get().partitionId()}\n")
        yield from batches

    def merged(count):
        frame = made(spark, count, order)
        return merge_into_table(
            frame.mapInArrow(counted, frame.schema), order - 1, sink.table, create_using="test",
            source="provider:main/orders",
        )  # fmt: skip

    work = Work(spark, monkeypatch)
    try:
        for count in [*found, *found]:
            order += 1
            reads.unlink(missing_ok=True)
            found[count].append(work.of(lambda count=count: merged(count)))
            assert sorted(map(int, reads.read_text().split())) == [0, 1, 2, 3]
    finally:
        work.close()
    assert all(1 <= counts["rows"] <= 100 for each in found.values() for counts, _ in each)
    # The first merge of all creates the table.
    (small, few), (large, many) = (each[-1] for each in found.values())
    assert small == large
    assert 0 < many <= 1.1 * few
