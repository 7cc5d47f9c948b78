"""Runs each `multiclouddb` command in its own process, without importing everything again.

One helper process imports the command, and the SDK of each database that a command names. Then the helper
forks a process for each command. This saves time, because the imports take longer than most commands. The
helper has only one thread and no connection to a server, so a forked process inherits nothing that is in use.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pkgutil import iter_modules
from typing import IO, Any, Final

from multiclouddb_api import MulticloudDbError
from multiclouddb_api.registry import load_plugin
from multiclouddb_conformance.waiting import SOON

__all__ = ["CommandProcess"]

_COMMAND: Final = "multiclouddb_cli"
_HELPER: Final = f"from {__name__} import _serve; _serve()"
_helpers: Final[dict[int, socket.socket]] = {}


class CommandProcess:
    """A command that is running or has ended."""

    def __init__(
        self, words: Sequence[str], stdout: IO[Any], stderr: IO[Any], environment: Mapping[str, str]
    ) -> None:
        self._answers, theirs = socket.socketpair()
        with theirs:
            asked = {"words": list(words), "environment": dict(environment), "folder": os.getcwd()}
            with self._answers.makefile("w", encoding="utf-8") as line:
                # The files are sent first, because the helper reads the line from one of them, a socket.
                files = [theirs.fileno(), stdout.fileno(), stderr.fileno()]
                socket.send_fds(_helper(), [b"+"], files)
                line.write(json.dumps(asked) + "\n")
        self._answers.settimeout(SOON)  # the first command waits for the helper's imports
        self._lines = self._answers.makefile("r", encoding="utf-8")
        self.pid = int(self._lines.readline())

    def kill(self) -> None:
        """Kill the command with SIGKILL if it is still running."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        """Wait until the command has ended."""
        self._answers.settimeout(timeout)
        try:
            status = int(self._lines.readline())
        except TimeoutError:
            self.kill()
            raise
        finally:
            self._lines.close()
            self._answers.close()
        return status


def _helper() -> socket.socket:
    """Return the connection to this process's helper; the first command starts the helper."""
    found = _helpers.get(os.getpid())
    if found is None:
        found, theirs = socket.socketpair()
        with theirs:
            helper = subprocess.Popen([sys.executable, "-c", _HELPER], stdin=theirs.fileno())
        _helpers[os.getpid()] = found

        def end() -> None:
            found.close()
            helper.wait()

        atexit.register(end)
    return found


def _serve() -> None:
    """Fork a process for each command that the parent process requests, until the parent process ends."""
    for module in iter_modules(import_module(_COMMAND).__path__):
        if not module.name.startswith("__"):
            import_module(f"{_COMMAND}.{module.name}")
    # Typer imports most of its modules only when a command runs.
    with suppress(SystemExit), redirect_stdout(io.StringIO()):
        import_module(f"{_COMMAND}.main").app(["tail", "--help"])
    gc.freeze()
    asking = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, files, _, _ = socket.recv_fds(asking, 1, 3)
        if not message:
            return
        with socket.socket(fileno=files[0]) as answers:
            with answers.makefile("r", encoding="utf-8") as line:
                asked = json.loads(line.readline())
            _load_providers(asked["words"])
            if not os.fork():
                asking.close()
                _watch(answers, asked, files[1:])
        for file in files[1:]:
            os.close(file)
        # The process that watches a command ends soon after the command; this loop reaps such processes.
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _load_providers(words: Iterable[str]) -> None:
    """Import the SDK of each database that a command names."""
    for scheme in {found[1] for word in words if (found := re.match(r"([a-z]+)(?:$|:)", word))}:
        with suppress(MulticloudDbError):
            load_plugin(scheme)


def _watch(answers: socket.socket, asked: Mapping[str, Any], files: Sequence[int]) -> None:
    """Fork the command, report its id, wait for it, and report its end."""
    pid = os.fork()
    if not pid:
        answers.close()
        _run(asked, files)
    for file in files:
        os.close(file)
    with suppress(OSError):
        answers.sendall(f"{pid}\n".encode())
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):
        answers.sendall(f"{status}\n".encode())
    os._exit(0)


def _run(asked: Mapping[str, Any], files: Sequence[int]) -> None:
    """Run the command in this process until it ends, as `python -m multiclouddb_cli` does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, file in enumerate(files, 1):
        os.dup2(file, number)
        os.close(file)
    # The helper's stream objects contain facts about its own files, such as the position in the file.
    sys.stdout = open(1, "w", encoding=sys.stdout.encoding)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, sys.stderr.encoding, "backslashreplace")  # noqa: SIM115
    vars(sys).update(__stdout__=sys.stdout, __stderr__=sys.stderr)
    os.environ.clear()
    os.environ.update(asked["environment"])
    time.tzset()
    os.chdir(asked["folder"])
    sys.argv[:] = [_COMMAND, *asked["words"]]
    runpy.run_module(_COMMAND, run_name="__main__", alter_sys=True)
    sys.exit()
