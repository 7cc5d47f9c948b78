"""Runs the command as `python -m mutation`."""

from mutation.command import app

if __name__ == "__main__":
    app(prog_name="mutation")
