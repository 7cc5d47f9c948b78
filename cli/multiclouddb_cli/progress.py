"""Shows the progress of a snapshot scan on stderr.

On a terminal, the progress is a bar; otherwise, it is a line at most every ten seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

import typer

from multiclouddb_api import SnapshotProgress
from multiclouddb_cli.screen import duration

__all__ = ["ScanProgress", "progress_line"]

_BAR: Final = 20
_TERMINAL_SECONDS: Final = 0.2
_PIPE_SECONDS: Final = 10.0
_CLEAR: Final = "\r\x1b[2K"


def progress_line(progress: SnapshotProgress, rows_a_second: float | None) -> str:
    """Return `[####------] 4/10 segments  1,200 rows  600 rows/s  about 3.0s left  ordered`.

    Args:
        progress: The progress of the snapshot scan.
        rows_a_second: The rate of the scan; None if the rate is not known yet.
    """
    segments = progress.segments
    words = []
    if segments:
        filled = _BAR * min(progress.segments_done, segments) // segments
        words.append(f"[{'#' * filled}{'-' * (_BAR - filled)}]")
    words.append(f"{progress.segments_done}/{segments or '?'} segments  {progress.rows:,} rows")
    if rows_a_second:
        words.append(f"{rows_a_second:,.0f} rows/s")
        if progress.records is not None and progress.records > progress.rows:
            words.append(f"about {duration((progress.records - progress.rows) / rows_a_second)} left")
    words.append(progress.order.value)
    return "  ".join(words)


class ScanProgress:
    """Shows the progress of one snapshot scan.

    Args:
        clock: A function that returns seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._terminal = sys.stderr.isatty()
        self._began: tuple[float, int] | None = None
        self._shown_at: float | None = None
        self._is_shown = False

    def clear(self) -> None:
        """Remove the progress bar, because other output follows."""
        if self._is_shown:
            typer.echo(_CLEAR, err=True, nl=False)
            self._is_shown = False

    def show(self, progress: SnapshotProgress | None) -> None:
        """Show the progress, unless it was shown just before.

        Args:
            progress: The progress that the last page reported; None if no scan is running.
        """
        if progress is None:
            return
        now = self._clock()
        if self._began is None:
            self._began = (now, progress.rows)
        pause = _TERMINAL_SECONDS if self._terminal else _PIPE_SECONDS
        if self._shown_at is not None and now - self._shown_at < pause:
            return
        self._shown_at = now
        began, rows = self._began
        line = progress_line(progress, (progress.rows - rows) / (now - began) if now > began else None)
        self._is_shown = self._terminal
        typer.echo(
            f"{_CLEAR}{line}" if self._terminal else f"snapshot: {line}", err=True, nl=not self._terminal
        )
