"""Runs `python -m benchmarks.lags`."""

from benchmarks.lags.command import app

if __name__ == "__main__":
    app()
