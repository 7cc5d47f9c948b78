"""The programs that are measured. Each runs in its own process, and reads a file that describes its work."""
