"""`python -m benchmarks.peers`."""

import signal
import sys

from benchmarks.peers.command import app

if __name__ == "__main__":
    # Otherwise a termination would leave the program of a peer behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    app(prog_name="benchmarks.peers")
