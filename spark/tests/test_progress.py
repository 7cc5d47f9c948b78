"""Tests the report of a step, the table of reports, and whether a query has read everything."""

import io
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import attrs
import pytest
from pyspark.errors import AnalysisException

from multiclouddb_api import MulticloudDbError
from multiclouddb_spi import Position, Step
from multiclouddb_spi.continuation.lineage import Lineage
from pyspark_multiclouddb import ProgressTable, caught_up, progress
from pyspark_multiclouddb.progress import Reports, snapshot_state

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
HELD = 16 | 32
SEGMENT = 8


def lineage(*entries):
    return Lineage.from_json({"p": list(entries)}, None)


def plan(cursor=None, done=3):
    moment = int(NOON.timestamp()) * 1_000_000
    return ["snapshot:1", cursor, HELD, ["f1", moment, None, None, done, 5, 30, 50, 0]]


@attrs.define
class Database:
    """A connection to a feed; a position is the number of seconds after noon, or None for an unknown time."""

    now: datetime | None = NOON
    here: float = 1000.0
    asked: int = 0
    kept: float | None = 3600.0

    @property
    def feed(self):
        return self

    @property
    def opened(self):
        return self

    def call(self, operation, ask):
        assert operation == "clock"
        return ask(None)

    def clock(self, deadline):
        del deadline
        self.asked += 1
        return self.now

    def describe(self, cursor):
        return Position("a place", None if cursor is None else NOON + timedelta(seconds=cursor))

    def visible_after(self):
        return None

    def public_id(self, partition_id):
        return partition_id

    def compare(self, one, other):
        return None if one is None or other is None else (one > other) - (one < other)

    def headroom(self, cursor, now):
        if cursor is None or self.kept is None:
            return None
        return self.kept - (now - NOON).total_seconds() + cursor

    def monotonic(self):
        return self.here

    def passes(self, seconds):
        """Let time pass here and in the service."""
        self.here += seconds
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def database(monkeypatch):
    made = Database()
    monkeypatch.setattr(progress, "time", made)
    return made


def report(database, *entries, step=None, idle=False, reports=None, snapshot=None):
    reports = reports or Reports()
    return reports.report(database, lineage(*entries), step, idle=idle, snapshot=snapshot)


