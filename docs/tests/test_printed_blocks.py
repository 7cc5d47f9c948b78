"""Tests that every block of the README and the landing page works as printed, with only the wheels installed.

The blocks run in page order, in one folder; blocks that follow a service run twice. Each block runs in an
environment with the packages that the last `pip install` above the block installs. The home folder is empty,
and the services are local.
"""

import os
import re
import signal
import subprocess
import textwrap
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import attrs
import pytest

from multiclouddb_conformance.waiting import SOON, wait_until
from testing.spark_output import complaints_in

from .environments import Wheels, environment
from .local_services import SERVICES
from .page import ROOT

pytestmark = pytest.mark.xdist_group("jvm apart")

PAGES = ["README.md", "docs/index.md"]
FENCE = re.compile(r"^( *)```(\w*)[^\n`]*\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
INSTALL = re.compile(r'pip install "?(multiclouddb(?:\[[a-z,]+\])?)(?![\w\[-])')
SYSTEM = "/usr/local/bin:/usr/bin:/bin"
# Long enough for Spark on a busy machine.
LONG = 600
# Spark waits ten seconds for a process of Python, too short there; a person would start the program again.
LATE, TRIES = "Python worker failed to connect back", 5


@attrs.frozen
class Block:
    """A program or commands, the requirement that they need, and the output that the page shows."""

    language: str
    code: str
    requirement: str
    output: str | None


def blocks_of(text):
    """Return the blocks that run, in page order."""
    found, end = [], None
    for fence in FENCE.finditer(text):
        language, code = fence[2], textwrap.dedent(fence[3])
        assert language in ("python", "sh", "text"), language
        if language == "text" and end is not None and not text[end : fence.start()].strip():
            found[-1] = attrs.evolve(found[-1], output=code)
        end = None
        if language != "text" and not code.startswith("pip install"):
            installed = INSTALL.findall(text[: fence.start()])
            found.append(Block(language, code, installed[-1], None))
            end = fence.end()
    return found


class Machine:
    """The machine of a person who reads a page."""

    def __init__(self, wheels, folder, stack):
        self._wheels, self._folder, self._stack = wheels, folder, stack
        self._environments, self._services = {}, {}
        self.work = folder / "work"
        for each in ("home", "work", "environments"):
            (folder / each).mkdir()

    def run(self, block):
        """Return the output of a block that ends by itself and prints nothing else."""
        for _ in range(TRIES):
            began = self._begin(block, {}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            printed, complaint = began.communicate(timeout=LONG)
            if LATE not in complaint:
                break
        complaint = complaints_in(complaint)
        assert (began.returncode, complaint) == (0, ""), f"{block.code}\n{printed}\n{complaint}"
        return printed

    def service(self, block):
        """Return the service that a block names, or None."""
        for scheme, start in SERVICES.items():
            if scheme in block.code:
                if scheme not in self._services:
                    self._services[scheme] = self._stack.enter_context(start(self._folder))
                return self._services[scheme]
        return None

    @contextmanager
    def following(self, block, service):
        """Run a block, put the lines that it prints into a queue, and finally stop it with Ctrl-C."""
        code = block.code
        for named, here in service.names.items():
            assert named in code
            code = code.replace(named, here)
        log = self._folder / "stderr"
        with log.open("w") as complaints:
            block = attrs.evolve(block, code=code)
            began = self._begin(block, service.environment, stdout=subprocess.PIPE, stderr=complaints)
            lines = Queue()
            reader = Thread(target=lambda: [lines.put(line) for line in began.stdout])
            reader.start()
            try:
                yield began, lines
            finally:
                os.killpg(began.pid, signal.SIGINT)
                status = began.wait(SOON)
                reader.join(SOON)
                began.stdout.close()
        told = log.read_text()
        # Python's own status is 1 if the signal arrives while a file is being opened.
        assert status in (0, 130, -signal.SIGINT) or told.endswith("\nKeyboardInterrupt\n"), told

    def _begin(self, block, variables, **streams):
        programs = self._programs(block.requirement)
        if block.language == "python":
            (self.work / "program.py").write_text(block.code)
            command = [programs / "python", "-W", "error", "program.py"]
        else:
            command = ["sh", "-euc", block.code]
        clean = {
            "HOME": str(self._folder / "home"),
            "PATH": f"{programs}:{SYSTEM}",
            "PYTHONUNBUFFERED": "1",  # as on a terminal, where every line is printed at once
            "SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
            **variables,
        }
        # A shell's background job ignores Ctrl-C, and so would what it starts.
        command = ["env", "--default-signal=INT", *command]
        return subprocess.Popen(
            command, cwd=self.work, env=clean, text=True, start_new_session=True, **streams
        )

    def _programs(self, requirement):
        if requirement not in self._environments:
            place = self._folder / "environments" / str(len(self._environments))
            self._environments[requirement] = environment(self._wheels, requirement, place)
        return self._environments[requirement]


@pytest.fixture
def machine(wheels, tmp_path):
    with ExitStack() as stack:
        yield Machine(Wheels(wheels), tmp_path, stack)


def line_with(lines, text):
    """Wait for a line that contains the text; return the lines up to it."""
    found = []
    while not found or text not in found[-1]:
        try:
            found.append(lines.get(timeout=SOON))
        except Empty:
            raise AssertionError(f"{text!r} is not in {found}") from None
    return found


def follow(machine, block, service, number):
    """Run a block that follows a service."""
    checkpoint = machine.work / re.search(r"checkpoint[ =]\"?([\w.]+)", block.code)[1]
    with machine.following(block, service) as (began, lines):
        if number:
            line_with(lines, f"between-{number - 1}")
        wait_until(lambda: checkpoint.exists() or began.poll() is not None)
        service.put(f"during-{number}")
        line_with(lines, f"during-{number}")
    service.put(f"between-{number}")


# The first run by each user fetches about 1.2 GB of packages.
@pytest.mark.timeout(3 * LONG)
@pytest.mark.parametrize("page", ["README.md", pytest.param("docs/index.md", marks=pytest.mark.soak)])
def test_every_block_works_as_printed(page, machine):
    blocks = blocks_of((ROOT / page).read_text(encoding="utf-8"))
    assert blocks
    for block in blocks:
        service = machine.service(block)
        if service is not None:
            for number in range(2):
                follow(machine, block, service, number)
            continue
        printed = machine.run(block)
        assert block.output is None or printed == block.output
        assert printed


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_a_program_for_every_database(page):
    """Check that the regular expressions still find the blocks."""
    blocks = blocks_of((ROOT / page).read_text(encoding="utf-8"))
    programs = "".join(block.code for block in blocks if block.language == "python")
    assert [scheme for scheme in (*SERVICES, "embedded://") if scheme not in programs] == []


def test_an_environment_has_the_wheels_and_not_the_clone(machine, tmp_path):
    program = "import multiclouddb_api, os; print(multiclouddb_api.__file__, os.environ['HOME'], sep='\\n')"
    module, home = machine.run(Block("python", program, "multiclouddb", None)).splitlines()
    assert Path(module).is_relative_to(tmp_path / "environments")
    assert Path(home).is_relative_to(tmp_path)
    with pytest.raises(AssertionError, match="No module named 'multiclouddb_tables'"):
        machine.run(Block("python", "import multiclouddb_tables", "multiclouddb", None))
