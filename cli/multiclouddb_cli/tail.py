"""`multiclouddb tail`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import attrs
import typer

from multiclouddb_api import (
    ChangeFeedIterator,
    ChangeFeedPage,
    ChangeFeedRequest,
    ClientConfig,
    EntireCluster,
    EntireDatabase,
    FeedScope,
    MulticloudDbClient,
    NewItemStateMode,
    Observer,
    ResourceAddress,
    StartPosition,
    connect,
    event_to_json,
)
from multiclouddb_cli.bookmark import Bookmark
from multiclouddb_cli.failure import scrub
from multiclouddb_cli.interrupt import Interrupt, InterruptibleReader
from multiclouddb_cli.progress import ScanProgress
from multiclouddb_cli.rendering import event_line, notice_line
from multiclouddb_cli.screen import check_reader, emit, is_terminal, printable, width, with_colour

__all__ = ["Wish", "tail"]

_WAIT_SECONDS: Final = 2.0
_OUTAGE_SECONDS: Final = 300.0
_PAGE_EVENTS: Final = 1000
_PIPE_COLUMNS: Final = 160


@attrs.frozen
class Wish:
    """The settings of a `tail` command: the target and the output.

    Attributes:
        address: The collection, database or cluster to follow.
        start: The start position, used if there is no checkpoint.
        scope: The part of the target to follow.
        state: Whether events include documents.
        checkpoint: The file that stores the position, or None.
        as_json: True to print one JSON event per line.
        until_idle: True to end after the first idle page.
        max_events: The number of events after which to end, or None.
        skip_poison: True to skip records that cannot be decoded.
    """

    address: ResourceAddress
    start: StartPosition
    scope: FeedScope
    state: NewItemStateMode
    checkpoint: Path | None = None
    as_json: bool = False
    until_idle: bool = False
    max_events: int | None = None
    skip_poison: bool = False

    def request(self) -> ChangeFeedRequest:
        """Return the request for the read."""
        return ChangeFeedRequest(
            self.address,
            self.start,
            self.scope,
            new_item_state_mode=self.state,
            max_page_size=_page_size(self.max_events),
        )


def tail(config: ClientConfig, wish: Wish) -> None:
    """Print events until the feed is idle, ends, or the user stops it.

    Raises:
        MulticloudDbError: If a read or the checkpoint failed.
        BrokenPipeError: If the output has no reader. typer.Exit: If a signal ended the command.
    """
    request, grumbler = wish.request(), _Grumbler()
    with Interrupt() as interrupt, connect(config, observer=grumbler) as client:
        try:
            changes = _changes(client, request, wish, interrupt)
            interrupt.stop = changes.stop
            with changes:
                _follow(changes, wish)
        except KeyboardInterrupt:
            if interrupt.exit_code is None:
                raise
        finally:
            grumbler.muted = True
    if interrupt.exit_code is not None:
        raise typer.Exit(interrupt.exit_code)


def _changes(
    client: MulticloudDbClient, request: ChangeFeedRequest, wish: Wish, interrupt: Interrupt
) -> ChangeFeedIterator:
    bookmark = None if wish.checkpoint is None else Bookmark(wish.checkpoint)
    return ChangeFeedIterator(
        InterruptibleReader(client, interrupt),
        request,
        wait_seconds=0.0 if wish.until_idle else _WAIT_SECONDS,
        until_idle=wish.until_idle,
        # The engine retries each call, so a run that should end does not also wait for the end of an outage.
        max_outage_seconds=0.0 if wish.until_idle else _OUTAGE_SECONDS,
        checkpoint_store=bookmark,
        checkpoint_name=None if bookmark is None else bookmark.name,
        on_poison="skip" if wish.skip_poison else "raise",
    )


def _follow(changes: ChangeFeedIterator, wish: Wish) -> None:
    """Print pages. Print the pages.

    The iterator saves the position after a page when the next page is requested.
    """
    wide = isinstance(wish.scope, EntireDatabase | EntireCluster)
    printer = _Printer(as_json=wish.as_json, address=wide)
    left = wish.max_events
    for page in changes.pages():
        printer.print(page)
        if left is not None:
            left -= len(page.events)
            if left <= 0:
                changes.stop()
            else:
                changes.request = attrs.evolve(changes.request, max_page_size=_page_size(left))


def _page_size(events: int | None) -> int:
    return 0 if events is None else min(events, _PAGE_EVENTS)


class _Printer:
    """Prints pages; when `print` returns, the output has left this process."""

    def __init__(self, *, as_json: bool, address: bool) -> None:
        self._as_json, self._address = as_json, address
        self._colour = with_colour()
        self._troubles: dict[str, str] = {}
        self._progress = ScanProgress()

    def print(self, page: ChangeFeedPage) -> None:
        """Print events to stdout, and everything else to stderr."""
        self._progress.clear()
        if not page.events:
            check_reader()
        elif self._as_json:
            emit(b"".join(event_to_json(event) + b"\n" for event in page.events))
        else:
            columns = width() if is_terminal() else _PIPE_COLUMNS
            lines = [
                event_line(event, columns, colour=self._colour, address=self._address)
                for event in page.events
            ]
            emit("".join(f"{line}\n" for line in lines).encode(sys.stdout.encoding, "backslashreplace"))
        for notice in page.notices:
            typer.echo(f"notice: {notice_line(notice)}", err=True)
        self._complain(page)
        self._progress.show(page.diagnostics.snapshot)

    def _complain(self, page: ChangeFeedPage) -> None:
        """Report each error of a partition only once, not with every page."""
        troubles = dict(page.diagnostics.partition_errors)
        for name, text in troubles.items():
            if self._troubles.get(name) != text:
                typer.echo(f"warning: {printable(scrub(f'{name}: {text}'))}", err=True)
        self._troubles = troubles


class _Grumbler(Observer):
    """Reports retries, so that an outage does not look like a feed without changes.

    Attributes:
        muted: A flag that is set at the end: closing cancels reads, and their retries need no report.
    """

    muted = False

    def retry(
        self, address: ResourceAddress, partition_id: str, attempt: int, wait_seconds: float, reason: str
    ) -> None:
        """Print the retry to stderr."""
        if self.muted:
            return
        line = f"{partition_id}: {reason}; trying again in {wait_seconds:.1f}s"
        typer.echo(f"warning: {printable(scrub(line))}", err=True)
