"""Runs the contract of sinks on a table that Spark merges, in the test catalog."""

import re
import shutil
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.pandas.types import from_arrow_schema

from multiclouddb_api import (
    BackfillDone,
    ChangeFeedPage,
    ErrorCategory,
    Gap,
    MulticloudDbError,
    SnapshotStarted,
    decode_json,
)
from multiclouddb_conformance import targets
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.sink_harness import (
    SOURCE,
    bare,
    documents,
    expected,
    key_of,
    page,
    rows,
    tombstones,
)
from multiclouddb_conformance.targets import *  # noqa: F403
from multiclouddb_conformance.targets import declared, feeds
from multiclouddb_conformance.targets.declared import *  # noqa: F403
from multiclouddb_spi.continuation.token import decode_token
from multiclouddb_spi.faults import key_digest
from multiclouddb_tables import layout
from multiclouddb_tables.batch import concerns, other_rows
from multiclouddb_tables.changes import table_of
from multiclouddb_tables.contract import Fix
from multiclouddb_tables.layout import state_of
from multiclouddb_tables.mark import FeedSource
from pyspark_multiclouddb import (
    EVENT_COLUMNS,
    TableTarget,
    drop_tombstones,
    latest_by_key,
    live_rows,
    merge_into_delta,
    merge_into_table,
)
from pyspark_multiclouddb.table_columns import partitions

from .micro_batches import make_checkpoint, read_counted, write_offset
from .scala_catalog import table_in

HIDDEN_WORDS = "spark.sql.redaction.options.regex"


REPEATED = [pytest.param(number, marks=[pytest.mark.soak] * (number != 5)) for number in range(13)]


def first(values):
    """Return parameters of which `make test` takes the first."""
    return [pytest.param(each, marks=[pytest.mark.soak] * bool(number)) for number, each in enumerate(values)]


class TestRepeated(targets.TestRepeated):
    """A merge of Spark takes seconds, so `make test` repeats one batch; other tables repeat each of them."""

    @pytest.mark.parametrize("repeated", REPEATED)
    def test_each_batch_after_each_later_one(self, sink, repeated):
        super().test_each_batch_after_each_later_one(sink, repeated)


class TestDeclared(declared.TestDeclared):
    """As above, `make test` refuses and rescues one misfit; the others are converted by the same function."""

    @pytest.mark.parametrize(
        "number",
        [
            pytest.param(number, marks=[pytest.mark.soak] * bool(number))
            for number in range(len(declared.MISFITS))
        ],
    )
    def test_a_misfit_is_refused_or_rescued(self, sink, number):
        super().test_a_misfit_is_refused_or_rescued(sink, number)


class TestDeclaredAgain(declared.TestDeclaredAgain):
    """As above, `make test` tries some changes, and kills the process at some steps."""

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(name, marks=[pytest.mark.soak] * (name not in ("another type", "no document")))
            for name in declared.CHANGES
        ],
    )
    def test_another_declaration_fills_the_columns(self, sink, change):
        super().test_another_declaration_fills_the_columns(sink, change)

    @pytest.mark.parametrize(
        "passed",
        [pytest.param(number, marks=[pytest.mark.soak] * (number not in (3, 9))) for number in range(24)],
    )
    def test_killed_at_each_step_of_a_refill(self, sink, passed):
        super().test_killed_at_each_step_of_a_refill(sink, passed)


class TestMarked(targets.TestMarked):
    """As above: which feed and which notice concern a table, the same functions decide for every table."""

    @pytest.mark.parametrize("other", first(feeds.OTHERS))
    def test_a_batch_of_another_feed_is_refused(self, sink, other):
        super().test_a_batch_of_another_feed_is_refused(sink, other)

    @pytest.mark.parametrize(
        ("notice", "is_ours"),
        [
            pytest.param(*each, marks=[pytest.mark.soak] * (number not in (0, 3)))
            for number, each in enumerate(feeds.NOTICES)
        ],
    )
    @pytest.mark.parametrize("has_rows", [True, False])
    def test_a_notice_of_another_collection_changes_nothing_in_the_table(
        self, sink, notice, *, is_ours, has_rows
    ):
        super().test_a_notice_of_another_collection_changes_nothing_in_the_table(
            sink, notice, is_ours=is_ours, has_rows=has_rows
        )


