"""Tests the source inside Spark: batches, streams, restarts, errors, and what is imported when."""

import io
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import attrs
import pyspark
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

import pyspark_multiclouddb
from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    ResourceAddress,
    connect,
)
from multiclouddb_api.arrow import events_to_arrow
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.sink_harness import events, page
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_verify import spark_position
from pyspark_multiclouddb import (
    ProgressTable,
    error_from_query,
    live_rows,
    local_session,
    merge_into_delta,
    pages_to_dataframe,
)
from pyspark_multiclouddb.errors import no_pyspark
from pyspark_multiclouddb.source_columns import SPARK_SCHEMA

SECONDS = 500  # the time limit, in seconds, for a whole query on a slow machine


class Rows:
    """A `foreachBatch` function that keeps the rows of each batch under the batch's number."""

    def __init__(self):
        self.batches = {}

    def __call__(self, frame, batch_id):
        self.batches[batch_id] = frame.toArrow().to_pylist()

    def in_order(self):
        return [self.batches[number] for number in sorted(self.batches)]

    def all(self):
        return [row for batch in self.in_order() for row in batch]

    def sizes(self):
        return [len(batch) for batch in self.in_order()]


def load(reader, source, **options):
    return reader.format("multiclouddb").options(**source.options(**options)).load()


def run_sink(spark, source, checkpoint, sink, **options):
    stream = load(spark.readStream, source, **options).writeStream.foreachBatch(sink)
    query = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination(SECONDS)
    assert not query.isActive
    return query


def follow(spark, source, checkpoint, **options):
    rows = Rows()
    run_sink(spark, source, checkpoint, rows, **options)
    return rows


def offset_of(checkpoint, batch):
    return json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])


def through_the_client(source):
    """Return every event that the client delivers, in the form of rows."""
    request = ChangeFeedRequest(ResourceAddress(None, "orders"), Beginning())
    with connect(f"embedded://{source.store.path}") as client:
        found = list(client.iterate_changes(request, until_idle=True))
    return sorted(events_to_arrow(found).to_pylist(), key=lambda row: row["order_key"])


def without_sequence(rows):
    rows = [{name: value for name, value in row.items() if name != "sequence"} for row in rows]
    return sorted(rows, key=lambda row: row["order_key"])


class TestBatch:
    def test_equals_what_the_client_reads(self, spark, source):
        source.write(120)
        source.split()
        source.write(40)
        source.merge(1)
        source.write(40)
        frame, everything = load(spark.read, source), through_the_client(source)
        assert frame.schema == SPARK_SCHEMA
        assert without_sequence(frame.toArrow().to_pylist()) == everything
        times = [everything[number]["timestamp"].isoformat() for number in (10, 20)]
        frame = load(spark.read, source, startingPosition=times[0], endingPosition=times[1])
        assert without_sequence(frame.toArrow().to_pylist()) == everything[10:20]
        options = ", ".join(f"`{name}` '{value}'" for name, value in source.options().items())
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW shown USING multiclouddb OPTIONS ({options})")
        assert spark.sql("SELECT count(*) FROM shown WHERE key LIKE '%id%'").first()[0] == 200
        # The session is that of other tests too, and such a view comes before a table of its name.
        assert spark.catalog.dropTempView("shown")

    def test_recreated_collection_is_read_anew(self, spark, source):
        source.write(20)
        assert load(spark.read, source).count() == 20
        source.store.create_collection("orders", recreate=True)
        source.store.put("orders", "k", {"n": 1})
        assert load(spark.read, source).count() == 1


