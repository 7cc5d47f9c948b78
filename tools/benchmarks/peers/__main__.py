"""Runs the command as `python -m benchmarks.peers`."""

import signal
import sys

from benchmarks.peers.command import app

if __name__ == "__main__":
    # Without this handler, SIGTERM would leave the program of a peer running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    app(prog_name="benchmarks.peers")
