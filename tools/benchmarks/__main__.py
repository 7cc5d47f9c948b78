"""Runs the command as `python -m benchmarks`."""

from benchmarks.command import app

if __name__ == "__main__":
    app(prog_name="benchmarks")