class TestNoticed(targets.TestNoticed):
    """As above: the mark of a gap is computed once for all tables."""

    @pytest.mark.parametrize("is_first", first([False, True]))
    def test_a_gap_during_a_snapshot_stays(self, sink, is_first):
        super().test_a_gap_during_a_snapshot_stays(sink, is_first)


class TableSink:
    """A query whose checkpoint says which snapshot a batch belongs to, as that of a stream does."""

    def __init__(self, spark, folder, deaths):
        self.spark, self.dies, self.batch = spark, deaths, -1
        self.known, self.fresh, self.gaps = {}, True, count(1)
        self.lake = folder / "lake"
        self.table = table_in(spark, self.lake)
        self.target, self.source = TableTarget(spark, self.table), None
        self.checkpoint, self.snapshot, self.seen = make_checkpoint(folder / "checkpoint", "q"), None, set()

    def merge(self, batch, batch_id=None, app_id=None, *, create="first", **options):
        notices, feed, given = (), {}, batch
        if isinstance(batch, ChangeFeedPage):
            notices, made = batch.notices, decode_token(batch.continuation_token)
            feed = {
                "inc": made.incarnation,
                "feed": [made.provider_id, made.address.database, made.address.collection],
            }
            batch = table_of(batch)
            if (source := FeedSource.of_page(given)) is not None and source.collection is not None:
                self.source = source
        snapshot = self.snapshot
        # A frame has no notices; the planner says in the offset what they mean for the table. A feed of Spark
        # is that of one collection, so the planner need not ask which notices concern it.
        ours = [each for each in notices if self.source is None or concerns(each, self.source)]
        if gone := [what for each in ours if (what := other_rows(each)) is not None]:
            feed |= {"gone": gone}
        if any(isinstance(each, Gap) for each in notices) and not any(
            isinstance(each, SnapshotStarted) for each in notices
        ):
            feed |= {"lost": next(self.gaps), "warning": "changes were lost"}
        for notice in notices:
            if not isinstance(notice, SnapshotStarted | BackfillDone):
                continue
            plan = notice.partition_id.rpartition(":")[2]
            if isinstance(notice, SnapshotStarted) and plan not in self.seen:
                snapshot = {"plan": plan, "floor": notice.floor, "over": False, "whole": notice.whole}
            if isinstance(notice, BackfillDone) and snapshot["plan"] == plan:
                snapshot = {**snapshot, "over": True}
        # A batch that is repeated has the same number and the same offset.
        number, _, snapshot, fresh = self.known.get(
            id(given), (self.batch + 1, given, snapshot, self.fresh and not batch.num_rows)
        )
        self.known[id(given)] = number, given, snapshot, fresh
        write_offset(self.checkpoint, number, **({"s": snapshot} if snapshot else {}), fresh=fresh, **feed)
        # Over Connect, a frame without rows needs its columns.
        rows = batch if batch.num_rows else []
        frame = self.spark.createDataFrame(rows, from_arrow_schema(batch.schema, prefer_timestamp_ntz=True))
        # Rows of a snapshot whose beginning nobody has seen come without a checkpoint that knows it.
        is_scan = "backfilled" in batch.column_names and any(batch["backfilled"].to_pylist())
        known = snapshot or not is_scan
        merged = merge_into_table(
            frame, number, self.table, checkpoint=self.checkpoint if known else None,
            create_using=None if create == "never" else "test", **options,
        )  # fmt: skip
        if number > self.batch:
            self.batch, self.snapshot, self.fresh = number, snapshot, fresh
        if snapshot:
            self.seen.add(snapshot["plan"])
        return merged

    def drop(self):
        shutil.rmtree(self.lake)


@pytest.fixture
def sink(spark, tmp_path, table_deaths):
    return TableSink(spark, tmp_path, table_deaths)


