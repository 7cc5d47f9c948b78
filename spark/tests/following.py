"""Starts programs that follow a feed into a Delta table, waits for their progress, and kills them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = Path(__file__).with_name("follower.py")
SECONDS = 300


class Follower:
    """The running program, and its progress."""

    def __init__(self, folder, argument="", program=PROGRAM):
        self.folder = folder
        with (folder / "log").open("a") as log:
            self.printed = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, str(program), str(folder), argument], stdout=log, stderr=log
            )

    def noise(self):
        """Return the program's output without the unavoidable warnings of Java's launcher."""
        lines = (self.folder / "log").read_text()[self.printed :].splitlines()
        return [line for line in lines if not line.startswith("WARNING: ")]

    def wait_for(self, name):
        """Wait until a file of the checkpoint exists."""
        deadline = time.monotonic() + SECONDS
        while not (self.folder / "checkpoint" / name).exists():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, f"{name} does not come"
            time.sleep(0.002)

    def files(self):
        """Return the number of files for commits and marks, which shows the progress of a run."""
        places = ("table/_delta_log/*.json", "checkpoint/offsets/*", "checkpoint/commits/*")
        return sum(len(list(self.folder.glob(place))) for place in places)

    def wait_for_files(self, more):
        deadline, wanted = time.monotonic() + SECONDS, self.files() + more
        while self.files() < wanted:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "it makes no progress"
            time.sleep(0.001)

    def kill(self):
        # Both processes are stopped first, so that neither runs after the other was killed.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in (self.process.pid, int((self.folder / "jvm").read_text())):
                os.kill(pid, number)
        self.end(-signal.SIGKILL)

    def end(self, code):
        found = self.process.wait(SECONDS)
        assert found == code, (self.folder / "log").read_text()
