"""Writes lines to stderr; those of a command that goes on are a log, and begin with their time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import typer

_has_times = False
"""True if lines begin with their time; for all threads, because a mirror has one for each table."""


@contextmanager
def one_command() -> Iterator[None]:
    """Write the lines of the block without a time, unless `begin_log` is called in it."""
    global _has_times
    _has_times = False
    try:
        yield
    finally:
        _has_times = False


def begin_log() -> None:
    """Begin each line of this command from now on with its time, unless a person or the journal reads it."""
    global _has_times
    _has_times = not sys.stderr.isatty() and not _is_journal()


def say(text: str) -> None:
    """Write a line to stderr."""
    if _has_times:
        text = f"{datetime.now(UTC).isoformat(timespec='milliseconds').replace('+00:00', 'Z')}  {text}"
    typer.echo(text, err=True)


def _is_journal() -> bool:
    """Return whether stderr is the journal of systemd, which adds the time: the way of `systemd.exec(5)`."""
    try:
        found = os.fstat(sys.stderr.fileno())
    except OSError:  # it is no file, for example in a test
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