class TestStream:
    def test_every_event_once_through_splits_merges_and_restarts(self, spark, source, tmp_path):
        """After that, the position expires, which can be skipped."""
        runs, out = [], io.StringIO()
        listener = ProgressTable(out)
        spark.streams.addListener(listener)
        for turn in range(2):
            source.write(60, seed=turn)
            source.split(turn)
            source.write(20, seed=turn)
            source.merge(turn)
            source.write(20, seed=turn)
            runs.append(follow(spark, source, tmp_path / "checkpoint", maxRecordsPerTrigger=65))
        wait_until(lambda: out.getvalue().count(" ended") == 2)
        spark.streams.removeListener(listener)
        assert without_sequence(row for run in runs for row in run.all()) == through_the_client(source)
        assert max(size for run in runs for size in run.sizes()) == 65
        shown = [line.split()[2:4] for line in out.getvalue().splitlines()]
        assert ["65", "65"] in shown, "rows and events of a batch"
        last = {}
        for batch in (batch for run in runs for batch in run.in_order()):
            for row in sorted(batch, key=lambda row: row["order_key"]):
                assert last.get(row["key"], "") < row["order_key"]
                last[row["key"]] = row["order_key"]

        source.write(30)
        source.trim(12)
        with pytest.raises(StreamingQueryException) as caught:
            follow(spark, source, tmp_path / "checkpoint")
        assert error_from_query(caught.value) == ErrorCategory.CHECKPOINT_EXPIRED
        left = follow(spark, source, tmp_path / "checkpoint", failOnDataLoss="false")
        assert without_sequence(left.all()) == through_the_client(source)

    def test_idle_position_goes_to_the_checkpoint(self, spark, source, tmp_path):
        checkpoint = tmp_path / "checkpoint"
        source.store.create_collection("others")
        source.write(5)
        assert follow(spark, source, checkpoint).sizes() == [0, 5]
        source.store.put("others", "k", {"n": 1})
        assert follow(spark, source, checkpoint).sizes() == [0]
        end, before = (offset_of(checkpoint, number) for number in (2, 1))
        assert end["c"] != before["c"]
        assert end["empty"] is True
        # The driver crashes in this batch: the batch is planned but not finished.
        for name in ("2", ".2.crc"):
            (checkpoint / "commits" / name).unlink()
        source.write(2)
        again = follow(spark, source, checkpoint)
        assert again.sizes() == [0, 2]
        assert len({row["event_id"] for row in again.all()}) == 2

    def test_idle_position_goes_there_while_it_follows(self, spark, source, tmp_path):
        checkpoint = tmp_path / "checkpoint"
        source.store.create_collection("others")
        options = {"pollInterval": "20 ms", "idleCheckpointInterval": "40 ms"}
        rows = Rows()
        stream = load(spark.readStream, source, **options).writeStream.foreachBatch(rows)
        query = stream.option("checkpointLocation", str(checkpoint)).start()
        try:
            for number in range(4):
                while len(rows.batches) <= number:
                    assert not query.awaitTermination(0.02)
                source.store.put("others", "k", {"n": number})
            source.write(3)
            while len(rows.all()) < 3:
                assert not query.awaitTermination(0.02)
            progress = query.lastProgress
            assert json.loads(progress["sources"][0]["latestOffset"])["partitions"] == 3
        finally:
            query.stop()
        assert len({json.dumps(offset_of(checkpoint, number)["c"]) for number in range(4)}) == 4


class TestErrors:
    def test_wrong_option_is_one_clear_line_at_load(self, spark, source):
        message = "maxrecords: is not an option of this source; did you mean maxRecordsPerTrigger?"
        for reader in (spark.read, spark.readStream):
            with pytest.raises(AnalysisException) as caught:
                load(reader, source, maxRecords="5")
            (line,) = (line for line in str(caught.value).splitlines() if "[MULTICLOUDDB:" in line)
            assert f"[MULTICLOUDDB:INVALID_REQUEST] {message}" in line

    def test_failure_of_somebody_else_has_no_category(self):
        assert error_from_query(ValueError("[MULTICLOUDDB] no marker")) is None
        assert error_from_query(None) is None

    @pytest.mark.parametrize(
        "options",
        [
            {"url": "mongodb://user:hush-hush@nowhere:1"},
            {"url": "mongodb://nowhere:1", "connection.username": "u", "connection.password": "hush-hush"},
        ],
        ids=["url", "password"],
    )
    def test_secrets_are_not_in_the_plan_of_a_stream(self, spark, capsys, options):
        spark.readStream.format("multiclouddb").options(collection="c", **options).load().explain(True)
        out = capsys.readouterr().out
        assert "collection" in out or "multiclouddb" in out
        assert "hush-hush" not in out

    def test_a_checkpoint_folder_holds_positions_and_no_document(self, spark, source, tmp_path):
        for number in range(9):
            source.put(f"k{number}", {"text": "a-field-that-no-offset-holds"})
        options = {"startingPosition": "snapshot", "maxRecordsPerTrigger": "4"}
        rows = Rows()
        run_sink(spark, source, tmp_path / "checkpoint", rows, **options)
        assert len(rows.all()) == 9
        files = [each for each in (tmp_path / "checkpoint").rglob("*") if each.is_file()]
        assert {"offsets", "commits"} <= {each.parent.name for each in files}
        assert [each for each in files if b"a-field-that" in each.read_bytes()] == []


def reader_of(spark):
    return spark.readStream


def named_reader_of(spark):
    return spark.readStream.name("orders_source")