def test_nothing_of_a_batch_stays_on_the_executors(sink, spark):
    context = spark.sparkContext._jsc.sc()
    before = context.getPersistentRDDs().size()
    for number in range(2):
        sink.merge(rows(*((f"k{n}", number, {"n": n}) for n in range(100))))
    assert context.getPersistentRDDs().size() == before
    tables = [each.tableName for each in spark.sql("SHOW TABLES").collect()]
    assert not [name for name in tables if name.startswith("multiclouddb")]


def test_executors_read_the_source_once(sink, spark, tmp_path):
    frame = spark.createDataFrame(rows(("a", 1, {}), ("b", 1, {}))).repartition(2)
    sink.merge(rows(("a", 0, {}), ("c", 0, {})))
    assert merge_into_table(read_counted(frame, tmp_path / "reads"), 0, sink.table)
    assert (tmp_path / "reads").read_text() == "read\n" * 2


def test_tombstones_are_dropped_by_the_time_of_their_merge(sink, spark):
    """The events are from January."""

    def drop(**older):
        return drop_tombstones(sink.table, timedelta(**older), spark=spark)

    sink.merge(rows(("a", 1, None), ("b", 1, None), ("c", 1, {})))
    assert drop(hours=1) == 0
    old = f"_deleted_at = current_timestamp() - INTERVAL 2 HOURS WHERE key = '{key_of('a')}'"
    spark.sql(f"UPDATE {sink.table} SET {old}")
    plan = "provider:resource:snapshot:s"
    sink.merge(page([], SnapshotStarted("000010~", plan), BackfillDone(plan, "000010~")))
    assert drop_tombstones(sink.table, timedelta(0), checkpoint=sink.checkpoint, spark=spark) == 0
    assert tombstones(sink).keys() == {"a", "b", "c"}
    assert drop(hours=1) == 1
    assert tombstones(sink).keys() == {"b", "c"}
    assert drop() == 2
    assert tombstones(sink) == {}


def test_row_says_since_when_its_document_is_old(sink, spark):
    def since():
        return spark.sql(f"SELECT _stale_since FROM {sink.table}").collect()[0][0]

    sink.merge(bare(("a", 1, {})), missing_state="keep")
    first = since()
    sink.merge(bare(("a", 2, {})), missing_state="keep")
    assert since() == first is not None
    sink.merge(rows(("a", 3, {})))
    assert since() is None


def properties(spark, sink):
    return dict(map(tuple, spark.sql(f"SHOW TBLPROPERTIES {sink.table}").collect()))


def test_commit_names_what_a_batch_lacks(sink, spark):
    write_offset(sink.checkpoint, 0, fresh=True)
    write_offset(sink.checkpoint, 1, lost=1, warning="changes are gone")
    frame = spark.createDataFrame(rows(("a", 1, {})))
    assert merge_into_table(frame, 1, sink.table, checkpoint=sink.checkpoint, create_using="test")
    assert properties(spark, sink)["multiclouddb.warning"] == "changes are gone"


def test_refusal_names_only_arguments_of_the_function(sink):
    sink.merge(rows(("a", 1, {})))
    sink.drop()
    with pytest.raises(MulticloudDbError, match="delivered rows before") as caught:
        sink.merge(rows(("b", 2, {})))
    assert "create=" not in caught.value.message
    assert "checkpoint=" in caught.value.message


def test_a_table_is_made_although_another_commit_comes_between(sink, spark, monkeypatch):
    sql, left = type(spark).sql, ["org.apache.iceberg.exceptions.CommitFailedException: Cannot commit"]

    def contended(session, statement, *arguments, **named):
        if statement.startswith("CREATE TABLE") and left:
            raise AnalysisException(left.pop())
        return sql(session, statement, *arguments, **named)

    monkeypatch.setattr(type(spark), "sql", contended)
    sink.merge(rows(("a", 1, {"n": 1})))
    assert not left
    assert documents(sink) == {"a": {"n": 1}}


