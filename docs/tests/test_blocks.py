"""Tests that the code on the pages runs unchanged, and prints the output that is written below it.

test_printed_blocks.py tests the README and the landing page.

The blocks of a page run in order, in one process, in an empty folder, with warnings as errors:

    ```python                      runs
    ```python title="worker.py"    is written to that file before the next block runs
                                   (in tabs, the first block with this title)
    ```text                        directly after a block that runs: exactly what that block printed;
                                   `…` stands for anything within a line
"""

import os
import re
import signal
import textwrap

import attrs
import pytest

from .page import ROOT, run_blocks, run_with

# On the first page, several blocks form one file (see test_tutorial.py). The second page runs from wheels.
ELSEWHERE = (ROOT / "docs/tutorial/write-a-provider.md", ROOT / "docs/index.md")
# These pages run in the Spark session of the tests.
ONE_SESSION = (ROOT / "docs/jobs/in-step-with-spark.md", ROOT / "docs/jobs/prove-and-repair.md")
# `make test` runs this page with fewer rows, and `make soak` as it stands.
LARGE = ROOT / "docs/jobs/big-table.md"
SMALLER = {"100_000": "2_000", "10_000": "200", "100000": "2000"}
FENCE = re.compile(r"^( *)```(\w*)([^\n`]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
# Every other page starts a JVM in a process of its own. The group of the session takes longest as it is.
JVM_APART = pytest.mark.xdist_group("jvm apart")
JVM = pytest.mark.xdist_group("jvm")
TITLE = re.compile(r'title="([^"]+)"')


@attrs.frozen
class Block:
    """A block that is run or, if it names a file, written."""

    line: int
    file: str | None
    code: str
    output: str | None = None


def blocks_of(text):
    """Return the blocks of a page that are run or written, in order."""
    found, end = [], None
    for fence in FENCE.finditer(text):
        _, language, title, code = fence.groups()
        code = textwrap.dedent(code)
        file = TITLE.search(title)
        if language == "python":
            line = text.count("\n", 0, fence.start(4))
            if fence[1] and file and any(block.file == file[1] for block in found):
                continue
            found.append(Block(line, file[1] if file else None, code))
        elif language == "text" and found and end is not None and not text[end : fence.start()].strip():
            found[-1] = attrs.evolve(found[-1], output=code)
        end = fence.end() if language == "python" and not file else None
    return found


def matches(said, printed):
    """Return True if the output matches the page."""
    pattern = re.escape(said).replace(re.escape("…"), "[^\n]*")
    return re.fullmatch(pattern, printed) is not None


def pages():
    """Return every page with a block that runs, with the group of those that start Spark."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        blocks = blocks_of(page.read_text(encoding="utf-8"))
        if blocks and page not in ELSEWHERE:
            starts = any("pyspark_multiclouddb" in block.code for block in blocks)
            marks = [JVM if page in ONE_SESSION else JVM_APART] if starts else []
            name = str(page.relative_to(ROOT))
            if page == LARGE:
                yield pytest.param(page, blocks, id=f"whole {name}", marks=[*marks, pytest.mark.soak])
                blocks = [smaller(block) for block in blocks]
            yield pytest.param(page, blocks, id=name, marks=marks)


def smaller(block):
    code, output = block.code, block.output
    for many, few in SMALLER.items():
        code, output = code.replace(many, few), output and output.replace(many, few)
    return attrs.evolve(block, code=code, output=output)


PAGES = list(pages())


@pytest.mark.parametrize(("page", "blocks"), PAGES)
def test_a_page_prints_what_it_says(page, blocks, tmp_path, request, monkeypatch):
    running = [block for block in blocks if block.file is None]
    steps = [(block.line, block.file, block.code) for block in blocks]
    if page in ONE_SESSION:
        monkeypatch.setattr("sys.argv", [])
        # The page is the only writer; each round of `verify` would wait five seconds for another one.
        monkeypatch.setattr("multiclouddb_embedded.feed.EmbeddedFeed.visible_after", lambda feed: 0.02)
        found = run_with(request.getfixturevalue("spark"), page, steps, tmp_path)
    else:
        found = run_blocks(page, steps, tmp_path)
    for block, printed in zip(running, found, strict=True):
        if block.output is not None and not matches(block.output, printed):
            assert printed == block.output, f"{page}, line {block.line}"


def test_pages_have_blocks():
    """Check that the regular expression still finds the blocks."""
    found = {page.id: page.values[1] for page in PAGES}
    assert {"docs/jobs/big-table.md", "docs/get-started.md"} <= found.keys()


class GivenUp(BaseException):
    """Ends a test, as a time limit does."""


def test_a_page_that_is_given_up_leaves_the_next_one_its_own_answer(monkeypatch, tmp_path):
    def give_up(*_):
        raise GivenUp

    before = signal.signal(signal.SIGUSR1, give_up)
    monkeypatch.setenv("TESTER", str(os.getpid()))
    code = "import os, signal\nos.kill(int(os.environ['TESTER']), signal.SIGUSR1)\nsignal.pause()"
    try:
        with pytest.raises(GivenUp):
            run_blocks("a page", [(1, None, code)], tmp_path)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert run_blocks("another page", [(1, None, "print(5)")], tmp_path) == ["5\n"]
