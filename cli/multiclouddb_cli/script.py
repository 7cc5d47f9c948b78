"""The script `multiclouddb`, which answers the shortest question without importing the command line."""

from __future__ import annotations

import signal
import sys
from typing import Final

_EXTRA: Final = frozenset({"click", "rich", "typer"})
"""What the extra `cli` installs; `multiclouddb` alone has the script and none of them."""


def run() -> None:
    """Run the script `multiclouddb`."""
    if sys.argv[1:] == ["--version"] and sys.stdout is not None:
        from importlib.metadata import version

        try:
            print(f"multiclouddb {version('multiclouddb')}", flush=True)  # noqa: T201 - the answer
            return
        except OSError:  # nobody reads it: the command line knows what to do
            pass
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        # Nothing has begun while Python imports, so ctrl-C may end the process, which prints no traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from multiclouddb_cli.main import run as run_command
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        sys.exit(f'multiclouddb: the command needs {error.name}; run: pip install "multiclouddb[cli]"')
    try:
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run_command()
    except KeyboardInterrupt:  # while it began, or told an error
        sys.exit(128 + signal.SIGINT)
