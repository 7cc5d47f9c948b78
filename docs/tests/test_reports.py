"""Tests that the table of public reports is whole, and that the tests which it names exist."""

import ast
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATE = runpy.run_path(str(ROOT / "docs" / "generate.py"))
DATA = GENERATE["reports_data"]()
ENTRIES = [(area, entry) for area, entries in DATA.items() if area != "page" for entry in entries]
FOLDERS = {
    "checkpoints": ROOT / "checkpoints",
    "spark": ROOT / "spark",
    "tables": ROOT / "tables",
    "verify": ROOT / "tables" / "verify",
    "mirror": ROOT / "tables" / "mirror",
    "postgres": ROOT / "tables" / "postgres",
}
JUDGED = ("right", "silent", "wrong", "theirs")


def names_in(node, path=()):
    found = {"::".join(path)}
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.ClassDef | ast.FunctionDef):
            found |= names_in(each, (*path, each.name))
    return found


def test_every_entry_is_whole_and_judged():
    needed = {"source", "about", "here", "judged", "round"}
    assert [entry for _, entry in ENTRIES if entry.keys() - {"test"} != needed] == []
    assert {entry["judged"] for _, entry in ENTRIES} <= set(JUDGED)
    assert [entry["source"] for _, entry in ENTRIES if "|" in "".join(map(str, entry.values()))] == []


def test_what_was_wrong_has_a_test():
    assert [e["source"] for _, e in ENTRIES if e["judged"] in ("silent", "wrong") and "test" not in e] == []


def test_every_named_test_exists():
    missing = []
    for area, entry in ENTRIES:
        if "test" in entry:
            file, _, name = entry["test"].partition("::")
            place = FOLDERS.get(area, ROOT / "providers" / area) / "tests" / file
            if not place.exists() or name not in names_in(ast.parse(place.read_text(encoding="utf-8"))):
                missing.append(entry["test"])
    assert missing == []


def test_every_entry_is_on_the_page():
    page = GENERATE["reports_page"]()
    assert [entry["source"] for _, entry in ENTRIES if f"| {entry['source']} |" not in page] == []
