"""`multiclouddb tail` prints changes as they happen."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs
import typer

from multiclouddb_api import (
    AtTime,
    Beginning,
    Capability,
    ChangeEvent,
    ChangeFeedIterator,
    ChangeFeedPage,
    ChangeFeedRequest,
    ClientConfig,
    EntireCluster,
    EntireCollection,
    EntireDatabase,
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    LogicalPartition,
    MulticloudDbError,
    Now,
    Observer,
    OperationOptions,
    ResourceAddress,
    Support,
    connect,
)
from multiclouddb_api.request import FromContinuationToken
from multiclouddb_cli.arguments import Bookmark, Selection
from multiclouddb_cli.failure import scrub
from multiclouddb_cli.log import say
from multiclouddb_cli.rendering import Renderer, notice_line
from multiclouddb_cli.screen import (
    CLEAR,
    Pace,
    ProgressLine,
    check_reader,
    counted,
    duration,
    emit,
    moment,
    printable,
    shorter,
    snapshot_line,
    width,
)
from multiclouddb_cli.session import OUTAGE_SECONDS, Contact, Interrupt, until_signal


class StatusLine:
    """Shows on one line of a terminal up to which time the feed was read; in a log, a line now and then."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = sys.stderr.isatty()
        self._clock, self._pace = clock, Pace(terminal=self._terminal)
        # The events on a terminal would come between the status and what follows it, if they pass a pipe.
        self._is_silent = self._terminal and not sys.stdout.isatty()
        self._events = 0
        self._newest: datetime | None = None
        self._is_shown = False

    def clear(self) -> None:
        """Remove the line, because other output follows."""
        if self._is_shown:
            typer.echo(CLEAR, err=True, nl=False)
            self._is_shown = False
            self._pace.again()

    def show(self, page: ChangeFeedPage) -> None:
        """Show the position after a page."""
        self._events += len(page.events)
        if page.events:
            newest = max(event.timestamp for event in page.events)
            self._newest = newest if self._newest is None else max(self._newest, newest)
        if self._is_silent or not self._pace.is_due(self._clock()):
            return
        self._is_shown = self._terminal
        line = self._line(page)
        self._pace.show(shorter(line, width() - 1) if self._terminal else line)

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
        status: The line of the terminal that other output removes.
        muted: True to print nothing.
        several: True if the command has several collections, so that each line names its own.
    """

    def __init__(self, status: StatusLine, *, muted: bool = False, several: bool = False) -> None:
        self.muted = muted
        self._status, self._several = status, several
        self._reasons = dict[ResourceAddress, str]()
        self.promise: Callable[[], str] = lambda: "trying again"

    def outage(self, address: ResourceAddress, seconds: float, reason: str) -> None:
        """Print the outage on stderr."""
        if self.muted:
            return
        self._status.clear()
        if reason == self._reasons.get(address):
            text = f"no answer for {duration(seconds)}; {self.promise()}"
        else:
            self._reasons[address] = reason
            text = f"{reason.removesuffix('; try again')}; {self.promise()}"
        say(f"warning: {self._name(address)}{printable(scrub(text))}")

    def outage_ended(self, address: ResourceAddress, seconds: float) -> None:
        """Print the end of the outage, if the outage was printed."""
        if self._reasons.pop(address, None) is not None and not self.muted:
            self._status.clear()
            what = "works" if self._several else "reads work"
            say(f"notice: {self._name(address)}{what} again after {duration(seconds)}")

    def _name(self, address: ResourceAddress) -> str:
        return f"{printable(str(address))}: " if self._several else ""


_WAIT_SECONDS: Final = 2.0
_PAGE_EVENTS: Final = 1000


@attrs.frozen
class Wish:
    """The settings of a `tail` command: what to read, and what to print."""

    request: ChangeFeedRequest
    render: Renderer
    selection: Selection = attrs.field(factory=Selection)
    last: int | None = None
    checkpoint: str | None = None
    until_idle: bool = False
    max_events: int | None = None
    skip_poison: bool = False
    wait: bool = False
    timeout: float = 30.0
    has_start: bool = False

    @property
    def wide(self) -> bool:
        """True if the events may come from several collections."""
        return isinstance(self.request.scope, EntireDatabase | EntireCluster)

    def page_size(self, left: int | None) -> int:
        """Return the page size to request if this many events may still be printed."""
        if left is None or (self.checkpoint is None and self.selection != Selection()):
            return 0
        return min(left, _PAGE_EVENTS)


def tail(config: ClientConfig, wish: Wish) -> None:
    """Print events until the feed is idle or ends, or the user stops the command."""
    status = StatusLine()
    report = OutageReport(status, muted=wish.until_idle and not wish.wait)
    with until_signal() as interrupt:
        contact = Contact(lambda: connect(config, observer=report), interrupt, report, waits=wish.wait)
        report.promise = contact.promise
        with closing(contact):
            try:
                _run(contact, interrupt, wish, status)
            finally:
                status.clear()
                report.muted = True


def _run(contact: Contact, interrupt: Interrupt, wish: Wish, status: StatusLine) -> None:
    bookmark = None if wish.checkpoint is None else Bookmark(wish.checkpoint)
    if bookmark is not None and wish.has_start and bookmark.load() is not None:
        typer.echo(
            f"warning: --from is ignored, because {wish.checkpoint} holds a position; delete it to "
            "start again",
            err=True,
        )
    printer = _Printer(wish, status)
    if wish.last is not None and (bookmark is None or bookmark.load() is None):
        limits = OperationOptions(wish.timeout)
        count = min(wish.last, wish.max_events or wish.last)
        events, token = _newest(contact, wish.request, wish.selection, count, limits)
        printer.lines(events)
        if wish.max_events is not None and printer.printed >= wish.max_events:
            if bookmark is not None:
                bookmark.save(bookmark.name, token, None)
            return
        start = FromContinuationToken(token)
        wish = attrs.evolve(wish, request=attrs.evolve(wish.request, start_position=start))
    changes = _changes(contact, wish, bookmark)
    interrupt.stop = changes.stop
    with changes:
        _follow(changes, wish, printer, bookmark, lambda: _check_key(contact, wish))
    if bookmark is not None and bookmark.is_held and bookmark.load() is None:
        typer.echo("warning: no checkpoint was saved, because the first change came after --to", err=True)


def _changes(contact: Contact, wish: Wish, bookmark: Bookmark | None) -> ChangeFeedIterator:
    # The engine already retries each call, so a run that ends by itself does not wait until an outage is
    # over.
    outage = float("inf") if wish.wait else 0.0 if wish.until_idle else OUTAGE_SECONDS
    size = wish.page_size(wish.max_events)
    if bookmark is not None and wish.selection.until is not None and bookmark.load() is None:
        size = 1  # then a position is saved before the first event that a later run has to print
    return ChangeFeedIterator(
        contact,
        attrs.evolve(wish.request, max_page_size=size),
        timeout_seconds=wish.timeout,
        wait_seconds=0.0 if wish.until_idle or wish.selection.is_of_the_past() else _WAIT_SECONDS,
        until_idle=wish.until_idle,
        max_outage_seconds=outage,
        checkpoint_store=bookmark,
        checkpoint_name=None if bookmark is None else bookmark.name,
        on_poison="skip" if wish.skip_poison else "raise",
    )


_NO_SUCH_KEY: Final = re.compile(r"(?:LogicalPartition\.)?key: (.*)", re.DOTALL)


def _check_key(contact: Contact, wish: Wish) -> None:
    """Refuse a key that no document can have, as `--scope key:` does, where the database can tell.

    Any other error has nothing to do with the changes, which were read without this scope.
    """
    key, scope = wish.selection.key, Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE
    options = wish.request.provider_options
    if key is None or not isinstance(wish.request.scope, EntireCollection):
        return
    if not contact.client.capabilities(options).is_supported(scope):
        return
    request = ChangeFeedRequest(
        wish.request.address, Now(), LogicalPartition(key), provider_options=options, max_page_size=1
    )
    try:
        contact.read_changes(request, OperationOptions(wish.timeout))
    except MulticloudDbError as error:
        problem = _NO_SUCH_KEY.fullmatch(error.message)
        if error.category == ErrorCategory.INVALID_REQUEST and problem is not None:
            raise typer.BadParameter(problem[1], param_hint="--only-key") from error


def _follow(
    changes: ChangeFeedIterator,
    wish: Wish,
    printer: _Printer,
    bookmark: Bookmark | None,
    check_key: Callable[[], None],
) -> None:
    is_checked = False
    left = None if wish.max_events is None else wish.max_events - printer.printed
    asked_at = datetime.now(UTC)
    for page in changes.pages():
        if not is_checked:  # the database has answered, so this does not wait for it
            check_key()
            is_checked = True
        if bookmark is not None and wish.selection.leaves_for_later(page):
            bookmark.hold()
        before = printer.printed
        printer.page(page, left)
        if left is not None:
            left -= printer.printed - before
            if left <= 0:
                changes.stop()
        size = wish.page_size(left)
        if changes.request.max_page_size != size and (left is None or left > 0):
            changes.request = attrs.evolve(changes.request, max_page_size=size)
        if wish.selection.is_over(page, asked_at):
            changes.stop()
        asked_at = datetime.now(UTC)


class _Printer:
    """Prints pages; a method returns only after the process has written all output of the method."""

    def __init__(self, wish: Wish, status: StatusLine) -> None:
        self.printed = 0
        self._wish, self._status = wish, status
        self._troubles: dict[str, str] = {}
        self._progress = ProgressLine(snapshot_line)

    def lines(self, events: list[ChangeEvent]) -> None:
        if events:
            render = self._wish.render
            text = "".join(render(event, address=self._wish.wide) for event in events)
            emit(text.encode(sys.stdout.encoding, "backslashreplace"))
        self.printed += len(events)

    def page(self, page: ChangeFeedPage, most: int | None) -> None:
        """Print at most `most` events to stdout, and notices, warnings and progress to stderr."""
        events = self._wish.selection.of(page.events)[:most]
        self._progress.clear()
        if events or page.notices:
            self._status.clear()
        if events:
            self.lines(events)
        else:
            check_reader()
        for notice in page.notices:
            typer.echo(f"notice: {notice_line(notice)}", err=True)
        self._complain(page)
        if page.diagnostics.snapshot is not None:
            self._progress.show(page.diagnostics.snapshot)
        if page.diagnostics.snapshot is None:
            self._status.show(page)

    def _complain(self, page: ChangeFeedPage) -> None:
        """Report each error of a partition only once, not for every page."""
        troubles = dict(page.diagnostics.partition_errors)
        for name, text in troubles.items():
            if self._troubles.get(name) != text:
                self._status.clear()
                typer.echo(f"warning: {printable(scrub(f'{name}: {text}'))}", err=True)
        self._troubles = troubles


_WINDOWS: Final = (60, 600, 3600, 6 * 3600, 86400, 7 * 86400)


def _newest(
    contact: Contact, request: ChangeFeedRequest, selection: Selection, count: int, options: OperationOptions
) -> tuple[list[ChangeEvent], str]:
    """Return the newest events in the order of their times, and the token after them."""
    capabilities = contact.client.capabilities()
    if capabilities[Capability.CHANGE_FEED_POINT_IN_TIME].support is not Support.NATIVE:
        raise MulticloudDbError(
            f"--last is not possible on {contact.client.config.provider}, which cannot start at a given "
            f"time; run tail --from beginning --until-idle and keep the last lines (tail -n)",
            ErrorDetail(
                ErrorCategory.UNSUPPORTED_CAPABILITY,
                contact.client.config.provider,
                "tail",
                reason=ErrorReason.NOT_OFFERED,
            ),
        )
    now = datetime.now(UTC)
    for seconds in _WINDOWS:
        start = attrs.evolve(request, start_position=AtTime(now - timedelta(seconds=seconds)))
        try:
            found, token = _read(contact, start, selection, count, options, now)
        except MulticloudDbError as error:
            if error.category != ErrorCategory.CHECKPOINT_EXPIRED:
                raise
            break
        if len(found) >= count:
            return found, token
    return _read(contact, attrs.evolve(request, start_position=Beginning()), selection, count, options, now)


def _read(
    contact: Contact,
    request: ChangeFeedRequest,
    selection: Selection,
    count: int,
    options: OperationOptions,
    until: datetime,
) -> tuple[list[ChangeEvent], str]:
    """Return the newest events between the request's start and `until`, and the token after them."""
    found: list[ChangeEvent] = []
    while True:
        page = contact.read_changes(request, options)
        found += selection.of(page.events)
        if len(found) > 2 * count:
            found = _newest_of(found, count)
        token, watermark = page.continuation_token, page.diagnostics.watermark
        if page.idle or page.partition_retired or (watermark is not None and watermark > until):
            return _newest_of(found, count), token
        request = attrs.evolve(request, start_position=FromContinuationToken(token))


def _newest_of(events: list[ChangeEvent], count: int) -> list[ChangeEvent]:
    """Return the newest events by time; events with the same time keep their order."""
    return sorted(events, key=lambda event: event.timestamp)[-count:]
