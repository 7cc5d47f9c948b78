"""The command line on MongoDB: real processes, killed and started again."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from multiclouddb_api import event_from_json

from .servers.failpoint import fail_command
from .workload import wait_until

PROGRAM = [sys.executable, "-m", "multiclouddb_cli"]
SOON = 60.0
SECRET = "a-hidden-key"


def run(*words, **environment):
    """What a command says and ends with."""
    return subprocess.run(
        [*PROGRAM, *map(str, words)], capture_output=True, text=True, check=False, timeout=SOON,
        env={**os.environ, **environment},
    )  # fmt: skip


def said(*words):
    ran = run(*words)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


@pytest.fixture
def orders(one, database):
    return one.client()[database].create_collection("orders")


@pytest.fixture
def where(one, orders):
    """Server and collection, as the commands are told."""
    return one.uri(), f"{orders.database.name}/orders"


def stamp(file):
    """Another one whenever the file is saved."""
    return file.stat().st_mtime_ns if file.exists() else None


class Tail:
    """`multiclouddb tail --json` until it is killed, and all that it ever printed."""

    def __init__(self, where, checkpoint, start="now"):
        self.words = [
            *PROGRAM, "tail", *where, "--from", start, "--checkpoint", str(checkpoint), "--json"
        ]  # fmt: skip
        self.checkpoint, self.seen = checkpoint, []

    @contextmanager
    def running(self):
        """A process for a while, ended by SIGKILL; its events come in a queue, as they are printed."""
        events = queue.Queue()
        process = subprocess.Popen(self.words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        def read():
            for line in process.stdout:
                if line.endswith("\n"):  # the last one may have been cut by the kill
                    self.seen.append(event_from_json(line))
                    events.put(self.seen[-1])

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield events
        finally:
            process.kill()
            reader.join(SOON)
            complaint, code = process.stderr.read(), process.wait()
            process.stdout.close()
            process.stderr.close()
        assert (code, re.findall("^error.*", complaint, re.MULTILINE)) == (-signal.SIGKILL, [])

    def finish(self):
        """Go on until there is nothing more."""
        ran = subprocess.run(
            [*self.words, "--until-idle"], capture_output=True, text=True, check=False, timeout=SOON
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        self.seen += map(event_from_json, ran.stdout.splitlines())

    def keys(self):
        return [event.key.components["_id"] for event in self.seen]


class Writer:
    """Writes new documents without a break, but for troubles that it is not the one to suffer from.

    Attributes:
        written: The keys, in order.
        between: Held while one is written.
    """

    def __init__(self, orders):
        self.orders, self.written, self.between = orders, [], threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def _write(self):
        while not self._over.wait(0.003):
            with self.between:
                key = f"o-{len(self.written):05}"
                self.orders.insert_one({"_id": key, "secret": "a document"})
                self.written.append(key)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(SOON)


def forget_cursors(server):
    server.client().admin.command({"killAllSessions": []})


def step_down(server):
    server.step_down()
    server.wait_primary()


class TestTail:
    def test_killed_again_and_again_it_misses_nothing(self, one, orders, where, tmp_path):
        """Seven times, under a writer: at once, in the middle of much, and in trouble."""
        orders.insert_one({"_id": "before"})
        tail = Tail(where, tmp_path / "position")
        with tail.running():
            wait_until(tail.checkpoint.exists)
        with Writer(orders) as writer:
            for trouble, events in (
                (None, 1), (None, 300), (forget_cursors, 100), (None, 7), (step_down, 100), (None, 1),
            ):  # fmt: skip
                with tail.running() as lines:
                    lines.get(timeout=SOON)
                    if trouble:
                        with writer.between:
                            trouble(one)
                    for _ in range(events):
                        lines.get(timeout=SOON)
        tail.finish()
        assert len(writer.written) > 500
        # The first time that each came, in order; what came twice is the same event.
        assert list(dict.fromkeys(tail.keys())) == writer.written
        assert len({(event.event_id, event.key) for event in tail.seen}) == len(writer.written)

    def test_killed_before_the_first_event_it_misses_nothing(self, orders, where, tmp_path):
        tail = Tail(where, tmp_path / "position")
        for _ in range(2):
            saved = stamp(tail.checkpoint)
            with tail.running():
                wait_until(lambda saved=saved: stamp(tail.checkpoint) != saved)
        keys = [f"o-{number}" for number in range(10)]
        orders.insert_many([{"_id": key} for key in keys])
        tail.finish()
        assert tail.keys() == keys

    def test_killed_while_it_prints_it_misses_nothing(self, orders, where, tmp_path):
        keys = [f"o-{number:04}" for number in range(3000)]
        orders.insert_many([{"_id": key} for key in keys])
        tail = Tail(where, tmp_path / "position", "beginning")
        for _ in range(2):
            with tail.running() as lines:
                lines.get(timeout=SOON)
        tail.finish()
        assert list(dict.fromkeys(tail.keys())) == keys

    def test_its_lines_have_whole_documents_and_types(self, orders, where):
        orders.insert_one({"_id": "o-1"})
        orders.update_one({"_id": "o-1"}, {"$set": {"total": 30}})
        orders.delete_one({"_id": "o-1"})
        lines = said("tail", *where, "--from", "beginning", "--until-idle").splitlines()
        assert [line.split()[1:3] for line in lines] == [
            [kind, '_id="o-1"'] for kind in ("CREATE", "UPDATE", "DELETE")
        ]
        assert lines[0].endswith('{"_id":"o-1"}')
        assert lines[2].endswith('_id="o-1"')

    def test_of_a_collection_that_is_dropped_says_so_and_ends(self, orders, where, tmp_path):
        kept = ("--checkpoint", tmp_path / "position")
        said("tail", *where, *kept, "--until-idle")
        orders.insert_one({"_id": "o-1"})
        orders.drop()
        ran = run("tail", *where, *kept)
        assert ran.returncode == 0
        assert '_id="o-1"' in ran.stdout
        assert re.findall(r"^notice: (\w+): ", ran.stderr, re.MULTILINE) == [
            "Dropped", "Invalidated", "FeedEnded",
        ]  # fmt: skip


class TestPartitions:
    def test_are_one(self, where):
        first, line = said("partitions", *where).splitlines()
        assert first == "1 partitions: 1 open, 0 closed"
        assert re.fullmatch(r"0  open  mongo:\S+", line)


class TestToken:
    @pytest.fixture
    def token(self, where, tmp_path):
        """Of `now`, before the first event, as an argument."""
        said("tail", *where, "--until-idle", "--checkpoint", tmp_path / "position")
        return f"@{tmp_path}/position"

    def test_of_now_resumes_before_the_first_event(self, orders, where, token):
        out = said("token", "check", where[0], token)
        assert re.search(r"^resumes +yes$", out, re.MULTILINE)
        assert re.search(r"^changes +none at present$", out, re.MULTILINE)
        orders.insert_one({"_id": "o-1", "secret": "a document"})
        out = said("token", "check", where[0], token)
        assert re.search(r"^changes +waiting$", out, re.MULTILINE)
        assert "a document" not in out

    def test_of_a_collection_that_was_made_anew_is_refused(self, orders, where, token):
        orders.drop()
        orders.database.create_collection("orders")
        ran = run("token", "check", where[0], token)
        assert ran.returncode == 3
        assert "recreated" in ran.stderr

    def test_is_inspected_without_a_server(self, where, token):
        out = said("token", "inspect", token)
        for line in ("provider +mongo", f"resource +{where[1]}", r"partitions +1 \(1 active\)"):
            assert re.search(f"^{line}$", out, re.MULTILINE)


class TestCapabilities:
    def test_are_told_without_a_server(self):
        out = said("capabilities", "mongodb://127.0.0.1:9")
        assert re.search("^CHANGE_FEED_BEGINNING +native$", out, re.MULTILINE)
        assert re.search("^mongo CHANGE_FEED: .*replica set", out, re.MULTILINE)


NOBODY = "mongodb://127.0.0.1:9/?serverSelectionTimeoutMS=300"
FAILURES = {
    "no such collection": ("URL", "main/no-such", 4, "NOT_FOUND", "no-such"),
    "no database": ("URL", "orders", 3, "INVALID_REQUEST", "database"),
    "a view": ("URL", "DATABASE/view", 3, "INVALID_REQUEST", "view"),
    "a collection of the server": ("URL", "admin/system.version", 3, "INVALID_REQUEST", "ordinary"),
    "nobody at the address": (NOBODY, "main/orders", 8, "TRANSIENT_FAILURE", "replicaSet"),
    "a wrong password": (f"mongodb://me:{SECRET}@HOST/", "main/orders", 5, "AUTHENTICATION_FAILED", "user"),
    "an unknown option": (
        f"mongodb://me:{SECRET}@HOST/?no=such", "main/orders", 3, "INVALID_REQUEST", "'no'",
    ),
    "a password that is not escaped": (
        f"mongodb://me:{SECRET}/x@HOST/", "main/orders", 3, "INVALID_REQUEST", "quote_plus",
    ),
}  # fmt: skip


class TestFailures:
    """One line on stderr, the exit code of its category, a way out, and no secret."""

    def check(self, ran, code, category, *words):
        assert (ran.returncode, ran.stdout) == (code, "")
        (line,) = ran.stderr.splitlines()
        assert line.startswith(f"error: [{category}] ")
        assert all(word in line for word in words)
        assert SECRET not in ran.stderr

    @pytest.mark.parametrize("case", FAILURES)
    def test_of_the_set_up(self, one, orders, case):
        orders.database.command({"create": "view", "viewOn": "orders", "pipeline": []})
        url, address, *expected = FAILURES[case]
        url = one.uri() if url == "URL" else url.replace("HOST", one.members[0])
        words = ("tail", url, address.replace("DATABASE", orders.database.name), "--until-idle")
        self.check(run(*words), *expected)
        if SECRET in url:
            assert SECRET not in run(*words, "--debug").stderr

    def test_in_the_middle_leaves_the_checkpoint_good(self, one, orders, where, tmp_path):
        url = one.uri(appName="refused")
        words = (
            "tail", url, where[1], "--from", "beginning", "--until-idle",
            "--checkpoint", tmp_path / "position", "--json",
        )  # fmt: skip
        orders.insert_one({"_id": "o-1"})
        said(*words)
        orders.insert_one({"_id": "o-2"})
        with fail_command(one, commands=["aggregate"], app_name="refused", times=None, errorCode=13):
            self.check(run(*words), 5, "AUTHORIZATION_FAILED", "MongoDB 13")
        (line,) = said(*words).splitlines()
        assert event_from_json(line).key.components == {"_id": "o-2"}
