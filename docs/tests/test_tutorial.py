"""Tests the tutorial's code, taken from the page and run unchanged."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorial" / "write-a-provider.md"
BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)


INSTALLS = re.compile(r"^pip install .*$", re.MULTILINE)


def files_of(page):
    """Return the files on a page by name; blocks of the same file are joined."""
    found = {}
    for name, block in BLOCK.findall(page):
        found[name] = f"{found[name]}\n\n{block}" if name in found else block
    return found


FILES = files_of(PAGE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Provide the reader's files at the end of the tutorial."""
    made = tmp_path_factory.mktemp("tutorial")
    for name, text in FILES.items():
        (made / name).write_text(text, encoding="utf-8")
    return made


def run(folder, *words):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(folder)},
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


class TestTutorial:
    def test_the_suite_is_green_and_skips_nothing(self, folder):
        plugins = ("-p", "no:cacheprovider", "-p", "no:xdist")
        ran = run(
            folder, "-m", "pytest", "-q", *plugins, "-W", "error", "--junitxml=ran.xml", "test_listfeed.py"
        )
        assert ran.returncode == 0, ran.stdout[-4000:]
        (suite,) = ElementTree.parse(folder / "ran.xml").getroot().iter("testsuite")
        counts = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
        assert counts == {"tests": counts["tests"], "failures": 0, "errors": 0, "skipped": 0}
        assert counts["tests"] > 200  # as described on the page
        assert "xfailed" not in ran.stdout
        assert "deselected, because the harness lacks what they need" in ran.stdout

    def test_step_9_works_as_written_in_a_new_environment(self, folder, wheels, tmp_path):
        (command,) = INSTALLS.findall(PAGE.read_text(encoding="utf-8").partition("## 9. ")[2])
        venv.create(tmp_path / "new", with_pip=True)
        programs = tmp_path / "new" / "bin"
        for words in ([programs / "pip", *command.split()[1:]], [programs / "python", "try_it.py"]):
            ran = subprocess.run(
                words, cwd=folder, capture_output=True, text=True, check=False,
                env={"PATH": os.environ["PATH"], "HOME": str(Path.home()), "PIP_FIND_LINKS": str(wheels)},
            )  # fmt: skip
            assert ran.returncode == 0, ran.stderr
        assert ran.stdout == FILES["try_it.txt"]

    def test_what_the_page_calls_wrong_turns_tests_red(self, folder, tmp_path):
        """The tutorial asks the reader to plant these two defects; with either defect, tests must fail."""
        for right, wrong in (
            ("first = len(log)", "first = log.kept_from"),
            ("return records[count - 1][0] + 1", "return records[-1][0] + 1"),
        ):
            assert FILES["listfeed.py"].count(right) == 1
            for name, text in FILES.items():
                (tmp_path / name).write_text(text.replace(right, wrong), encoding="utf-8")
            options = ("-q", "-x", "-p", "no:cacheprovider", "-k", "TestNow or TestCheckpoint")
            ran = run(tmp_path, "-m", "pytest", *options, "test_listfeed.py")
            assert ran.returncode == 1, ran.stdout[-4000:]