class TestReport:
    @pytest.mark.parametrize(
        ("now", "entries", "expected"),
        [
            # `readUntil` is the time of the slowest partition, and unknown if the time of one is unknown.
            (60, [["p0", 20], ["p1", 5]], {"readUntil": "2026-01-31T12:00:05Z", "lagSeconds": 55.0}),
            (0, [["p0", 20], ["p1", None]], {"readUntil": None, "lagSeconds": None}),
            (0, [["p0", 20], ["p1", [9, None], 4, ["p0"]]], {"readUntil": None, "lagSeconds": None}),
            (0, [["p0", 20], ["p1", [9, 15], 4, ["p0"]]], {"readUntil": "2026-01-31T12:00:09Z"}),
            # The lag is never negative.
            (0, [["p0", 20]], {"readUntil": "2026-01-31T12:00:20Z", "lagSeconds": 0.0}),
            # The headroom is that of the first position to expire.
            (0, [["p0", 20], ["p1", 5], ["p2", None]], {"headroomSeconds": 3605.0}),
            (3605, [["p0", 20], ["p1", 5]], {"headroomSeconds": 0.0}),
            (0, [["p0", None]], {"headroomSeconds": None}),
            # Without the time of the service, lag and headroom are unknown.
            (
                None,
                [["p0", 20]],
                {"readUntil": "2026-01-31T12:00:20Z", "lagSeconds": None, "headroomSeconds": None},
            ),
            # Partitions are counted by their state.
            (
                0,
                [["p0", 5], ["p1", 5], ["p2", 9, 1], ["p3", 9, 1, ["p4"], 17], ["p4", [9], 4, ["p2"]]],
                {"partitions": 2, "openWatches": 1, "waiting": 1},
            ),
        ],
    )
    def test_of_positions(self, database, now, entries, expected):
        database.now = None if now is None else NOON + timedelta(seconds=now)
        found = report(database, *entries)
        assert {name: found[name] for name in expected} == expected

    def test_until_never_goes_back_in_a_run(self, database):
        reports = Reports()
        for entries in ([["p0", 20]], [["p0", 20], ["p1", None]], [["p0", 5]]):
            assert report(database, *entries, reports=reports)["readUntil"] == "2026-01-31T12:00:20Z"

    def test_time_of_the_service_is_requested_once_in_30_seconds(self, database):
        reports, lags = Reports(), []
        for _ in range(7):
            lags.append(report(database, ["p0", 0], reports=reports)["lagSeconds"])
            database.passes(10)
        assert lags == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
        assert database.asked == 2

    def test_what_was_skipped_or_found_late_is_counted_for_the_whole_run(self, database):
        reports, at = Reports(), lineage(["p0", 5])
        for number in range(3):
            step = Step(at, at, {}, skipped=(f"place {number}",), found_late=("a",) * number)
            found = report(database, ["p0", 5], step=step, reports=reports)
        assert found["skipped"] == {"count": 3, "last": "place 2"}
        assert found["foundLate"] == 3

    def test_events_are_those_of_the_step_and_unknown_in_a_scan_that_reads(self, database):
        before, after = lineage(["p0", 5]), lineage(["p0", 9])
        assert report(database, ["p0", 5])["events"] == 0
        for count in (4, None):
            assert report(database, ["p0", 9], step=Step(before, after, {}, records=count))["events"] == count
        scan = lineage(plan(), ["snapshot:1:4", None, SEGMENT])
        reads = Step(scan, lineage(plan()), {"snapshot:1:4": [1]}, records=0)
        assert report(database, plan(), step=reads)["events"] is None
        assert report(database, plan(), step=Step(scan, scan, {}, records=0))["events"] == 0

    def test_scan_has_its_own_numbers_and_the_headroom_of_the_stream(self, database):
        database.passes(60)
        entries = [plan(), ["snapshot:1:4", 7, SEGMENT], ["p0", [5, 2], 4, ["snapshot:1"]], ["p1", 9]]
        state = {"plan": "1", "floor": "f1", "over": False, "whole": True}
        found = report(database, *entries, snapshot=state)
        assert (found["partitions"], found["waiting"]) == (1, 1)
        assert (found["readUntil"], found["lagSeconds"]) == (None, None)
        assert found["headroomSeconds"] == 3542.0
        alone = report(database, *entries[:2], ["p1", 1], snapshot=state)
        assert alone["headroomSeconds"] == 3541.0
        assert found["snapshot"] == {
            "floor": "f1", "order": "ordered", "over": False, "plan": "1", "records": 50, "segments": 5,
            "segmentsDone": 3,
        }  # fmt: skip
        over = report(database, ["p0", 5], snapshot={**state, "over": True})
        assert over["snapshot"] == {"floor": "f1", "over": True, "plan": "1"}


class TestStateOfASnapshot:
    def test_stays_after_the_scan(self):
        stream = lineage(["p0", 5])
        assert snapshot_state(None, stream, stream) is None
        known = {"plan": "1", "floor": "f1", "over": True, "whole": True}
        assert snapshot_state(known, stream, stream) == known

    @pytest.mark.parametrize("whole", [True, False])
    def test_says_until_its_end_whether_the_scan_reads_every_row(self, whole):
        scan, stream = lineage(plan(), ["snapshot:1:4", 7, SEGMENT]), lineage(["p0", 5])
        first = snapshot_state(None, scan, scan, whole=whole)
        last = snapshot_state(first, scan, stream)
        assert [first["over"], last["over"]] == [False, True]
        assert [first.get("whole", False), last.get("whole", False)] == [whole, whole]


def ended(*sources):
    pairs = [{"startOffset": start, "endOffset": end} for start, end in sources]
    return SimpleNamespace(lastProgress={"sources": pairs})


def text_of(form, **offset):
    offset = {"c": {"p": [["p0", ["o'brien"]]]}, "inc": None, "v": 1, **offset}
    return json.dumps(offset) if form == "json" else str(offset)