def test_another_commit_between_plan_and_commit_is_merged_over(sink, spark, monkeypatch):
    sink.merge(rows(("a", 1, {"n": 1})))
    sql = type(spark).sql
    left = [
        "java.util.ConcurrentModificationException: another commit",
        "io.delta.exceptions.ConcurrentDeleteReadException: files were removed",
        "[DELTA_CONCURRENT_APPEND.WITHOUT_HINT] Transaction conflict detected. A concurrent UPDATE added "
        "data to table main.shop.orders committed at version 3. Please retry the operation. SQLSTATE: 2D521",
        "[DELTA_METADATA_CHANGED] The metadata of the table has been changed. SQLSTATE: 2D521",
        "org.apache.iceberg.exceptions.CommitFailedException: Cannot commit",
        "org.apache.iceberg.exceptions.ValidationException: Found conflicting files",
        "org.apache.iceberg.exceptions.ValidationException: Found new conflicting delete files",
        "org.apache.iceberg.exceptions.ValidationException: Missing required files to delete: a.parquet",
        "org.apache.iceberg.exceptions.ValidationException: Cannot commit, missing data files: a.parquet",
    ]

    def call(self, statement, *arguments, **options):
        if statement.startswith("MERGE") and left:
            raise RuntimeError(left.pop())
        return sql(self, statement, *arguments, **options)

    monkeypatch.setattr(type(spark), "sql", call)
    monkeypatch.setattr("pyspark_multiclouddb.named_table._FIRST_WAIT", 0.0)
    sink.merge(rows(("a", 2, {"n": 2})))
    assert (documents(sink), left) == ({"a": {"n": 2}}, [])


@pytest.mark.parametrize(
    "text",
    [
        "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint a (n > 0) violated by row with values:\n"
        " - n : SECRET SQLSTATE: 23001",
        "[DELTA_NOT_NULL_CONSTRAINT_VIOLATED] NOT NULL constraint violated for column: n. SQLSTATE: 23502",
        "[DELTA_CANNOT_MODIFY_APPEND_ONLY] This table is configured to only allow appends. SQLSTATE: 42809",
    ],
)
def test_what_the_table_refuses_is_told_without_the_row(sink, spark, monkeypatch, text):
    """The texts are those of Delta's `delta-error-classes.json`."""
    sink.merge(rows(("a", 1, {"n": 1})))
    sql, calls = type(spark).sql, []

    def call(self, statement, *arguments, **options):
        if statement.startswith("MERGE"):
            calls.append(statement)
            raise RuntimeError(f"{text}\n\nJVM stacktrace:\nat org.apache.spark")
        return sql(self, statement, *arguments, **options)

    monkeypatch.setattr(type(spark), "sql", call)
    with pytest.raises(MulticloudDbError) as caught:
        sink.merge(rows(("a", 2, {"n": 2})))
    error = caught.value
    assert (error.category, error.retryable, len(calls)) == (ErrorCategory.INVALID_REQUEST, False, 1)
    assert error.detail.native_code in text
    assert "SECRET" not in f"{error} {error.detail} {error.__cause__}"
    assert "JVM" not in error.message


def test_a_session_whose_timestamps_have_no_zone(sink, spark):
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        sink.merge(rows(("a", 1, {})))
        sink.merge(rows(("a", 2, None)).append_column("at", pa.array([datetime.now(UTC)])), new_columns="add")
        assert dict(spark.createDataFrame([], EVENT_COLUMNS).dtypes)["timestamp"] == "timestamp"
    finally:
        spark.conf.unset("spark.sql.timestampType")
    kinds = dict(spark.table(sink.table).dtypes)
    assert {kinds[name] for name in ("timestamp", "at", "_deleted_at")} == {"timestamp"}


SETTINGS = [
    {"spark.sql.ansi.enforceReservedKeywords": "true", "spark.sql.ansi.enabled": "true"},
    {"spark.sql.storeAssignmentPolicy": "STRICT"},
    {"spark.sql.parser.escapedStringLiterals": "true", "spark.sql.ansi.doubleQuotedIdentifiers": "true"},
    {"spark.sql.legacy.consecutiveStringLiterals.enabled": "true"},
    {"spark.sql.caseSensitive": "true"},
]


