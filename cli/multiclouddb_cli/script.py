"""The script `multiclouddb`, which answers the shortest question without importing the command line."""

from __future__ import annotations

import sys


def run() -> None:
    """Run the script `multiclouddb`."""
    if sys.argv[1:] == ["--version"] and sys.stdout is not None:
        from importlib.metadata import version

        try:
            print(f"multiclouddb {version('multiclouddb-cli')}", flush=True)  # noqa: T201 - the answer
            return
        except OSError:  # nobody reads it: the command line knows what to do
            pass
    from multiclouddb_cli.main import run as run_command

    run_command()
