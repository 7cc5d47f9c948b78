"""Bounded reads without an engine: decides how far to read, plans ranges, and repeats a range unchanged."""
