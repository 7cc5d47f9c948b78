"""Tests that a run that is ended at any moment leaves nothing that `certify clean` does not remove."""

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from multiclouddb_certify import run as runs
from multiclouddb_certify.cosmos import native_account
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_cosmos_emulator import CosmosEmulator
from testing.provider_servers import server_module

from .conftest import NEIGHBOUR

ONLY = "TestCheckpoint or TestRecreated or TestSharing"
HOWS = ("kill", "ctrl-c", "term", "ctrl-c and kill", "kill the suite")
# How far the run gets before: it plans, it has created something, or so many tests have ended.
WHENS = ("plans", "creates", 1, 4)
# Of the twenty moments of each server, `make test` tries these on the scripted server of DynamoDB.
ALWAYS = [("kill", "plans"), ("kill", "creates"), ("ctrl-c", 1), ("kill the suite", 1)]


def of_dynamo(request):
    server = request.getfixturevalue("dynamo")
    yield server.url, lambda: [name for name in server.names() if name != NEIGHBOUR]


def of_local(request):
    with server_module("dynamo", "local").LocalDynamo() as server:
        url = f"dynamo://eu-west-1?endpoint_url={server.endpoint_url}"
        yield url, lambda: server.client().list_tables()["TableNames"]


def of_cosmos(request):
    with CosmosEmulator() as server:
        request.getfixturevalue("monkeypatch").setenv("AZURE_COSMOS_KEY", server.key)
        url = f"cosmos://{server.endpoint.split('/')[2]}?tls=false"
        with native_account(url) as native:
            yield url, lambda: [each["id"] for each in native.list_databases()]


def of_mongod(request):
    module = server_module("mongo", "mongod")
    with module.ReplicaSet(module.folder(), oplog_mb=1, auth=True) as server:
        native = server.client()
        yield server.uri(), lambda: {*native.list_database_names()} - {"admin", "config", "local"}


SERVERS = {"dynamo": of_dynamo, "local": of_local, "cosmos": of_cosmos, "mongod": of_mongod}


@pytest.fixture
def server(request):
    """Provide a URL, and what lists what runs have created there."""
    yield from SERVERS[request.param](request)


class Started:
    """A run in another process."""

    def __init__(self, url, names):
        self.names, self.said = names, Path("said")
        words = ["certify", url, "--account", "local", "--yes", "--report", "report", "--only", ONLY]
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores it
        with self.said.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "multiclouddb_cli", *words],
                stdout=output,
                stderr=output,
                preexec_fn=heed,
            )

    def wait(self, when, seconds):
        """Wait until the run has got so far, and for some seconds more."""

        def is_there():
            if isinstance(when, int):
                return self.said.read_text().count("\npassed ") >= when
            return when == "plans" or self.names()

        wait_until(lambda: self.process.poll() is not None or is_there(), 240)
        self.pause(seconds)

    def pause(self, seconds):
        until = time.monotonic() + seconds
        wait_until(lambda: self.process.poll() is not None or time.monotonic() > until)

    def end(self, how, seconds):
        if how.startswith("ctrl-c"):
            self.process.send_signal(signal.SIGINT)
        if how == "ctrl-c and kill":  # while it cleans up
            self.pause(seconds / 4)
        if how.endswith("kill"):
            self.process.kill()
        if how == "term":
            self.process.terminate()
        if how == "kill the suite":
            wait_until(lambda: self.process.poll() is not None or self.suite(), 60)
            for number in self.suite():
                os.kill(number, signal.SIGKILL)
        if how == "ctrl-c":
            self.press_again()
        self.process.wait(120)

    def press_again(self):
        """Python drops an interrupt that comes while a finalizer runs, such as one of the imports; then a
        person presses the keys once more.
        """
        until = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < until:
            self.pause(10)
            self.process.send_signal(signal.SIGINT)

    @staticmethod
    def suite():
        """Return the processes that work in the folder of a run."""
        cache, found = os.environ["XDG_CACHE_HOME"], []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                there = os.readlink(process / "cwd")
            except OSError:
                continue
            if there.startswith(cache):
                found.append(int(process.name))
        return found


MOMENTS = [
    pytest.param(
        name, how, when, id=f"{name}-{how}-{when}",
        marks=[] if name == "dynamo" and (how, when) in ALWAYS else [pytest.mark.soak],
    )
    for name in SERVERS
    for how, when in itertools.product(HOWS, WHENS)
]  # fmt: skip


@pytest.mark.parametrize(("server", "how", "when"), MOMENTS, indirect=["server"])
def test_ended_at_any_moment_it_leaves_nothing_that_clean_does_not_remove(server, run, how, when):
    """Only what is ended by SIGKILL leaves something to `clean`."""
    url, names = server
    seed = random.randrange(10**6)
    seconds = random.Random(seed).uniform(0, 1.5)
    started = Started(url, names)
    started.wait(when, seconds)
    started.end(how, seconds)
    said = f"{seed=}, {seconds=:.2f}\n{started.said.read_text()}"
    wait_until(lambda: not started.suite(), 60)
    if not how.endswith("kill"):
        assert not names(), said
    assert started.process.returncode, said
    ran = run("certify", "clean", url)
    assert ran.exit_code == 0, ran.output + said
    assert not names(), said


class _Finalizer:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_drops_ends_the_run(monkeypatch, tmp_path):
    """What is raised in a finalizer goes nowhere, and the run ignores every later signal."""
    taken, told = [], []
    monkeypatch.setattr(runs, "remove_run", lambda *_: ())

    def lines():
        yield "first"
        _Finalizer()
        yield "second"
        yield "third"

    log = tmp_path / "pytest.log"
    log.touch()
    child = SimpleNamespace(
        go=lambda: None, lines=lines(), interrupt=lambda: told.append("end"), kill=lambda: None, log=log
    )
    progress = SimpleNamespace(take=taken.append, at_the_bound=False, refusal=None, code=0, tests={})
    planned = SimpleNamespace(certification=None, url="", run=None, progress=progress, child=child)
    _, ended, _ = runs.certify(planned, lambda progress: None, tmp_path / "report.log")
    assert (ended, told, taken) == (runs.RunEnd.INTERRUPTED, ["end"], ["first", "second"])
