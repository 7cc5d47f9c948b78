"""`multiclouddb top` shows the activity of a feed, measured while the feed is read."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any, Final

import attrs
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from multiclouddb_api import (
    ChangeFeedPage,
    ChangeFeedRequest,
    ClientConfig,
    FeedEnded,
    FromContinuationToken,
    MulticloudDbError,
    Observer,
    OperationDiagnostics,
    ResourceAddress,
)
from multiclouddb_cli.failure import scrub
from multiclouddb_cli.screen import (
    Cell,
    check_reader,
    counted,
    duration,
    is_terminal,
    moment,
    print_table,
    print_text,
    printable,
    rich_table,
)
from multiclouddb_cli.session import Interrupt, Session, until_signal
from multiclouddb_spi.continuation.token import decode_token
from multiclouddb_spi.token_report import Standing, read_standings

_COLUMNS: Final = ("partition", "state", "events", "events/s", "position", "time", "kept for", "trouble")
_SPARE: Final = ("time", "position", "kept for", "state")
_IDLE_SECONDS: Final = 0.05
_LINES_AROUND: Final = 8


class Meter(Observer):
    """Collects the reports that the engine makes during reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.retries = 0
        self.headroom: dict[str, float] = {}

    def retry(
        self, address: ResourceAddress, partition_id: str, attempt: int, wait_seconds: float, reason: str
    ) -> None:
        """Count a retry."""
        with self._lock:
            self.retries += 1

    def retention_headroom_low(self, address: ResourceAddress, partition_id: str, seconds: float) -> None:
        """Record the headroom of a partition."""
        with self._lock:
            self.headroom[partition_id] = seconds


class Board:
    """The current state of the feed."""

    def __init__(
        self, session: Session, request: ChangeFeedRequest, meter: Meter, *, waits: bool = False
    ) -> None:
        self._waits = waits
        self._session, self._request, self._meter = session, request, meter
        self._counts: Counter[str] = Counter()
        self._before: Counter[str] = Counter()
        self._seconds = 0.0
        self._diagnostics = OperationDiagnostics()
        self._troubles: dict[str, str] = {}
        self.over = False

    def watch(self, seconds: float) -> None:
        """Read the feed for a while."""
        began = time.monotonic()
        self._before = Counter(self._counts)
        while not self.over and (left := began + seconds - time.monotonic()) > 0:
            try:
                page = self._session.read(self._request, wait_seconds=left)
            except MulticloudDbError as error:
                if not error.retryable or not self._waits:
                    raise
                self._troubles = {"": scrub(error.message)}
                time.sleep(min(left, max(1.0, error.detail.retry_after_seconds or 0.0)))
                continue
            self._take(page)
            if page.idle:
                time.sleep(max(0.0, min(_IDLE_SECONDS, began + seconds - time.monotonic())))
        self._seconds = time.monotonic() - began

    def _take(self, page: ChangeFeedPage) -> None:
        self._waits = True
        self._request = attrs.evolve(
            self._request, start_position=FromContinuationToken(page.continuation_token)
        )
        self._counts.update(event.partition_id for event in page.events)
        self._diagnostics = page.diagnostics
        self._troubles = {name: scrub(text) for name, text in page.diagnostics.partition_errors.items()}
        self.over = any(isinstance(notice, FeedEnded) for notice in page.notices)

    def summary(self) -> str:
        """Return a summary of the whole feed on one line."""
        diagnostics = self._diagnostics
        new = self._counts.total() - self._before.total()
        names = [self._session.feed.public_id(item.partition_id) for item in self._standings()]
        kept = [self._meter.headroom[name] for name in names if name in self._meter.headroom]
        facts = [
            counted(len(names), "partition"),
            counted(self._counts.total(), "event"),
            f"{self._rate(new)} events/s",
            f"lag {'about ' if diagnostics.read_until_estimated else ''}{duration(diagnostics.lag_seconds)}",
            f"watermark {moment(diagnostics.watermark)}",
            f"kept for {duration(min(kept, default=None))}",
            f"{self._meter.retries} retries",
            counted(len(self._troubles), "error"),
        ]
        if self.over:
            facts.append("the feed is over")
        return "  ".join(facts)

    def rows(self) -> list[list[Cell]]:
        """Return one row per partition, beginning with the busiest partition."""
        rows = [(self._new(item), self._row(item)) for item in self._standings()]
        return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]

    def general_trouble(self) -> str:
        """Return the error that prevents any read of the feed, or an empty text."""
        return self._troubles.get("", "")

    def _standings(self) -> list[Standing]:
        start = self._request.start_position
        if not isinstance(start, FromContinuationToken):
            return []
        found = read_standings(decode_token(start.token))
        return sorted(found, key=lambda item: (len(item.partition_id), item.partition_id))

    def _new(self, item: Standing) -> int:
        name = self._session.feed.public_id(item.partition_id)
        return self._counts[name] - self._before[name]

    def _row(self, item: Standing) -> list[Cell]:
        name = self._session.feed.public_id(item.partition_id)
        text, at = item.describe(self._session.feed)
        trouble = self._troubles.get(name, "")
        if item.parents:
            text = f"waits for {', '.join(item.parents)}"
        return [
            item.partition_id,
            item.state,
            str(self._counts[name]),
            self._rate(self._new(item)),
            text,
            moment(at),
            duration(self._meter.headroom.get(name)),
            (trouble, "red"),
        ]

    def _rate(self, events: int) -> str:
        return f"{events / self._seconds:.1f}" if self._seconds else "-"


def top(
    config: ClientConfig, request: ChangeFeedRequest, interval: float, *, once: bool, wait: bool = False
) -> None:
    """Show the feed until it ends or the user stops the command."""
    meter = Meter()
    always_warned = attrs.evolve(config, headroom_warning_seconds=float("inf"))
    with until_signal() as interrupt, Session(always_warned, request, meter) as session:
        board = Board(session, request, meter, waits=wait)
        if once or not is_terminal():
            _print(board, interval, interrupt, once=once)
        else:
            _live(board, interval, interrupt)


def _print(board: Board, interval: float, interrupt: Interrupt, *, once: bool) -> None:
    while True:
        check_reader()
        with interrupt.reading():
            board.watch(interval)
        print_text(board.summary())
        if trouble := board.general_trouble():
            typer.echo(f"warning: {printable(trouble)}", err=True)
        print_table(_COLUMNS, board.rows(), _SPARE)
        if once or board.over:
            return
        typer.echo()


def _live(board: Board, interval: float, interrupt: Interrupt) -> None:
    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, transient=False) as live:
        live.update(Text("connecting…"), refresh=True)
        while not board.over:
            with interrupt.reading():
                board.watch(interval)
            live.update(_screenful(board, max(1, console.height - _LINES_AROUND)), refresh=True)


def _screenful(board: Board, lines: int) -> Any:
    rows = board.rows()
    parts: list[Any] = [Text(board.summary(), style="bold"), rich_table(_COLUMNS, rows[:lines], _SPARE)]
    if len(rows) > lines:
        parts.append(Text(f"… and {len(rows) - lines} more partitions"))
    if trouble := board.general_trouble():
        parts.append(Text(printable(trouble), style="red"))
    parts.append(Text("ctrl-C ends", style="dim"))
    return Group(*parts)
