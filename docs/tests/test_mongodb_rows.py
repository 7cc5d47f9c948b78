"""Tests that the page about MongoDB's specifications is up to date: every row has a test or a reason."""

import re
import runpy
from pathlib import Path

import pymongo

DOCS = Path(__file__).resolve().parents[1]
MADE = runpy.run_path(str(DOCS / "mongodb_rows.py"))
ROWS = {row.id: row for row in MADE["rows"](MADE["data"]())}
AGAIN = "run: python docs/generate.py"


def text():
    """Return the page's text as a single line."""
    return " ".join((DOCS / "reference/mongodb-conformance.md").read_text(encoding="utf-8").split())


class TestRows:
    def test_each_has_a_test_or_a_reason_and_is_on_the_page_once(self):
        assert list(ROWS) == [f"{name}-{n}" for name, top in MADE["ROWS"].items() for n in range(1, top + 1)]
        assert len(ROWS) == 52 + 28 + 29
        page = (DOCS / "reference/mongodb-conformance.md").read_text(encoding="utf-8")
        assert page == MADE["page"](), AGAIN
        assert re.findall(r"^\| ([A-Z]{2}-\d+) \|", page, re.MULTILINE) == list(ROWS)

    def test_the_page_names_the_driver_that_its_tests_run_with(self):
        minor = ".".join(pymongo.version.split(".")[:2])
        assert f"*PyMongo*: PyMongo {minor}, the driver that this provider uses." in text()
