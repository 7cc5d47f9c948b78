"""Runs `python -m benchmarks.costs`."""

from benchmarks.costs.command import app

if __name__ == "__main__":
    app()
