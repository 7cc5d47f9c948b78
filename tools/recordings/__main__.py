"""Runs the command as `python -m recordings`."""

import sys

from recordings.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
