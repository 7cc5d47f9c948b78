"""Bounded reads without an engine: how far to read, in which ranges, and how to repeat a range unchanged."""