@pytest.mark.parametrize("form", ["json", "python"])
class TestCaughtUp:
    def test_records_that_may_follow(self, form):
        more = text_of(form, more=True)
        assert not caught_up(ended((None, more)))
        assert not caught_up(ended((text_of(form, v=0), more)))
        assert caught_up(ended((None, text_of(form))))
        assert caught_up(ended((text_of(form, v=0), text_of(form, empty=True))))
        # The last step of an earlier run may have been cut at its limit, and nothing has followed it.
        assert caught_up(ended((more, more)))

    @pytest.mark.parametrize("other", ["12", None, "no json", "{'a", '{"orders": {"0": 5}}', "[1]"])
    def test_query_with_another_source(self, form, other):
        assert caught_up(ended(("0", other), (None, text_of(form))))
        assert not caught_up(ended(("0", other), (None, text_of(form, more=True))))
        assert not caught_up(ended((None, text_of(form, more=True)), ("0", other)))


KEPT = "spark.sql.streaming.numRecentProgressUpdates"


@pytest.mark.parametrize("number", ["0", "1", "01", " +1 "])
def test_a_query_that_keeps_no_progress_is_refused(spark, number):
    spark.conf.set(KEPT, number)
    try:
        with pytest.raises(MulticloudDbError, match=f"{KEPT} is less than 2"):
            caught_up(SimpleNamespace(lastProgress=None))
    finally:
        spark.conf.unset(KEPT)


@pytest.mark.parametrize("number", [1, 2])
def test_spark_keeps_the_progress_of_one_batch_less_than_it_is_set_to(spark, source, tmp_path, number):
    source.write(5)
    frame = spark.readStream.format("multiclouddb").options(**source.options()).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    spark.conf.set(KEPT, str(number))
    try:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        assert len(query.recentProgress) == number - 1
        if number > 1:
            assert caught_up(query)
        else:
            with pytest.raises(MulticloudDbError, match="set it to 2 or more"):
                caught_up(query)
    finally:
        spark.conf.unset(KEPT)


def test_a_query_without_progress_where_nobody_may_read_a_setting(spark, monkeypatch):
    """As on Databricks' serverless compute, where `conf.get` raises also with a default."""

    def get(conf, name, *_):
        raise AnalysisException(f"[CONFIG_NOT_AVAILABLE] Configuration {name} is not available.")

    monkeypatch.setattr(type(spark.conf), "get", get)
    assert caught_up(SimpleNamespace(lastProgress=None))


def test_what_has_no_progress_or_is_no_query():
    assert caught_up(SimpleNamespace(lastProgress=None))
    with pytest.raises(MulticloudDbError, match="query: must be a streaming query, not int"):
        caught_up(7)


REPORT = {
    "events": 3,
    "foundLate": 0,
    "headroomSeconds": 3600.5,
    "lagSeconds": 1.25,
    "openWatches": 0,
    "partitions": 8,
    "readUntil": "2026-01-31T12:00:00Z",
    "skipped": {"count": 0, "last": None},
}
NUMBERS = ["orders", "7", "3"]


def table(report):
    out = io.StringIO()
    latest = report if report is None or isinstance(report, str) else json.dumps(report)
    source = SimpleNamespace(latestOffset=latest, numInputRows=3)
    progress = SimpleNamespace(name="orders", id="0f3c", batchId=7, sources=[source])
    ProgressTable(out).onQueryProgress(SimpleNamespace(progress=progress))
    return [line.split() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("report", [None, "no json", '{"c": 1}'])
def test_source_that_reports_nothing_has_rows_alone(report):
    assert table(report)[-1] == NUMBERS


def test_lines_have_what_the_source_reports():
    head, line = table(REPORT)
    assert " ".join(head) == "query batch rows events lag s headroom s partitions skipped read until"
    assert line == [*NUMBERS, "3", "1.2", "3600.5", "8", "0", "2026-01-31T12:00:00Z"]
    place = "p0 after sequence 7"
    lost = {"skipped": {"count": 2, "last": place}, "poison": {"count": 4, "last": "p1"}, "foundLate": 1}
    skipped, poison, late = table({**REPORT, **lost})[2:]
    assert skipped[-4:] == place.split()
    assert {"4,", "p1"} <= set(poison)
    assert late[-1] == "1"