@pytest.mark.parametrize(
    ("setting", "value", "reader"),
    [
        ("spark.sql.streaming.offsetLog.formatVersion", "2", reader_of),
        ("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true", named_reader_of),
    ],
    ids=["format 2", "source evolution"],
)
def test_sink_reads_the_other_format_of_spark_s_offset_log(spark, source, tmp_path, setting, value, reader):
    """A snapshot removes the rows that no item has any more, which the sink knows from the log only."""
    for number in range(4):
        source.put(f"k{number}", {"n": number})

    def run(name):
        def merge(frame, batch_id):
            merge_into_delta(frame, batch_id, tmp_path / "table", name, checkpoint=tmp_path / name)

        stream = load(reader(spark), source, startingPosition="snapshot").writeStream.foreachBatch(merge)
        query = stream.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
        query.awaitTermination(SECONDS)

    spark.conf.set(setting, value)
    try:
        run("first")
        source.store.delete("orders", "k1")
        source.store.trim("orders", max_count=0)  # so that only the second snapshot can tell
        run("second")
    finally:
        spark.conf.unset(setting)
    assert (tmp_path / "second" / "offsets" / "0").read_text().startswith("v2\n")
    keys = [json.loads(row["key"])["id"] for row in live_rows(tmp_path / "table").read_all().to_pylist()]
    assert sorted(keys) == ["k0", "k2", "k3"]
    with connect(f"embedded://{source.store.path}") as client:
        assert spark_position(client, "orders", tmp_path / "second")()


class TestSession:
    """`test_versions.py` checks that a session prints nothing."""

    def test_uses_this_python_utc_and_the_settings_of_the_caller(self, spark):
        assert spark.range(1).rdd.map(lambda _: __import__("sys").executable).first() == sys.executable
        assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
        options = spark.conf.get("spark.driver.extraJavaOptions")
        assert "log4j2" in options
        assert options.endswith(" -XX:TieredStopAtLevel=1")

    def test_that_runs_is_taken_and_set(self, spark):
        assert local_session("another", **{"spark.sql.shuffle.partitions": 3, "spark.none": None}) is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
        spark.conf.set("spark.sql.shuffle.partitions", 2)
        assert spark.conf.get("spark.none", "unset") == "unset"

    def test_hands_results_over_where_no_other_program_can_connect(self, spark):
        """A collected result waits for one connection; the first one that comes takes it."""
        place = spark.range(1)._jdf.collectToPython()[0]
        assert place.endswith(".sock")


