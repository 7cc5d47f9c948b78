"""Tests the table that shows a query's progress."""

import io
import json
from types import SimpleNamespace

from multiclouddb_conformance.waiting import wait_until
from pyspark_multiclouddb import ProgressTable

from .test_source import follow


def event(report, rows=3, name="orders"):
    latest = report if report is None or isinstance(report, str) else json.dumps(report)
    source = SimpleNamespace(latestOffset=latest, numInputRows=rows)
    return SimpleNamespace(progress=SimpleNamespace(name=name, id="0f3c", batchId=7, sources=[source]))


REPORT = {
    "events": 3,
    "foundLate": 0,
    "headroomSeconds": 3600.5,
    "idle": False,
    "lagSeconds": 1.25,
    "openWatches": 0,
    "partitions": 8,
    "readUntil": "2026-01-31T12:00:00Z",
    "skipped": {"count": 0, "last": None},
    "v": 1,
    "waiting": 0,
}


def table(*events):
    out = io.StringIO()
    listener = ProgressTable(out)
    for each in events:
        listener.onQueryProgress(each)
    return out.getvalue().splitlines()


def test_line_has_what_the_source_reports():
    head, line = table(event(REPORT))
    names = "query batch rows events lag s headroom s partitions skipped read until"
    assert " ".join(head.split()) == names
    assert line.split() == ["orders", "7", "3", "3", "1.2", "3600.5", "8", "0", "2026-01-31T12:00:00Z"]


def test_what_was_skipped_has_a_line_with_its_place():
    lines = table(event({**REPORT, "skipped": {"count": 2, "last": "p0 after sequence 7"}, "foundLate": 1}))
    assert lines[-2:] == [
        "  skipped, last: p0 after sequence 7",
        "  partitions that an audit found late: 1",
    ]


def test_what_cannot_be_decoded_has_a_line_with_its_place():
    lines = table(event({**REPORT, "poison": {"count": 2, "last": "p0 at sequence 7"}}))
    assert "2" in lines[-1]
    assert lines[-1].endswith("p0 at sequence 7")


def test_source_that_reports_nothing_has_rows_alone():
    for other in (None, "no json", '{"c": 1}'):
        assert table(event(other))[-1].split() == ["orders", "7", "3"]


def test_in_a_session(spark, source, tmp_path):
    out = io.StringIO()
    listener = ProgressTable(out)
    source.write(20)
    spark.streams.addListener(listener)
    try:
        follow(spark, source, tmp_path / "checkpoint")
        wait_until(lambda: " ended" in out.getvalue())
    finally:
        spark.streams.removeListener(listener)
    (line,) = (line.split() for line in out.getvalue().splitlines() if line.split()[1:3] == ["1", "20"])
    assert line[3] == "20"
