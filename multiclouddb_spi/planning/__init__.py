"""Plans bounded reads without an engine, and reads the planned ranges, which can be read again unchanged."""