def with_odd_columns(made):
    odd = pa.array([{"it's a `field`": number, "date": "x"} for number in range(made.num_rows)])
    return made.append_column("odd", odd).append_column("at", pa.array([datetime.now(UTC)] * made.num_rows))


# Spark Connect says so of one of them; they still change what a statement means.
@pytest.mark.filterwarnings("ignore:The SQL config .* has been deprecated:UserWarning")
@pytest.mark.parametrize(
    "settings", SETTINGS, ids=lambda each: "+".join(name.rsplit(".", 1)[1] for name in each)
)
def test_statements_mean_the_same_under_every_setting_of_sql(sink, spark, settings):
    """A merge, a column that is added, the end of a snapshot, and the removal of tombstones."""
    made = rows(("a", 1, {"n": 1}), ("b", 1, None), ("c", 1, {}))
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        sink.merge(made)
        sink.merge(with_odd_columns(made), new_columns="add")
        plan = "provider:resource:snapshot:s"
        sink.merge(page([], SnapshotStarted("000010~", plan), BackfillDone(plan, "000010~")))
        assert tombstones(sink).keys() == {"a", "b", "c"}
        assert drop_tombstones(sink.table, timedelta(0), spark=spark) == 3
        said = "it's 'quoted' \\u0041 \\n"
        sink.target.store({said: 7}, {"said": said})
        assert sink.target.number(said) == 7
        assert properties(spark, sink)["multiclouddb.said"] == said
    finally:
        for name in settings:
            spark.conf.unset(name)
    kinds = dict(spark.table(sink.table).dtypes)
    assert kinds["odd"] == "struct<it's a `field`:bigint,date:string>"


def test_the_setting_with_which_spark_refuses_a_statement_is_named(sink, spark):
    made = rows(("a", 1, {"n": 1}), ("b", 1, None), ("c", 1, {}))
    wider = with_odd_columns(rows(("a", 2, {"n": 2}), ("c", 2, None)))
    sink.merge(made)
    for name, value in {"storeAssignmentPolicy": "LEGACY", "ansi.enabled": "false"}.items():
        spark.conf.set(f"spark.sql.{name}", value)
    try:
        call = partial(sink.merge, wider, new_columns="add")
        refusal(ErrorCategory.INVALID_REQUEST, call, "spark.sql.storeAssignmentPolicy: is LEGACY", "ANSI")
    finally:
        for name in ("storeAssignmentPolicy", "ansi.enabled"):
            spark.conf.unset(f"spark.sql.{name}")
    sink.merge(wider)
    assert {row["odd"]["date"] for row in spark.table(sink.table).collect() if row["odd"]} == {"x"}


def test_large_documents_are_read_in_small_batches(sink, monkeypatch):
    monkeypatch.setattr(layout, "GROUP_BYTES", 4000)
    sink.merge(rows(*((f"k{number:02}", 1, {"text": "x" * 1000}) for number in range(20))))
    sizes = [batch.num_rows for batch in sink.target.rows()]
    assert (sum(sizes), max(sizes)) == (20, 4)


NAME = "a `name` with.dots"


def test_names_of_columns_with_backticks_and_dots(sink, spark):
    """In each statement: a merge, one that lacks the column, the end of a snapshot, and a repair."""
    kind = pa.struct([(NAME, pa.list_(pa.struct([(NAME, pa.string())])))])

    def batch(*changes):
        parts = [{NAME: [{NAME: key}]} for key, *_ in changes]
        made = rows(*changes).append_column(NAME, pa.array([key for key, *_ in changes]))
        return made.append_column("part", pa.array(parts, kind))

    def values():
        found = spark.table(sink.table).collect()
        return {decode_json(row["key"])["id"]: (row[NAME], row["part"]) for row in found}

    sink.merge(rows(("d", 1, {})))
    sink.merge(batch(("a", 1, {"n": 1}), ("b", 1, {}), ("c", 1, {})), new_columns="add")
    sink.merge(rows(("b", 2, None)))
    fix = Fix(key_of("a"), ("000001",), "000002", "{}", {NAME: "new"}, datetime.now(UTC))
    assert sink.target.fix([fix], expected(sink)) == 1
    found = values()
    assert (found["a"][0], found["b"], found["c"][0]) == ("new", (None, None), "c")
    [state] = [
        decode_json(text)
        for part in sink.target.rows([key_of("c")], own=True)
        for text in part["state"].to_pylist()
    ]
    assert (state[NAME], state["part"]) == ("c", {NAME: [{NAME: "c"}]})
    plan = "provider:resource:snapshot:s"
    sink.merge(page([], SnapshotStarted("000010~", plan), BackfillDone(plan, "000010~")))
    assert {*values().values()} == {(None, None)}