LOOKUP = """
import sys
from importlib import import_module
from pkgutil import iter_modules

found = [import_module(info.name) for info in iter_modules() if info.name.startswith("pyspark_")]
assert not {"pyspark", "pyarrow", "attrs"} & set(sys.modules), "importing it must not do anything"
from pyspark.sql.datasource import DataSource

(source,) = [module.DefaultSource for module in found if hasattr(module, "DefaultSource")]
assert issubclass(source, DataSource)
ours = {name for name in sys.modules if name.startswith("multiclouddb")}
assert not {"attrs", "pyarrow", *ours} & set(sys.modules), "nothing that may be missing or fail"
print(source.name())
"""
MISSING = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {name!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
import pyspark_multiclouddb
pyspark_multiclouddb.{use}
"""


class TestDiscovery:
    """Spark imports every package `pyspark_*` on the path of its Python, and looks for `DefaultSource`."""

    def test_with_nothing_but_a_path(self, tmp_path):
        homes = {Path(module.__file__).parents[1] for module in (pyspark_multiclouddb, pytest)}
        path = os.pathsep.join(str(home) for home in homes)
        # -S: no site-packages, so this project's editable installation is not found.
        command = [sys.executable, "-S", "-c", LOOKUP]
        ran = subprocess.run(
            command, env={"PYTHONPATH": path}, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ran.stdout == "multiclouddb\n", ran.stderr

    @pytest.mark.parametrize(
        ("name", "use", "message"),
        [
            ("pyspark", "DefaultSource", "DefaultSource needs PySpark 4.0 or newer: it is n"),
            ("pyspark", "ensure_java()", "ensure_java needs PySpark 4.0 or newer: it is n"),
            ("pyarrow", "DefaultSource({}).schema()", "No module named 'pyarrow'; install"),
            ("attrs", "DefaultSource({}).schema()", "cannot run in "),
        ],
    )
    def test_what_is_missing_is_one_clear_error_at_its_use(self, name, use, message):
        command = [sys.executable, "-c", MISSING.format(name=name, use=use)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        last = ran.stderr.splitlines()[-1]
        assert last.startswith("ImportError: ")
        assert message in last
        assert "multiclouddb[spark]" in last

    def test_function_that_needs_a_newer_pyspark_names_the_version(self):
        message = str(no_pyspark("local_session"))
        assert message.startswith("local_session needs PySpark 4.0 or newer: ")
        assert message.endswith(f"this is {pyspark.__version__}; install a newer one")


def test_one_row_an_event(spark):
    first, second, third = events(("a", 1, {"n": 1}), ("b", 2, None), ("c", 3, {"n": 3}))
    pages = iter([page([first, attrs.evolve(second, partition_id="p1")]), page([]), page([third])])
    frame = pages_to_dataframe(spark, pages)
    assert frame.schema == SPARK_SCHEMA
    rows = sorted(frame.toArrow().to_pylist(), key=lambda row: row["order_key"])
    same = {
        "timestamp": first.timestamp, "old_item_state": None, "by_expiry": None, "backfilled": False,
        "database": "main", "collection": "orders",
    }  # fmt: skip
    names = [name for name in frame.columns if name not in same]
    assert [dict(zip(names, map(row.get, names), strict=True)) | same for row in rows] == rows
    assert [tuple(map(row.get, names)) for row in rows] == [
        ("a@1", "UPDATE", '{"id":"a"}', '{"n":1}', "000001", first.partition_id, 0),
        ("b@2", "DELETE", '{"id":"b"}', None, "000002", "p1", 0),
        ("c@3", "UPDATE", '{"id":"c"}', '{"n":3}', "000003", first.partition_id, 1),
    ]


@pytest.mark.parametrize(
    "schema",
    [
        "status STRING, total DOUBLE, price DECIMAL(5, 2), at TIMESTAMP, raw BINARY, type STRING",
        StructType([StructField("status", StringType()), StructField("total", DoubleType())]),
    ],
    ids=["DDL", "StructType"],
)
def test_documents_are_parsed_with_a_schema(spark, schema):
    """Also values that JSON does not have, and a field with the name of a column of ours."""
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    first = {"status": "new", "total": 9.5, "price": Decimal("1.50"), "at": at, "raw": b"x", "type": "T"}
    changes = events(("a", 1, first), ("b", 2, None), ("c", 3, {"total": 1}))
    frame = pages_to_dataframe(spark, [page(changes)], schema)
    documents = [row.new_item_state for row in frame.orderBy("order_key").collect()]
    assert (documents[0].status, documents[0].total) == ("new", 9.5)
    if isinstance(schema, str):
        found = documents[0]
        assert (found.price, found.raw, found.type) == (Decimal("1.50"), b"x", "T")
        assert found["at"].astimezone(UTC) == at
    assert documents[1] is None
    assert (documents[2].status, documents[2].total) == (None, 1.0)
    assert frame.columns == SPARK_SCHEMA.fieldNames()


def test_a_value_that_does_not_fit_the_schema_is_refused(spark):
    """Spark's `from_json` makes null of it."""
    pages = [page(events(("a", 1, {"n": 1, "in": [{"n": 2**40}]})))]
    refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: pages_to_dataframe(spark, pages, "n INT, `in` ARRAY<STRUCT<n: INT>>"),
        "column in: is array<struct<n:int>>, and in[0].n, but the document of the key",
        "another type, such as STRING",
    )
    refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: pages_to_dataframe(spark, pages, "n INTERVAL DAY"),
        "column n: is interval day, which a document cannot give",
    )


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("MAP<STRING, STRING>", "schema: is map<string,string>, which has no names of fields"),
        ("INT", "schema: is int, which has no names of fields"),
        ("n INT NOT NULL", "column n: is NOT NULL, but a delete has no document"),
        (
            StructType([StructField("n", LongType()), StructField("n", LongType())]),
            "column n: is in the schema twice",
        ),
    ],
    ids=["map", "int", "NOT NULL", "twice"],
)
def test_a_schema_that_documents_cannot_have_is_refused(spark, schema, message):
    """Spark makes a structure with the only field `value` of a type that is none."""
    pages = [page(events(("a", 1, {"n": 1}), ("b", 2, {})))]
    refusal(ErrorCategory.INVALID_REQUEST, lambda: pages_to_dataframe(spark, pages, schema), message)


@pytest.mark.parametrize(
    "schema", ["value INT", "value: INT", "struct<value: INT>", "value STRUCT<value: INT>"]
)
def test_a_field_may_have_the_name_that_spark_gives_to_a_type_without_names(spark, schema):
    value = {"value": 5} if "STRUCT" in schema else 5
    frame = pages_to_dataframe(spark, [page(events(("a", 1, {"value": value})))], schema)
    [document] = frame.select("new_item_state").toArrow()["new_item_state"].to_pylist()
    assert document == {"value": value}


def test_pages_of_an_iterator_and_of_nothing(spark, source):
    source.write(50)
    request = ChangeFeedRequest(ResourceAddress(None, "orders"), Beginning(), max_page_size=7)
    with connect(f"embedded://{source.store.path}") as client:
        frame = pages_to_dataframe(spark, client.iterate_changes(request, until_idle=True).pages())
    assert frame.count() == len(source.truth)
    empty = pages_to_dataframe(spark, [page([])])
    assert (empty.schema, empty.count()) == (SPARK_SCHEMA, 0)
