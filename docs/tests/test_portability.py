"""Tests that docstrings name the numbered warnings about gaps between databases."""

import inspect
import re
from pathlib import Path

import pytest

import multiclouddb_api as api

DOCS = Path(__file__).resolve().parents[1]
PAGE = (DOCS / "configuration.md").read_text(encoding="utf-8")


def elements():
    """Yield what an application can use: the exports of the package and the methods of its classes."""
    for name in api.__all__:
        element = getattr(api, name)
        yield element
        if inspect.isclass(element):
            yield from (
                value
                for word, value in vars(element).items()
                if not word.startswith("_") and inspect.isfunction(value)
            )


def named():
    """Return the numbers of warnings that each section *Portability* names."""
    found = {}
    for element in elements():
        doc = inspect.getdoc(element) or ""
        if section := re.search(r"^Portability:\n((?:\n|[ ].*\n?)+)", doc, re.MULTILINE):
            text = " ".join(section[1].split())
            wanted = re.search(r"See warnings? ([\d, and]+) in docs/configuration\.md", text)
            found[element.__qualname__] = set(re.findall(r"\d+", wanted[1])) if wanted else set()
    return found


@pytest.mark.shows("Plan 7")
class TestDocstrings:
    def test_a_section_names_warnings_and_each_warning_is_named(self):
        warnings = set(re.findall(r"^### (\d+)\. ", PAGE, re.MULTILINE))
        assert len(warnings) == 24
        assert [name for name, numbers in named().items() if not numbers] == []
        assert set.union(*named().values()) == warnings