def test_names_of_columns_with_backticks_and_dots_in_a_table_that_the_driver_merges(spark, tmp_path):
    made = rows(("a", 1, {}), ("b", 1, None))
    parts = pa.array([[{NAME: "x"}], None], pa.list_(pa.struct([(NAME, pa.string())])))
    made = made.append_column(NAME, pa.array(["a", None])).append_column("parts", parts)
    frame = spark.createDataFrame(made, from_arrow_schema(made.schema, prefer_timestamp_ntz=True))
    for batch in (latest_by_key(frame), frame.limit(0)):
        merge_into_delta(batch, None, tmp_path / "table", None)
    found = live_rows(tmp_path / "table", [NAME, "parts"]).read_all().to_pylist()
    assert found == [{NAME: "a", "parts": [{NAME: "x"}]}]


def test_properties_are_read_at_the_first_look_and_before_a_row_is_written(sink, spark, monkeypatch):
    """Each such statement reads the log of a Delta table again."""
    sink.merge(rows(("a", 1, {"n": 1})))
    sql, said = type(spark).sql, []

    def call(self, statement, *arguments, **options):
        said.append(statement.partition(f" {sink.table}")[0])
        return sql(self, statement, *arguments, **options)

    monkeypatch.setattr(type(spark), "sql", call)
    sink.merge(rows(("a", 2, {"n": 2})))
    looks = ["SHOW TBLPROPERTIES", "REFRESH TABLE", "SHOW TBLPROPERTIES", "SELECT 1 FROM"]
    of_table = [each for each in said if not each.startswith("SELECT `and`")]
    assert of_table == [*looks, "SHOW TBLPROPERTIES", "MERGE INTO"]


TEXTS = "key STRING, order_key STRING, timestamp TIMESTAMP, new_item_state STRING, _deleted_at TIMESTAMP"


def test_an_empty_text_by_which_a_table_is_partitioned_is_refused_with_its_key(sink, spark):
    """Delta, Hudi and Paimon store null for it, as the catalog of this test does."""
    name = "the `country`"
    column = "`the ``country```"
    columns = f"{TEXTS}, {column} STRING, note STRING, raw BINARY"
    spark.sql(f"CREATE TABLE {sink.table} ({columns}) USING test PARTITIONED BY ({column}, raw)")

    def batch(countries, raw=b"x"):
        made = rows(("a", 1, {}), ("b", 1, {})).append_column(name, pa.array(countries))
        made = made.append_column("raw", pa.array([raw, None], pa.binary()))
        return made.append_column("note", pa.array(["", ""]))

    refused = partial(refusal, ErrorCategory.INVALID_REQUEST)
    refused(
        lambda: sink.merge(batch(["DE", ""])), f"column {name}: has an empty text", key_digest(key_of("b"))
    )
    refused(lambda: sink.merge(batch(["DE", "FR"], b"")), "column raw: has an empty text")
    sink.merge(batch(["DE", None]))
    fix = Fix(key_of("b"), ("000001",), "000002", "{}", {name: "", "note": ""}, datetime.now(UTC))
    refused(lambda: sink.target.fix([fix], expected(sink)), f"column {name}: has", key_digest(key_of("b")))
    found = spark.sql(f"SELECT {column}, note FROM {sink.table} ORDER BY key").collect()
    assert [tuple(row) for row in found] == [("DE", ""), (None, "")]


