"""Tests that every row of MongoDB's specifications has a test or a reason for having none."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MADE = runpy.run_path(str(ROOT / "docs" / "mongodb_rows.py"))
ROWS = {row.id: row for row in MADE["rows"](MADE["data"]())}
TEXT = " ".join(MADE["page"]().split())


def test_each_has_a_test_or_a_reason_and_is_on_the_page_once():
    assert list(ROWS) == [f"{name}-{n}" for name, top in MADE["ROWS"].items() for n in range(1, top + 1)]
    assert len(ROWS) == 52 + 28 + 29
    assert re.findall(r"^\| ([A-Z]{2}-\d+) \|", MADE["page"](), re.MULTILINE) == list(ROWS)


def test_the_page_names_the_driver_that_its_tests_run_with():
    names = tomllib.loads((ROOT / "tests" / "private_names.toml").read_text(encoding="utf-8"))
    oldest, newest = names["pymongo"]["seen"]
    assert f"the driver that this provider uses; its tests run with {oldest} and {newest}." in TEXT


# What the specifications want a driver to document; the page has it.
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
    assert [words for words in WORDS[row] if not re.search(words, TEXT)] == []
