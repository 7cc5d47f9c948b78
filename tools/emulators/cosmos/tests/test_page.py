"""Tests that COVERAGE.md lists every public method of the SDK with its test, and the README."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest
from azure.cosmos import ContainerProxy, CosmosClient, DatabaseProxy, ScriptsProxy, UserProxy

from multiclouddb_cosmos_emulator.routing import OPERATIONS

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "README.md").read_text(encoding="utf-8")
COVERAGE = (TESTS.parent / "COVERAGE.md").read_text(encoding="utf-8")
TABLE = dict(re.findall(r"^\| `(\w+Proxy\.\w+|CosmosClient\.\w+)` \| (.+) \|$", COVERAGE, re.MULTILINE))


def has_test(name):
    """Return True if the test exists. The test's name consists of a file, an optional class, and a
    function."""
    file, *within = name.split("::")
    text = (TESTS / file).read_text(encoding="utf-8")
    if len(within) == 2:
        text = text.partition(f"\nclass {within[0]}:\n")[2].partition("\nclass ")[0]
    return f"def {within[-1]}(" in text


def test_every_public_method_of_the_sdk_is_in_the_table():
    methods = {
        f"{kind.__name__}.{name}"
        for kind in (CosmosClient, DatabaseProxy, ContainerProxy, UserProxy, ScriptsProxy)
        for name, _ in inspect.getmembers(kind, inspect.isroutine)
        if not name.startswith("_")
    }
    assert TABLE.keys() == methods


@pytest.mark.parametrize("name", [name for name, test in TABLE.items() if test.startswith("`")])
def test_a_method_that_is_offered_has_its_test(name):
    assert has_test(TABLE[name].strip("`"))


def test_every_method_that_is_not_offered_is_tried(request):
    text = (TESTS / "test_not_offered.py").read_text(encoding="utf-8")
    namespace = {"__name__": "looked at"}
    exec(compile(text, "test_not_offered.py", "exec"), namespace)
    missing = {name: test for name, test in TABLE.items() if test.startswith("not offered: 501")}
    assert missing.keys() == namespace["METHODS"].keys()
    for name, test in missing.items():
        assert f'"does not offer {namespace["what"](name.partition(".")[2])}"' in test


def test_every_line_about_faults_has_its_test():
    names = re.findall(r"^\| .+ \| `(test_\w+)` \|$", COVERAGE, re.MULTILINE)
    assert len(names) == 14
    text = (TESTS / "test_faults.py").read_text(encoding="utf-8")
    assert [name for name in names if f"def {name}(" not in text] == []


def test_the_page_says_why_tests_of_the_sdk_fail():
    expected = tomllib.loads((TESTS / "sdk/expected.toml").read_text(encoding="utf-8"))
    told = COVERAGE.partition("## The tests of azure-cosmos")[2].partition("\n## ")[0]
    assert f"runs {len(expected['files'])} of these files" in told
    reasons = {each["reason"]: str(len(each["tests"])) for each in expected["failures"]}
    assert dict(re.findall(r"^\| (.+\.) \| (\d+) \|$", told, re.MULTILINE)) == reasons


def test_the_operations_are_those_of_the_server():
    told = PAGE.partition("Operations are named ")[2].partition(".")[0]
    assert set(re.findall(r"`(\w+)`", told)) == set(OPERATIONS)


def test_the_commands_are_those_of_the_server(server):
    told = PAGE.partition("\nCommands are ")[2].partition(". An")[0]
    assert set(re.findall(r"`(\w+)`", told)) == server.by_name().keys()
