"""Compares this library with other readers of the same change feeds: `python -m benchmarks.peers`."""
