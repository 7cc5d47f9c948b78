"""Plans bounded reads without an engine, and reads the planned ranges; each read returns the same events."""
