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
    def test_all_of_them_are_there(self):
        assert len(ROWS) == 52 + 28 + 29
        assert list(ROWS) == [f"{name}-{n}" for name, top in MADE["ROWS"].items() for n in range(1, top + 1)]

    def test_each_has_a_test_or_a_reason(self):
        assert problems() == []

    def test_the_page_is_that_of_today(self):
        page = (DOCS / "reference/mongodb-conformance.md").read_text(encoding="utf-8")
        assert page == MADE["page"](), AGAIN

    def test_the_page_has_each_once(self):
        page = (DOCS / "reference/mongodb-conformance.md").read_text(encoding="utf-8")
        assert re.findall(r"^\| ([A-Z]{2}-\d+) \|", page, re.MULTILINE) == list(ROWS)

    def test_every_line_of_a_table_has_four_cells(self):
        page = (DOCS / "reference/mongodb-conformance.md").read_text(encoding="utf-8")
        lines = [line for line in page.splitlines() if line.startswith("|")]
        assert {line.count("|") for line in lines} == {5}

    def test_the_page_names_the_driver_that_its_tests_run_with(self):
        minor = ".".join(pymongo.version.split(".")[:2])
        assert f"*PyMongo*: PyMongo {minor}, the driver that this provider uses." in text()


class TestProblems:
    """Tests that the generator reports an error for every change that would make the page wrong."""

    def test_a_row_without_test_and_reason(self):
        shown = {name: words for name, words in MADE["shown_rows"]().items() if name != "CS-12"}
        assert problems(shown=shown) == ["CS-12: has neither a test nor a reason for having no test"]

    def test_a_reason_beside_a_test(self):
        change = {"CS-12": attrs.evolve(ROWS["CS-12"], no_test="Too hard.")}
        (wrong,) = problems(change)
        assert wrong.startswith("CS-12: has a test")

    def test_a_row_that_is_gone(self):
        assert "CS-12: must be in the data once, at its place" in problems({"CS-12": None})

    def test_a_test_of_no_row(self):
        assert any(
            wrong.startswith("RR-29:") for wrong in problems(shown={**MADE["shown_rows"](), "RR-29": ["x"]})
        )

    def test_a_row_that_nobody_fulfils(self):
        for by in ((), ("somebody",)):
            (wrong,) = problems({"CS-12": attrs.evolve(ROWS["CS-12"], by=by)})
            assert wrong.startswith("CS-12: is fulfilled by")

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


class TestWords:
    """Tests the rows whose requirement is documentation."""

    @pytest.mark.parametrize(
        "words",
        ["Read a change stream with `read_changes` or `iterate_changes`", "a raw aggregate is never resumed"],
    )
    def test_cs_18_the_page_prefers_read_changes_to_a_raw_aggregate(self, words):
        assert words in text()

    def test_cs_20_the_page_says_which_read_concern_works(self):
        assert "change stream is `majority`, or none at all" in text()

    @pytest.mark.parametrize(
        "words",
        [
            "Store `page.continuation_token` after every page, even after an empty page.",
            "To receive every update of the token, call `read_changes` in a loop",
        ],
    )
    def test_cs_49_the_page_says_what_to_store_and_how_to_get_every_update(self, words):
        assert words in text()

    @pytest.mark.parametrize(
        "name",
        ["find", "aggregate", "distinct", "counts", "listDatabases", "listCollections", "listIndexes"],
    )
    def test_rr_26_the_page_names_what_is_retried(self, name):
        assert name in re.search(r"\*\*Retried\*\*: (.*?) - \*\*", text())[1]

    @pytest.mark.parametrize("name", ["getMore", "run_command", "run_cursor_command", "mapReduce"])
    def test_rr_26_the_page_names_what_is_not_retried(self, name):
        assert f"`{name}`" in re.search(r"\*\*Not retried\*\*: (.*?) - \*\*", text())[1]

    def test_rr_26_the_page_warns_of_retry_loops(self):
        assert "a loop that tries a read n times sends it up to 2n times" in text()

    @pytest.mark.parametrize("field", ["lsid", "$db", "$clusterTime", "$readPreference", "txnNumber"])
    def test_rc_05_the_page_says_which_fields_are_undefined(self, field):
        assert (
            f"`{field}`"
            in re.search(r"a field that the driver adds itself \((.*?)\), the behaviour is \*\*not", text())[
                1
            ]
        )

    def test_rc_17_the_page_says_what_happens_to_maxtimems(self):
        assert "the remaining time **overwrites** `maxTimeMS`" in text()

    def test_rc_24_the_page_says_that_the_options_are_for_getmore(self):
        assert "`comment` of `run_cursor_command` are **for `getMore` only**" in text()

    def test_rc_26_the_page_says_that_another_cursor_type_is_undefined(self):
        assert re.search(r"`cursor_type` has to match .* the behaviour is \*\*undefined\*\*", text())

    def test_rc_28_the_page_says_that_two_timeouts_are_refused(self):
        assert "A command with both `timeout_ms` and `max_time_ms` is refused" in text()