@pytest.mark.parametrize(
    ("described", "columns"),
    [
        ([("# Partition Information", ""), ("# col_name", "data_type"), ("a", "string"), ("", "")], {"a"}),
        ([("# Partitioning", ""), ("Part 0", "a"), ("Part 1", "bucket(4, b)")], {"a"}),
        ([("# Partition Information", ""), ("a", "string"), ("# Detailed", ""), ("Provider", "iceberg")], ()),
    ],
)
def test_what_spark_says_of_partitions(described, columns):
    """Iceberg keeps an empty text; only such a table can be partitioned by more than columns."""
    found = partitions(
        [("a", "string", None), ("Provider", "string", None), *((*row, None) for row in described)]
    )
    assert {name for name in found if name in ("a", "b", "Provider")} == {*columns}


class TestRefusedByThePlatform:
    """Databricks' serverless compute refuses some calls and settings."""

    @pytest.fixture
    def refuse(self, monkeypatch):
        def refused(owner, name, *, wanted=None):
            original = getattr(owner, name)

            def call(*arguments, **named):
                if wanted is None or wanted in arguments:
                    raise AnalysisException(
                        "[NOT_SUPPORTED_WITH_SERVERLESS] it is not supported on serverless"
                    )
                return original(*arguments, **named)

            monkeypatch.setattr(owner, name, call)

        return refused

    @pytest.fixture
    def frame(self, spark):
        made = rows(("a", 1, {"n": 1}), ("a", 2, {"n": 2}), ("b", 1, None))
        return spark.createDataFrame(made, from_arrow_schema(made.schema, prefer_timestamp_ntz=True))

    def test_rows_that_nobody_may_keep_are_read_again(self, spark, frame, tmp_path, refuse, caplog):
        refuse(type(frame), "persist")
        refuse(type(spark.conf), "get", wanted="spark.driver.maxResultSize")
        assert merge_into_delta(frame, None, tmp_path / "table", None)
        found = {
            row["key"]: row["new_item_state"] for row in live_rows(tmp_path / "table").read_all().to_pylist()
        }
        assert found == {key_of("a"): '{"n":2}'}
        assert "refuses persist" in caplog.text

    def test_rows_that_must_stay_the_same_are_refused_by_name(self, sink, frame, refuse):
        refuse(type(frame), "localCheckpoint")
        call = partial(merge_into_table, frame, 0, sink.table, create_using="test")
        refusal(ErrorCategory.UNSUPPORTED_CAPABILITY, call, "localCheckpoint", "merge_into_delta")


@pytest.mark.parametrize("hidden", [None, "(?i)main|orders|timestamp"])
def test_mark_is_read_whatever_words_spark_hides(sink, spark, hidden):
    """A platform may hide more words in the values of properties than Spark itself does."""
    if hidden:
        spark.conf.set(HIDDEN_WORDS, hidden)
    try:
        batch = rows(("a", 1, {})).append_column("image_url", pa.array(["x"]))
        sink.merge(batch.append_column("it's a \\token", pa.array(["x"])))
        sink.merge(batch.slice(0, 0))
        sink.merge(rows(("a", 2, {})).append_column("secret", pa.array(["x"])), new_columns="add")
        mark = sink.target.found().mark
    finally:
        spark.conf.unset(HIDDEN_WORDS)
    assert mark.source == SOURCE
    assert {"image_url", "it's a \\token", "secret", "timestamp"} <= {*mark.columns}


def test_mark_that_spark_hides_is_no_damaged_one(sink, spark):
    sink.merge(rows(("a", 1, {})))
    spark.conf.set(HIDDEN_WORDS, "provider")
    try:
        with pytest.raises(MulticloudDbError, match=r"Spark hides.*set spark\.redaction\.regex"):
            sink.merge(rows(("a", 2, {})))
    finally:
        spark.conf.unset(HIDDEN_WORDS)
    assert documents(sink) == {"a": {}}


