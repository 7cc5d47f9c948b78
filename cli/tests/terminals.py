"""Runs commands on a terminal, and keeps what the terminal showed."""

import os
import pty
import re
import signal
import subprocess
import sys

from multiclouddb_conformance.waiting import wait_until
from testing.command_line import apart_from_silence

PROGRAM = [sys.executable, "-m", "multiclouddb_cli"]
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command that runs on a terminal; `text` is what was shown so far."""

    def __init__(self, *words, columns=50, **environment):
        self._main, worker = pty.openpty()
        size = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "40"}
        inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            [*PROGRAM, *map(str, words)], stdin=worker, stdout=worker, stderr=worker,
            env={**inherited, **size, **environment},
        )  # fmt: skip
        os.close(worker)
        os.set_blocking(self._main, False)
        self.text = ""

    def read(self):
        """Return everything that was shown so far."""
        try:
            while part := os.read(self._main, 65536):
                self.text += part.decode()
        except OSError:  # nothing more now, or the terminal is closed
            pass
        return self.text

    def lines(self):
        """Return the lines that a person sees, including lines that were replaced later."""
        text = apart_from_silence(CODES.sub("", self.read()).replace("\r", "\n"))
        return re.split(r"\n+", text)

    def end(self, number=signal.SIGTERM):
        """End the command, or with None wait until it ends; return its exit code."""
        if number is not None:
            self.process.send_signal(number)
        # A full terminal blocks the command, so it is read meanwhile.
        wait_until(lambda: self.read() is not None and self.process.poll() is not None, 200)
        self.read()
        os.close(self._main)
        return self.process.returncode


def in_terminal(*words, columns=200, **environment):
    """Run a command in a terminal until it ends; return its exit code and all its output."""
    terminal = Terminal(*words, columns=columns, **environment)
    return terminal.end(None), terminal.text


def follow(*words, command="tail", **settings):
    """Start a command in another process, whose output is read from pipes."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*PROGRAM, command, *map(str, words)], **pipes, **settings)
