"""The measured programs. Each program runs in its own process and reads a file that describes its work."""
