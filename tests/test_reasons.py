"""Tests that errors have a reason wherever a program can act on one."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STORES_AND_SINKS = (
    "checkpoints/multiclouddb_checkpoints",
    "spark/pyspark_multiclouddb",
    "tables/mirror/multiclouddb_mirror",
    "tables/multiclouddb_tables",
    "tables/postgres/multiclouddb_postgres",
    "tables/verify/multiclouddb_verify",
)
MAKERS = ("ErrorDetail", "FaultRule", "_detail")


def made(folder):
    """Return the place and the words of each error of these categories that is made in a folder."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in MAKERS:
                categories = {each.attr for each in node.args if isinstance(each, ast.Attribute)}
                if categories & {"CONFLICT", "UNSUPPORTED_CAPABILITY"}:
                    yield f"{path.name}:{node.lineno}", {each.arg for each in node.keywords}


@pytest.mark.parametrize("folder", STORES_AND_SINKS)
def test_each_conflict_and_each_refusal_of_a_store_or_a_sink_has_a_reason(folder):
    found = dict(made(folder))
    assert found
    assert [where for where, words in found.items() if "reason" not in words] == []


def test_the_kit_checks_categories_with_their_reasons():
    suite = ROOT / "conformance/multiclouddb_conformance/us8"
    texts = {path.name: path.read_text(encoding="utf-8") for path in suite.glob("*.py")}
    assert [name for name, text in texts.items() if "caught.value.category ==" in text] == []
