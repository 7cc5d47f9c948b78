"""Plans bounded reads without an engine, and reads the planned ranges; every read of a range is the same."""
