"""Tests that every promise is shown by a test, and that no test shows what is not promised."""

import runpy
from pathlib import Path

GENERATE = runpy.run_path(str(Path(__file__).resolve().parents[1] / "generate.py"))
DATA = GENERATE["us8_data"]()


def test_every_promise_is_shown_and_every_mark_is_of_a_promise():
    promised = [entry["id"] for group in DATA.values() if isinstance(group, list) for entry in group]
    assert sorted(promised) == sorted(GENERATE["shown"]())


def test_every_group_is_on_the_page():
    groups = [name for name, group in DATA.items() if isinstance(group, list)]
    assert [name for name in groups if DATA["page"].count(f"<!-- {name} -->") != 1] == []
