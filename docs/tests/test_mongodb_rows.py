"""Tests that the page about MongoDB's specifications is up to date: every row has a test or a reason."""

import re
import runpy
from pathlib import Path

import attrs
import pymongo
import pytest

DOCS = Path(__file__).resolve().parents[1]
MADE = runpy.run_path(str(DOCS / "mongodb_rows.py"))
ROWS = {row.id: row for row in MADE["rows"](MADE["data"]())}
AGAIN = "run: python docs/generate.py"


def text():
    """Return the page's text as a single line."""
    return " ".join((DOCS / "reference/mongodb-conformance.md").read_text(encoding="utf-8").split())


def problems(change=None, shown=None):
    """Return the generator's errors after a change of one row, with these tests instead of the real tests."""
    rows = [change.get(row.id, row) for row in ROWS.values()] if change else list(ROWS.values())
    return MADE["problems"]([row for row in rows if row], MADE["shown_rows"]() if shown is None else shown)


class TestRows:
    def test_each_has_a_test_or_a_reason_and_is_on_the_page_once(self):
        assert list(ROWS) == [f"{name}-{n}" for name, top in MADE["ROWS"].items() for n in range(1, top + 1)]
        assert len(ROWS) == 52 + 28 + 29
        assert problems() == []
        page = (DOCS / "reference/mongodb-conformance.md").read_text(encoding="utf-8")
        assert page == MADE["page"](), AGAIN
        assert re.findall(r"^\| ([A-Z]{2}-\d+) \|", page, re.MULTILINE) == list(ROWS)

    def test_the_page_names_the_driver_that_its_tests_run_with(self):
        minor = ".".join(pymongo.version.split(".")[:2])
        assert f"*PyMongo*: PyMongo {minor}, the driver that this provider uses." in text()


class TestProblems:
    """Tests that the generator reports an error for every change that would make the page wrong."""

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ({"no_test": "Too hard."}, "CS-12: has a test"),
            (None, "CS-12: must be in the data once, at its place"),
            ({"by": ()}, "CS-12: is fulfilled by"),
            ({"by": ("somebody",)}, "CS-12: is fulfilled by"),
        ],
    )
    def test_a_wrong_row_is_named(self, change, problem):
        row = None if change is None else attrs.evolve(ROWS["CS-12"], **change)
        assert any(wrong.startswith(problem) for wrong in problems({"CS-12": row}))

    def test_a_test_of_no_row_and_a_row_of_no_test_are_named(self):
        shown = MADE["shown_rows"]()
        assert any(wrong.startswith("RR-29:") for wrong in problems(shown={**shown, "RR-29": ["x"]}))
        del shown["CS-12"]
        assert problems(shown=shown) == ["CS-12: has neither a test nor a reason for having no test"]

    def test_tests_are_found_by_their_names(self, tmp_path):
        for place in MADE["PLACES"]:
            (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / MADE["PLACES"][0]).mkdir()
        (tmp_path / MADE["PLACES"][1]).touch()
        (tmp_path / MADE["PLACES"][0] / "test_x.py").write_text(
            "def test_cs_07_is_skipped(): ...\nclass TestX:\n    def test_rr_12_one_try(self): ...\n"
            "def cs_08_helper(): ...\ndef test_cs_8_too_short(): ...\n",
            encoding="utf-8",
        )
        assert MADE["shown_rows"](tmp_path) == {"CS-7": ["is skipped"], "RR-12": ["one try"]}


def says(*words):
    return all(each in text() for each in words)


class TestWords:
    """Tests the rows whose requirement is documentation."""

    def test_cs_18_the_page_prefers_read_changes_to_a_raw_aggregate(self):
        assert says("Read a change stream with `read_changes`", "a raw aggregate is never resumed")

    def test_cs_20_the_page_says_which_read_concern_works(self):
        assert says("change stream is `majority`, or none at all")

    def test_cs_49_the_page_says_what_to_store_and_how_to_get_every_update(self):
        assert says("Store `page.continuation_token` after every page, even after an empty page.")
        assert says("To receive every update of the token, call `read_changes` in a loop")

    def test_rr_26_the_page_names_what_is_retried_and_warns_of_retry_loops(self):
        retried = re.search(r"\*\*Retried\*\*: (.*?) - \*\*", text())[1]
        names = ["find", "aggregate", "distinct", "counts", "listDatabases", "listCollections", "listIndexes"]
        assert [name for name in names if name not in retried] == []
        left = re.search(r"\*\*Not retried\*\*: (.*?) - \*\*", text())[1]
        names = ["getMore", "run_command", "run_cursor_command", "mapReduce"]
        assert [name for name in names if f"`{name}`" not in left] == []
        assert says("a loop that tries a read n times sends it up to 2n times")

    def test_rc_05_the_page_says_which_fields_are_undefined(self):
        fields = re.search(
            r"a field that the driver adds itself \((.*?)\), the behaviour is \*\*not", text()
        )[1]
        names = ["lsid", "$db", "$clusterTime", "$readPreference", "txnNumber"]
        assert [name for name in names if f"`{name}`" not in fields] == []

    def test_rc_17_the_page_says_what_happens_to_maxtimems(self):
        assert says("the remaining time **overwrites** `maxTimeMS`")

    def test_rc_24_the_page_says_that_the_options_are_for_getmore(self):
        assert says("`comment` of `run_cursor_command` are **for `getMore` only**")

    def test_rc_26_the_page_says_that_another_cursor_type_is_undefined(self):
        assert re.search(r"`cursor_type` has to match .* the behaviour is \*\*undefined\*\*", text())

    def test_rc_28_the_page_says_that_two_timeouts_are_refused(self):
        assert says("A command with both `timeout_ms` and `max_time_ms` is refused")
