"""Starts programs that follow a feed into a Delta table, waits for their progress, and kills them."""

import os
import signal
import subprocess
import sys
import time

SECONDS = 300


class Follower:
    """The running program, and its progress."""

    def __init__(self, folder, argument, program):
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

    def wait_for_files(self, more):
        deadline, wanted = time.monotonic() + SECONDS, files(self.folder) + more
        while files(self.folder) < wanted:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "it makes no progress"
            time.sleep(0.001)

    def kill(self):
        # Both processes are stopped first, so that neither of them runs after the other is killed.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in (self.process.pid, int((self.folder / "jvm").read_text())):
                os.kill(pid, number)
        self.end(-signal.SIGKILL)

    def end(self, code):
        found = self.process.wait(SECONDS)
        assert found == code, (self.folder / "log").read_text()


def files(folder):
    """Return the number of commits to the table and of files in the checkpoint, which show a query's
    progress."""
    places = ("table/_delta_log/*.json", "checkpoint/offsets/*", "checkpoint/commits/*")
    return sum(len(list(folder.glob(place))) for place in places)
