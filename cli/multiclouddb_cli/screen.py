"""Prints the output: tables on a terminal, plain columns in a pipe."""

from __future__ import annotations

import os
import select
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

import typer

from multiclouddb_api import SnapshotProgress
from multiclouddb_cli.log import say

if TYPE_CHECKING:
    from rich.table import Table

    from multiclouddb_mirror import MirrorProgress
    from multiclouddb_verify import Progress

Cell: TypeAlias = str | tuple[str, str]
"""The content of a table cell: a text, or a text with a style of rich."""

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(0x7F, 0xA0))}
# In a table, a longer text may be wrapped; shorter texts, for example times, stay on one line.
_UNFOLDED: Final = 24
_PARTS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def is_terminal() -> bool:
    """Return True if the output goes to a terminal."""
    return sys.stdout.isatty()


def with_colour() -> bool:
    """Return True if the output may contain colours."""
    return is_terminal() and not os.environ.get("NO_COLOR")


def width() -> int:
    """Return the number of columns of the terminal."""
    return shutil.get_terminal_size().columns


def printable(text: str) -> str:
    """Return one line without control characters, so that data cannot control the terminal."""
    return text.translate(_CONTROLS)


# JSON has its own escapes for the first 32; these may stand in its texts as they are.
_IN_JSON: Final = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


def safe_json(text: bytes) -> str:
    """Return a JSON text; on a terminal, the control characters in it are written as escapes of JSON."""
    found = text.decode()
    return found.translate(_IN_JSON) if is_terminal() else found


