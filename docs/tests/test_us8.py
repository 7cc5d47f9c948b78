"""Tests that every promise names existing tests, and that every test of the suite is named."""

import ast
import runpy
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATE = runpy.run_path(str(ROOT / "docs" / "generate.py"))
SUITE = "conformance/multiclouddb_conformance/us8"
DATA = GENERATE["us8_data"]()
ENTRIES = {entry["id"]: entry for group in DATA.values() if isinstance(group, list) for entry in group}


@cache
def node_ids_in(file):
    """Return the node ids in a file, without running or importing the file."""

    def walk(body, prefix):
        for node in body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield f"{prefix}::{node.name}"
            elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                yield f"{prefix}::{node.name}"
                yield from walk(node.body, f"{prefix}::{node.name}")

    return frozenset([file, *walk(ast.parse((ROOT / file).read_text(encoding="utf-8")).body, file)])


def ids(entry):
    return list(GENERATE["node_ids"](entry["shown"]))


class TestEntries:
    @pytest.mark.parametrize("name", ENTRIES)
    def test_its_tests_exist(self, name):
        missing = [node for node in ids(ENTRIES[name]) if node not in node_ids_in(node.partition("::")[0])]
        assert missing == [], "renamed or gone: correct docs/us8.toml, then run: python docs/generate.py"

    @pytest.mark.parametrize("name", ENTRIES)
    def test_it_is_shown_by_something_and_by_nothing_twice(self, name):
        shown = ids(ENTRIES[name])
        assert shown
        assert len(shown) == len(set(shown))

    def test_all_requirements_and_promises_are_there(self):
        assert [name for name in ENTRIES if name.startswith("FR-")] == [f"FR-{n:03}" for n in range(65, 71)]
        assert [entry["id"] for entry in DATA["promises"]] == [f"Promise {n}" for n in range(1, 15)]
        assert len(ENTRIES) == sum(len(group) for group in DATA.values() if isinstance(group, list))

    def test_what_was_reconstructed_says_so(self):
        assert all(entry["origin"].startswith(("inferred", "quoted")) for entry in DATA["specification"])


class TestSuite:
    def test_every_test_of_the_suite_shows_something(self):
        files = [path.relative_to(ROOT) for path in sorted((ROOT / SUITE).glob("*.py"))]
        suite = {node for file in files for node in node_ids_in(file.as_posix()) if "::test_" in node}
        named = {node for entry in ENTRIES.values() for node in ids(entry)}
        assert sorted(suite - named) == [], "name them in docs/us8.toml, then run: python docs/generate.py"
        assert len(suite) > 130

    @pytest.mark.parametrize("group", ["specification", "plan", "promises", "further"])
    def test_every_group_has_its_place_on_the_page(self, group):
        assert DATA["page"].count(f"<!-- {group} -->") == 1

    def test_the_page_says_how_to_store_tokens_and_what_is_ordered(self):
        page = " ".join(DATA["page"].split())
        for words in (
            "never in a `varchar(255)` or an HTTP header",
            "## Order, by scope",
            "## Logical and physical partitions",
            "`EntireCollection()` |",
            "`PhysicalPartition(id)` |",
            "`LogicalPartition(key)` |",
        ):
            assert words in page
