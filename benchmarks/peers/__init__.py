"""Measures this library beside other readers of the same change feeds: `python -m benchmarks.peers`."""
