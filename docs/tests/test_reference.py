"""Generated pages are what their generators make now; links lead somewhere."""

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1]
GENERATE = runpy.run_path(str(DOCS / "generate.py"))
AGAIN = "run: python docs/generate.py"
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def read(name):
    return (DOCS / name).read_text(encoding="utf-8")


def shape(transcript):
    """Commands in order, each with how its lines begin: not times, ids or what depends on them."""
    found = []
    for block in re.findall(r"^```\n(.*?)^```$", transcript, re.DOTALL | re.MULTILINE):
        command, *lines = block.splitlines()
        labels = {re.sub(r"\d+", "N", re.match(r"\W*[\w.-]*", line)[0]) for line in lines if line.strip()}
        ends = [line for line in lines if line.startswith("(exit code")]
        found.append((command, labels, ends))
    return found


class TestGeneratedPages:
    def test_the_mutants_are_those_of_today(self):
        assert read("reference/mutants.md") == GENERATE["mutants_page"](), AGAIN

    def test_the_transcript_is_what_the_script_makes(self, tmp_path):
        """Same commands, same kinds of lines; times, ids and the order between partitions differ."""
        GENERATE["command_line_page"](tmp_path / "page.md")
        made, kept = (tmp_path / "page.md").read_text(encoding="utf-8"), read("reference/command-line.md")
        assert shape(made) == shape(kept), AGAIN
        prose = re.compile(r"^```\n.*?^```$", re.DOTALL | re.MULTILINE)
        assert prose.sub("", made) == prose.sub("", kept), AGAIN

    @pytest.mark.parametrize("command", ["tail", "top", "partitions", "token inspect", "token check"])
    def test_the_transcript_shows_every_command(self, command):
        assert f"$ multiclouddb {command} " in read("reference/command-line.md")

    def test_the_transcript_shows_no_failure_but_the_one_it_is_about(self):
        kept = read("reference/command-line.md")
        assert "Traceback" not in kept
        assert re.findall(r"\(exit code (\d+)\)", kept) == ["6"]


class TestLinks:
    @pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
    def test_links_lead_to_files(self, page):
        links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
        assert [link for link in links if not (page.parent / link).exists()] == []
