"""Runs the `multiclouddb` command in a separate process, until it ends or is killed and restarted.

Every process is a fork of a helper that has imported the command; see `command_process.py`.

The command must be installed: `pip install "multiclouddb[cli]"`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from types import TracebackType
from typing import Any, Self

from multiclouddb_api import ChangeEvent, event_from_json
from multiclouddb_conformance.loss.life import plain_key
from multiclouddb_conformance.waiting import SOON, wait_until
from testing.command_process import CommandProcess

__all__ = ["Tail", "Writer", "apart_from_silence", "assert_refused", "facts", "follow", "run", "said"]


def run(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command until it ends.

    Args:
        words: The arguments after `multiclouddb`.
        environment: Additional environment variables for the command.
    """
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = CommandProcess([*map(str, words)], stdout, stderr, {**os.environ, **environment})
        status = process.wait(SOON)
        printed = [(file.seek(0), file.read())[1] for file in (stdout, stderr)]
    return subprocess.CompletedProcess([*map(str, words)], status, *printed)


def said(*words: object) -> str:
    """Return the output of a command that must succeed; it may only warn that it ignores `--from`."""
    ran = run(*words)
    ignored = "warning: --from is ignored,"
    printed = [line for line in ran.stderr.splitlines() if not line.startswith(ignored)]
    assert (ran.returncode, printed) == (0, [])
    return ran.stdout


def facts(*words: object) -> dict[str, str]:
    """Return the two-column lines at the start of a command's output, as a mapping."""
    lines = said(*words).partition("\n\n")[0].splitlines()
    return dict(re.split(" {2,}", line, maxsplit=1) for line in lines)


def assert_refused(
    ran: subprocess.CompletedProcess[str], code: int, category: str, *words: str, hidden: Iterable[str] = ()
) -> None:
    """Assert that a command printed only one line, which says what to do.

    Args:
        ran: The command, which has ended.
        code: The expected exit code.
        category: The expected start of the line.
        words: The texts that the line must contain.
        hidden: Secrets that must not appear anywhere, not even in a warning.
    """
    assert (ran.returncode, ran.stdout) == (code, ""), ran.stderr
    (line,) = [line for line in ran.stderr.splitlines() if not line.startswith("warning: ")]
    assert line.startswith(f"error: [{category}] ")
    assert [word for word in words if word not in line] == []
    assert [secret for secret in hidden if secret in ran.stderr] == []


def apart_from_silence(stderr: str) -> str:
    """Return what a command printed on stderr, without the reports about a slow service.

    On a busy machine, a command can report a slow service although the service works.

    Args:
        stderr: The output.
    """
    silence = ("warning: the service has not answered yet;", "notice: reads work again after ")
    return "".join(line for line in stderr.splitlines(keepends=True) if not line.startswith(silence))


class Tail:
    """Runs `multiclouddb tail --json` with a checkpoint, kills it, and starts it again.

    Args:
        words: The arguments after `multiclouddb tail`, including `--checkpoint`.

    Attributes:
        checkpoint: The checkpoint file.
        seen: Every event that the command printed.
    """

    def __init__(self, *words: object) -> None:
        self._words = ("tail", *map(str, words), "--exact")
        self.checkpoint = Path(self._words[self._words.index("--checkpoint") + 1])
        self.seen: list[ChangeEvent] = []

    @contextmanager
    def running(self) -> Iterator[Queue[ChangeEvent]]:
        """Run a process until it is killed with SIGKILL.

        The events arrive in a queue as the process prints them.
        """
        events: Queue[ChangeEvent] = Queue()
        ends = os.pipe()
        with open(ends[0]) as lines, tempfile.TemporaryFile("w+") as stderr:
            with open(ends[1], "w") as stdout:
                process = CommandProcess(self._words, stdout, stderr, os.environ)
            reader = threading.Thread(target=self._read, args=(lines, events), name="reader")
            reader.start()
            try:
                yield events
            finally:
                process.kill()
                reader.join(SOON)
                status = process.wait(SOON)
            stderr.seek(0)
            complaint = stderr.read()
        assert (status, re.findall("^error.*", complaint, re.MULTILINE)) == (-signal.SIGKILL, [])

    def _read(self, lines: Iterable[str], events: Queue[ChangeEvent]) -> None:
        for line in lines:
            if line.endswith("\n"):  # the kill may have cut off the last line
                self.seen.append(event_from_json(line))
                events.put(self.seen[-1])

    def run_until_saved(self) -> None:
        """Run a process, and kill it after it has saved a position."""
        before = self._saved()
        with self.running():
            wait_until(lambda: self._saved() != before)

    def _saved(self) -> int | None:
        """Return a value that changes whenever the file is saved."""
        return self.checkpoint.stat().st_mtime_ns if self.checkpoint.exists() else None

    def finish(self) -> None:
        """Run a process until no more events arrive."""
        self.seen += map(event_from_json, said(*self._words, "--until-idle").splitlines())

    def keys(self) -> list[Hashable]:
        """Return the key of each printed event. If an event was printed twice, its key is returned once."""
        return [
            key for _, key in dict.fromkeys((event.event_id, plain_key(event.key)) for event in self.seen)
        ]


class Writer:
    """Writes new documents in a thread until the `with` block ends.

    Args:
        put: A function that writes the document of a key.
        pause: The number of seconds between two writes.

    Attributes:
        written: The written keys, in order.
        between: A lock that is held during each write.
    """

    def __init__(self, put: Callable[[str], object], pause: float) -> None:
        self.written: list[str] = []
        self.between = threading.Lock()
        self._put, self._pause, self._over = put, pause, threading.Event()
        self._thread = threading.Thread(target=self._write, name="writer")

    def _write(self) -> None:
        while not self._over.wait(self._pause):
            with self.between:
                key = f"k-{len(self.written):05}"
                self._put(key)
                self.written.append(key)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(SOON)


def follow(tail: Tail, writer: Writer, lives: Sequence[tuple[Callable[[], Any] | None, int]]) -> None:
    """Run a `tail` command that prints the changes of a writer.

    Kill the command several times; its last process ends by itself.

    Args:
        tail: The command, which starts at `now` or at a checkpoint.
        writer: The writer, which writes until the last process starts.
        lives: Two values for each process: an action to perform between two writes (or None), and the number
            of events after which the process is killed.
    """
    tail.run_until_saved()
    with writer:
        for trouble, events in lives:
            with tail.running() as came:
                came.get(timeout=SOON)
                if trouble is not None:
                    with writer.between:
                        trouble()
                for _ in range(events):
                    came.get(timeout=SOON)
    tail.finish()
