"""Tests every page: its vocabulary, and the notice that it was generated."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1]
PAGES = sorted(DOCS.rglob("*.md"))


def name_of(page):
    return page.relative_to(DOCS).as_posix()


def text_of(page):
    return page.read_text(encoding="utf-8")


def is_generated(page):
    return "\n*Made by `python" in text_of(page) or "\nMade by `python" in text_of(page)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_speaks_of_the_product(page):
    found = re.findall(r"[Uu]ser [Ss]tory|\bUS8\b|\bFR-\d+|\bPlan \d+", text_of(page))
    assert found == []


@pytest.mark.parametrize("page", [page for page in PAGES if is_generated(page)], ids=name_of)
def test_a_generated_page_says_so_at_its_end(page):
    assert text_of(page).count("Made by `python") == 1
    assert text_of(page).rpartition("\n---\n\n")[2].startswith("*Made by `python")


def test_some_pages_are_generated():
    generated = {page.name for page in PAGES if is_generated(page)}
    assert {"us8.md", "mutants.md", "options.md", "databases.md", "benchmarks.md"} <= generated
    assert len(generated - {"peers.md"}) == 10  # peers.md is generated only if its benchmark was run
