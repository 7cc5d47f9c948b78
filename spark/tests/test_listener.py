"""Tests the table that shows a query's progress; `test_source.py` prints one."""

import io
import json
from types import SimpleNamespace

import pytest

from pyspark_multiclouddb import ProgressTable

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
