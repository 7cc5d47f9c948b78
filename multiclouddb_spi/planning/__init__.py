"""Bounded reads without an engine: how far, in which ranges, and each range again as it was."""
