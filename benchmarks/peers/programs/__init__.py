"""The programs that are measured: each one runs in its own process, with a file that describes its work."""