def shorter(text: str, columns: int) -> str:
    """Shorten a text to the width if it is too long."""
    return text if len(text) <= columns else f"{text[: max(0, columns - 1)]}…"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 partition`, `2 partitions`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units, for example `3h 12m`; `-` if the duration is not known."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    left = int(seconds)
    words: list[str] = []
    for size, unit in _PARTS:
        count, left = divmod(left, size)
        if count or words:
            words.append(f"{count}{unit}")
    return " ".join(words[:2])


def moment(time: datetime | None) -> str:
    """Return a time with milliseconds; `-` if the time is not known."""
    if time is None:
        return "-"
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def check_reader() -> None:
    """Check that the output still has a reader, without printing anything."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        gone = any(state & (select.POLLERR | select.POLLNVAL) for _, state in poll.poll(0))
    except (OSError, ValueError):  # stdout is not a file, for example in a test
        return
    if gone:
        raise BrokenPipeError


def emit(data: bytes) -> None:
    """Write to stdout; when the call returns, all data has left this process."""
    sys.stdout.flush()
    stream, rest = sys.stdout.buffer, memoryview(data)
    while rest:
        written: int | None = stream.write(rest)
        if written is None:  # the pipe does not block, and it is full
            select.select([], [stream], [])
        rest = rest[written or 0 :]
    stream.flush()


def print_text(text: str) -> None:
    """Print a sentence: wrapped on a terminal, otherwise on one line."""
    if is_terminal():
        text = textwrap.fill(
            text, width(), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    typer.echo(text)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], spare: Sequence[str] = ()) -> None:
    """Print a table: with lines and colours on a terminal, otherwise as aligned columns."""
    if not is_terminal():
        typer.echo("\n".join(_plain(columns, rows)))
        return
    from rich.console import Console

    Console(highlight=False).print(rich_table(columns, rows, spare))


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair per line."""
    wide = max(len(name) for name, _ in fields)
    for name, value in fields:
        label = typer.style(name.ljust(wide), bold=True) if with_colour() else name.ljust(wide)
        typer.echo(f"{label}  {printable(value)}")


def rich_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], spare: Sequence[str] = ()) -> Table:
    """Return a rich table that is at most as wide as the terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.ROUNDED)
    shown = _shown(columns, rows, spare)
    for place in shown:
        folds = _widest(columns, rows, place) > _UNFOLDED
        table.add_column(Text(columns[place]), overflow="fold", no_wrap=not folds)
    for row in rows:
        cells = [row[place] for place in shown]
        styles = ("" if isinstance(cell, str) else cell[1] for cell in cells)
        table.add_row(
            *(Text(printable(_text(each)), style=style) for each, style in zip(cells, styles, strict=True))
        )
    return table


def _shown(columns: Sequence[str], rows: Sequence[Sequence[Cell]], spare: Sequence[str]) -> list[int]:
    """Return the indexes of the columns that fit and are not empty."""
    places = range(len(columns))
    shown = [place for place in places if not rows or any(_text(row[place]) for row in rows)]
    for name in spare:
        needed = sum(min(_widest(columns, rows, place), _UNFOLDED) for place in shown)
        if needed + 3 * len(shown) + 1 > width():
            shown = [place for place in shown if columns[place] != name]
    return shown


def _widest(columns: Sequence[str], rows: Sequence[Sequence[Cell]], place: int) -> int:
    return max(len(columns[place]), *(len(_text(row[place])) for row in rows), 0)


def _plain(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    lines = [list(columns), *([printable(_text(cell)) for cell in row] for row in rows)]
    wide = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return ["  ".join(text.ljust(wide[place]) for place, text in enumerate(line)).rstrip() for line in lines]


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


_BAR: Final = 20
_SHOWN_SECONDS: Final = 0.2
_FIRST_LOGGED_SECONDS: Final = 10.0
_LOGGED_SECONDS: Final = 60.0
CLEAR: Final = "\r\x1b[2K"
"""Removes the line of a terminal."""


P = TypeVar("P", bound="SnapshotProgress | Progress | MirrorProgress")


def scan_line(progress: SnapshotProgress | Progress, rows_a_second: float | None) -> str:
    """Return `[####------]  4/10 segments  1,200 rows  600 rows/s`."""
    segments, words = progress.segments, list[str]()
    if segments:
        filled = _BAR * min(progress.segments_done, segments) // segments
        words.append(f"[{'#' * filled}{'-' * (_BAR - filled)}]")
    words.append(f"{progress.segments_done}/{segments or '?'} segments  {counted(progress.rows, 'row')}")
    if rows_a_second:
        words.append(f"{rows_a_second:,.0f} rows/s")
    return "  ".join(words)


def snapshot_line(progress: SnapshotProgress, rows_a_second: float | None) -> str:
    """Return the line of `scan_line`, followed by `about 3.0s left  ordered`."""
    words = [scan_line(progress, rows_a_second)]
    if rows_a_second and progress.records is not None and progress.records > progress.rows:
        words.append(f"about {duration((progress.records - progress.rows) / rows_a_second)} left")
    return "  ".join([*words, progress.order.value])


class Pace:
    """Says when a line about the progress is due: on a terminal often, and in a log or a mail rarely.

    Args:
        terminal: True if a line replaces the one before it.
    """

    def __init__(self, *, terminal: bool) -> None:
        self._terminal = terminal
        self._due: float | None = None

    def again(self) -> None:
        """Let a line on a terminal be due at once, because it was removed."""
        if self._terminal:
            self._due = None

    def is_due(self, now: float) -> bool:
        """Return True if a line is due at this time; it is taken as shown then."""
        if self._due is None:
            self._due = now if self._terminal else now + _FIRST_LOGGED_SECONDS
        if now < self._due:
            return False
        self._due = now + (_SHOWN_SECONDS if self._terminal else _LOGGED_SECONDS)
        return True

    def show(self, line: str) -> None:
        """Write the line to stderr."""
        if self._terminal:
            typer.echo(f"{CLEAR}{line}", err=True, nl=False)
        else:
            say(line)


class ProgressLine(Generic[P]):
    """Shows on one line of a terminal how far a scan is; in a log or a mail, a line now and then.

    Args:
        line: Makes the text from the progress and its rows a second.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, line: Callable[[P, float | None], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._line, self._clock = line, clock
        self._terminal = sys.stderr.isatty()
        self._pace = Pace(terminal=self._terminal)
        self._began: tuple[float, int] | None = None
        self._is_shown = False

    def clear(self) -> None:
        """Remove the line, because other output follows."""
        if self._is_shown:
            typer.echo(CLEAR, err=True, nl=False)
            self._is_shown = False

    def show(self, progress: P) -> None:
        """Show the progress, unless it was shown just before."""
        now = self._clock()
        if self._began is None:
            self._began = (now, progress.rows)
        if not self._pace.is_due(now):
            return
        self._is_shown = self._terminal
        began, rows = self._began
        self._pace.show(self._line(progress, (progress.rows - rows) / (now - began) if now > began else None))
