"""`python -m benchmarks.peers`."""

from benchmarks.peers.command import app

if __name__ == "__main__":
    app(prog_name="benchmarks.peers")
