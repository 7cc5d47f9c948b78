"""Checks documents: changelogs name the version, and all files and make targets that documents name exist."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = sorted(
    path.parent
    for pattern in (
        "pyproject.toml",
        "*/pyproject.toml",
        "tools/emulators/*/pyproject.toml",
        "providers/*/pyproject.toml",
    )
    for path in ROOT.glob(pattern)
    if path.parent != ROOT / "tools"  # it is never published
)
ENTRY = re.compile(r"^## \[(?P<version>[^\]]+)\] - (?P<date>.+)$", re.MULTILINE)


def project_of(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def name_of(folder):
    return project_of(folder)["name"]


@pytest.mark.parametrize("folder", PROJECTS, ids=name_of)
class TestChangelog:
    def test_the_newest_entry_is_of_the_version(self, folder):
        text = (folder / "CHANGELOG.md").read_text(encoding="utf-8")
        assert text.startswith(f"# Changelog of {name_of(folder)}\n")
        newest = ENTRY.search(text)
        assert newest is not None, "write: ## [VERSION] - DATE"
        assert newest["version"] == project_of(folder)["version"]
        assert re.fullmatch(r"Unreleased|\d{4}-\d\d-\d\d", newest["date"])


def test_the_site_shows_the_changelog_of_every_distribution():
    page = (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8")
    folders = [folder.relative_to(ROOT) for folder in PROJECTS]
    assert sorted(f'"{(folder / "CHANGELOG.md").as_posix()}"' for folder in folders) == sorted(
        line.removeprefix("--8<-- ") for line in page.splitlines() if line.startswith("--8<-- ")
    )
