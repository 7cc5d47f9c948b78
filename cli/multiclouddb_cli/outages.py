"""Reports outages of a feed on stderr.

On a terminal, a status line also shows that the command still follows an idle feed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import typer

from multiclouddb_api import ChangeFeedPage, Observer, ResourceAddress
from multiclouddb_cli.failure import scrub
from multiclouddb_cli.screen import counted, duration, moment, printable, shorter, width

__all__ = ["OutageReport", "StatusLine"]

_CLEAR: Final = "\r\x1b[2K"
_SHOWN_SECONDS: Final = 0.5


class StatusLine:
    """Shows on one line of a terminal up to which time the feed was read.

    If there is no terminal, the class prints nothing.

    Args:
        clock: A function that returns seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._terminal = sys.stdout.isatty() and sys.stderr.isatty()
        self._events = 0
        self._newest: datetime | None = None
        self._shown_at: float | None = None
        self._is_shown = False

    def clear(self) -> None:
        """Remove the line, because other output follows."""
        if self._is_shown:
            typer.echo(_CLEAR, err=True, nl=False)
            self._is_shown = False
            self._shown_at = None

    def show(self, page: ChangeFeedPage) -> None:
        """Show the position after a page."""
        self._events += len(page.events)
        if page.events:
            newest = max(event.timestamp for event in page.events)
            self._newest = newest if self._newest is None else max(self._newest, newest)
        now = self._clock()
        if not self._terminal or (self._shown_at is not None and now - self._shown_at < _SHOWN_SECONDS):
            return
        self._shown_at, self._is_shown = now, True
        typer.echo(f"{_CLEAR}{shorter(self._line(page), width() - 1)}", err=True, nl=False)

    def _line(self, page: ChangeFeedPage) -> str:
        diagnostics = page.diagnostics
        position = diagnostics.watermark or self._newest
        words = [
            "idle" if page.idle else "reading",
            f"at {moment(datetime.now(UTC))[11:19]}",
            f"lag {duration(diagnostics.lag_seconds)}",
            counted(self._events, "event"),
            "nothing yet" if position is None else f"read up to {moment(position)}",
        ]
        return "  ".join(words)


class OutageReport(Observer):
    """Prints an outage: the reason once, then a line every 30 seconds, and finally the end of the outage.

    Args:
        status: The status line, which is cleared before another line is printed.

    Attributes:
        muted: True to print nothing. No outage is printed while the command is closing. No outage
            is printed if the run ends by itself, because such a run reports its own error.
    """

    def __init__(self, status: StatusLine, *, muted: bool = False) -> None:
        self.muted = muted
        self._status = status
        self._reason: str | None = None

    def outage(self, address: ResourceAddress, seconds: float, reason: str) -> None:
        """Print the outage on stderr."""
        if self.muted:
            return
        self._status.clear()
        if reason == self._reason:
            text = f"no answer for {duration(seconds)}, trying again"
        else:
            self._reason = reason
            text = f"{reason}; trying again until it works"
        typer.echo(f"warning: {printable(scrub(text))}", err=True)

    def outage_ended(self, address: ResourceAddress, seconds: float) -> None:
        """Print the end of the outage, if the outage was printed."""
        if self._reason is not None and not self.muted:
            self._status.clear()
            typer.echo(f"notice: reads work again after {duration(seconds)}", err=True)
        self._reason = None
