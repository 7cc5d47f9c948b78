"""Runs a command on a terminal, and returns what the terminal showed."""

import os
import pty
import subprocess
import sys
from functools import partial

PROGRAM = [sys.executable, "-m", "multiclouddb_cli"]


def in_terminal(*words, columns=200, cwd=None, **environment):
    """Run a command in a terminal until it ends; return its exit code and all its output."""
    main, worker = pty.openpty()
    size = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "40"}
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    try:
        with subprocess.Popen(
            [*PROGRAM, *map(str, words)], cwd=cwd, stdin=worker, stdout=worker, stderr=worker,
            env={**inherited, **size, **environment},
        ) as process:  # fmt: skip
            os.close(worker)
            # One read returns only a part of the output, so read again until the terminal is closed.
            parts = list(iter(partial(read_from, main), b""))
        return process.returncode, b"".join(parts).decode()
    finally:
        os.close(main)


def read_from(terminal):
    """Return the next part of a terminal's output, or `b""` if its program has ended."""
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end of the terminal is closed
        return b""
