"""Tests that a forked child is refused what its parent has made, and never frees it."""

import subprocess
import sys

PROGRAM = """
import os, sys, warnings
from multiclouddb_api.process import Home

warnings.simplefilter("ignore")

class Owner:
    def __init__(self):
        self.home = Home(self, "Owner", "make another here")

    def __del__(self):
        print("collected", "here" if self.home.is_here else "by another process", flush=True)

kept, dropped = Owner(), Owner()
child = os.fork()
if not child:
    del dropped
    try:
        kept.home.check()
    except Exception as error:
        print(str(error).splitlines()[0], flush=True)
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_child_is_refused_and_collects_nothing_even_at_its_end():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "[INVALID_REQUEST] Owner: was made in another process: connect here; make another here",
        *["collected here"] * 2,
    ]
