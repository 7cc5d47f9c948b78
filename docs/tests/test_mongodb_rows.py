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


WORDS = {
    "CS-18: read_changes is preferred to a raw aggregate": [
        "Read a change stream with `read_changes`.*a raw aggregate is never resumed"
    ],
    "CS-20: the read concern": ["change stream is `majority`, or none at all"],
    "CS-49: what to store, and how to get every update of the token": [
        "Store `page.continuation_token` after every page, even after an empty page.",
        "To receive every update of the token, call `read_changes` in a loop",
    ],
    "RR-26: what is retried, and a warning of retry loops": [
        r"\*\*Retried\*\*: .*find.*aggregate.*distinct.*counts.*listDatabases.*listCollections.*listIndexes"
        r".* - \*\*Not retried\*\*: .*`getMore`.*`run_command`.*`run_cursor_command`.*`mapReduce`.* - \*\*",
        "a loop that tries a read n times sends it up to 2n times",
    ],
    "RC-5: which fields are undefined": [
        r"the driver adds itself \(.*`lsid`.*`\$db`.*`\$clusterTime`.*`\$readPreference`.*`txnNumber`"
        r".*\), the behaviour is \*\*not"
    ],
    "RC-17: what happens to maxTimeMS": [r"the remaining time \*\*overwrites\*\* `maxTimeMS`"],
    "RC-24: the options are for getMore": [
        r"`comment` of `run_cursor_command` are \*\*for `getMore` only\*\*"
    ],
    "RC-26: another cursor type": [r"`cursor_type` has to match .* the behaviour is \*\*undefined\*\*"],
    "RC-28: two timeouts": ["A command with both `timeout_ms` and `max_time_ms` is refused"],
}


@pytest.mark.parametrize("row", WORDS)
def test_a_row_that_asks_for_documentation_is_on_the_page(row):
    assert [words for words in WORDS[row] if not re.search(words, text())] == []