def test_what_another_session_has_written_is_read_from_a_cached_table(sink, spark):
    sink.merge(rows(("a", 1, {"n": 1})))
    spark.catalog.cacheTable(sink.table)
    try:
        assert documents(sink) == {"a": {"n": 1}}
        spark.sql(f"UPDATE {table_in(spark, sink.lake)} SET new_item_state = '{{}}'")
        assert documents(sink) == {"a": {}}
    finally:
        spark.catalog.uncacheTable(sink.table)


def test_times_in_a_value_are_compared_as_instants(sink, monkeypatch):
    """One of them is in the second hour from 1:00 to 2:00 of a night in which New York's clocks go back."""
    at, late = datetime(2026, 7, 1, 12, tzinfo=UTC), datetime(2026, 11, 1, 6, 30, tzinfo=UTC)
    kind = pa.timestamp("us", tz="UTC")
    batch = rows(("a", 1, {})).append_column("times", pa.array([[at, None, late]], pa.list_(kind)))
    part = {"at": late, "n": 1, "a.b": [{"x": [late]}], "none": None}
    deep = pa.list_(pa.struct([("x", pa.list_(kind))]))
    shape = pa.struct([("at", kind), ("n", pa.int64()), ("a.b", deep), ("none", pa.struct([("at", kind)]))])
    batch = batch.append_column("part", pa.array([part], shape))
    batch = batch.append_column("by_name", pa.array([[("x", late), ("y", None)]], pa.map_(pa.string(), kind)))
    batch = batch.append_column("none", pa.array([None], pa.map_(pa.string(), kind)))
    sink.merge(batch)
    wanted = {"times": [at, None, late], "part": part, "by_name": {"x": late, "y": None}, "none": None}
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        [found] = [row for part in sink.target.rows(own=wanted) for row in part.to_pylist()]
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    assert decode_json(found["state"]) == decode_json(state_of(wanted, sink.target.columns()))


@pytest.mark.parametrize("kind", ["CHAR(40)", "VARCHAR(40)"])
@pytest.mark.parametrize("name", ["key", "note"])
def test_column_that_changes_the_spaces_of_a_text(sink, spark, name, kind):
    """In a key of such a type, each change of a document would become a row of its own."""
    columns = {
        "key": "STRING", "order_key": "STRING", "timestamp": "TIMESTAMP", "new_item_state": "STRING",
        "_deleted_at": "TIMESTAMP", "note": "STRING", name: kind,
    }  # fmt: skip
    spark.sql(f"CREATE TABLE {sink.table} ({', '.join(map(' '.join, columns.items()))}) USING test")
    batch = rows(("a", 1, {})).append_column("note", pa.array(["x" + 50 * " "]))
    with pytest.raises(MulticloudDbError, match=f"column {name}: is {re.escape(kind.lower())}.*STRING"):
        sink.merge(batch)
    if name == "note":
        sink.merge(rows(("a", 1, {})))
    assert documents(sink) == ({"a": {}} if name == "note" else {})


def test_a_key_with_several_rows_gets_one_back_unless_one_of_them_has_changed(sink, spark):
    sink.merge(rows(("a", 1, {"n": 1}), ("b", 1, {"n": 1}), ("c", 1, {"n": 1})))
    copy = f"INSERT INTO {sink.table} SELECT * FROM {sink.table} WHERE key <> '{key_of('c')}'"
    spark.sql(copy)
    one = "000001"
    fixes = [Fix(key_of(name), (one, one), "000002", '{"n":2}', None, datetime.now(UTC)) for name in "ab"]
    spark.sql(f"UPDATE {sink.table} SET order_key = '000005' WHERE key = '{key_of('b')}'")
    assert sink.target.fix(fixes, expected(sink)) == 1
    found = spark.sql(f"SELECT key, order_key FROM {sink.table} ORDER BY key, order_key").collect()
    assert [tuple(row) for row in found] == [
        (key_of("a"), "000002"),
        *[(key_of("b"), "000005")] * 2,
        (key_of("c"), one),
    ]
