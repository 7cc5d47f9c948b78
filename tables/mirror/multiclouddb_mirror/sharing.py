"""Reads a database once for the tables of many of its collections.

Each table has its own run, position, mark and failure, and its pages are those of a reading of its collection
alone (`multiclouddb_spi.parts`). Sharing is only an economy: a table whose next page needs more than a merge
leaves the reading before that page, and goes on alone from its own position (`table_reading.py`), as if it
had never shared one.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from datetime import datetime, timedelta
from threading import Condition, Event, Thread
from time import monotonic
from typing import Final

import attrs

from multiclouddb_api import (
    ChangeFeedIterator,
    ChangeFeedPage,
    ChangeFeedRequest,
    EntireDatabase,
    FromContinuationToken,
    MulticloudDbClient,
    MulticloudDbError,
    OperationOptions,
    ProviderOptions,
    ResourceAddress,
)
from multiclouddb_spi.continuation.token import decode_token, to_moment
from multiclouddb_spi.parts import Divided, Part, Parts, incarnations, parts_at
from multiclouddb_spi.token_report import is_in_snapshot
from multiclouddb_tables.batch import concerns
from multiclouddb_tables.mark import FeedSource

__all__ = ["Seat", "SharedReading"]

_LOG: Final = logging.getLogger("multiclouddb.mirror")
_NEAR: Final = timedelta(hours=1)
"""How far a table may be behind the newest one. One that is further behind catches up alone, because the
others would read again what they have."""
_COME_SECONDS: Final = 30.0
"""How long the first reading waits for the next of the tables, which open their positions meanwhile."""
_SLOW_SECONDS: Final = 60.0
"""How long no table may get done with a page before the reading goes on without those that have not."""
_TOLD_SECONDS: Final = 5.0
"""How often a table without changes gets a page, whose position it may store."""
_CHECK_SECONDS: Final = 60.0
"""How often the collections are compared with those that there were."""
_JOIN_SECONDS: Final = 60.0
"""How often a reading may begin anew for tables that have caught up alone."""
_GATHER_SECONDS: Final = 5.0
"""How long the first of them waits for others."""
_REST_SECONDS: Final = 600.0
"""How long nothing is shared after a reading has failed."""
_CLOSE_SECONDS: Final = 2.0
_CLOCK_SECONDS: Final = 5.0
"""By how much the clocks of a service may differ."""
_GONE: Final = object()


@attrs.define(eq=False)
class Seat:
    """The place of one table in a reading; `SharedReading` guards it."""

    token: str
    """The position of the table: after the last page that it has asked for a next one of."""
    came_at: float
    part: Part | None = None
    """None until the reading begins."""
    page: ChangeFeedPage | None = None
    """The next page."""
    asks: bool = False
    """True if the table has merged what it was given."""
    told_at: float = 0.0
    """When it was last given a page."""
    has_left: bool = False
    """True if the table goes on alone."""
    is_refused: bool = False
    """True if the table cannot share a reading, also not later."""
    is_over: bool = False
    """True if the reading has ended, and the table has read everything."""
    told: Event = attrs.field(factory=Event)
    """Set when the table has a next page, or gets none any more. Each table waits for its own, because waking
    all of them for each page of one takes longer than the reading."""


class SharedReading:
    """One reading of a database, in a thread of its own, from when two tables are ready for it.

    Args:
        client: The client.
        database: The name of the database.
        expected: How many tables begin now, each of which comes or stays away.
        follows: As in `mirror`; tables that have caught up alone then join the reading.
        timeout_seconds: As in `mirror`.
        page_events: The most events of a page.
        wait_seconds: How long a read waits for changes.
        provider_options: As in `mirror`.
    """

    def __init__(
        self,
        client: MulticloudDbClient,
        database: str,
        expected: int,
        *,
        follows: bool,
        timeout_seconds: float,
        page_events: int,
        wait_seconds: float,
        provider_options: ProviderOptions | None,
    ) -> None:
        self._client, self._address = client, ResourceAddress(database=database)
        self._expected, self._follows = expected, follows
        self._options, self._provider_options = OperationOptions(timeout_seconds), provider_options
        self._page_events, self._wait_seconds = page_events, wait_seconds
        self._changed = Condition()
        self._seats = list[Seat]()
        self._changes: ChangeFeedIterator | None = None
        self._is_open = True
        self._begins_at = monotonic() + _COME_SECONDS
        self._joins_at = 0.0
        self._has_begun = False
        self._thread: Thread | None = None

    def stays_away(self) -> None:
        """Note that one of the expected tables begins alone."""
        with self._changed:
            self._decided()

    def _decided(self) -> None:
        """Note that one of the expected tables has come or stays away; the others have more time."""
        self._expected -= 1
        self._begins_at = monotonic() + _COME_SECONDS
        self._changed.notify_all()

    @property
    def takes_more(self) -> bool:
        """Whether a table that has caught up alone may join now."""
        return self._follows and self._is_open and monotonic() >= self._joins_at

    def come(self, token: str, *, expected: bool) -> Seat | None:
        """Enter a table; None if it reads alone.

        Args:
            token: Its position.
            expected: True if it is one of the expected tables.
        """
        with self._changed:
            if expected:
                self._decided()
            is_late = self._has_begun and not self.takes_more
            if not self._is_open or is_late or is_in_snapshot(token):
                return None
            if decode_token(token).watermark is None:
                return None
            seat = Seat(token, monotonic())
            self._seats.append(seat)
            if self._thread is None:
                self._thread = Thread(target=self._run, name="multiclouddb-mirror-shared", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return seat

    def pages(self, seat: Seat) -> Generator[ChangeFeedPage, None, None]:
        """Yield the pages of a table, until it has to go on alone or everything is read.

        Args:
            seat: The seat of the table.
        """
        try:
            while (page := self._next(seat)) is not None:
                yield page
        finally:
            self.leave(seat)

    def leave(self, seat: Seat) -> None:
        """Give a seat up; any thread may call this.

        Args:
            seat: The seat.
        """
        with self._changed:
            self._dismiss([seat])
            if not self._seats and self._changes is not None:
                self._changes.stop()

    def close(self) -> None:
        """End the reading, when no table needs it any more."""
        with self._changed:
            self._is_open = False
            self._dismiss(self._seats)
            if self._changes is not None:
                self._changes.stop()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _next(self, seat: Seat) -> ChangeFeedPage | None:
        """Return the next page of a table, whose last one is merged."""
        with self._changed:
            if seat.part is not None:
                seat.token = seat.part.token
            seat.asks = True
            self._changed.notify_all()
        seat.told.wait()
        with self._changed:
            if not (seat.has_left or seat.is_over):
                seat.told.clear()
            page, seat.page, seat.asks = seat.page, None, False
            return page

    # -- The thread of the reading

    def _run(self) -> None:
        try:
            while self._gathered():
                try:
                    self._read()
                except MulticloudDbError as error:
                    self._failed(error)
        except BaseException as error:  # noqa: BLE001 - the tables go on alone
            if self._is_open:
                _LOG.warning("%s is not read as one any more", self._address, exc_info=error)
        finally:
            with self._changed:
                self._is_open = False
                self._dismiss(self._seats)

    def _gathered(self) -> bool:
        """Wait until there is something to read for; return False when the reading is over."""
        with self._changed:
            if self._has_begun and not self._follows:
                return False
            while self._is_open:
                now = monotonic()
                if not self._has_begun:
                    due = 0.0 if self._expected <= 0 else self._begins_at
                else:
                    due = self._gathers_at()
                if self._seats and now >= due:
                    self._has_begun = True
                    return True
                self._changed.wait(max(0.0, due - now) if self._seats else None)
            return False

    def _gathers_at(self) -> float:
        """Return when the tables that have come are taken; each that comes later does not delay them."""
        return min((seat.came_at for seat in self._seats if seat.part is None), default=0.0) + _GATHER_SECONDS

    def _read(self) -> None:
        """Read for the tables that are here, until others want to join, or none is left."""
        parts = self._begun()
        if parts is None:
            return
        request = ChangeFeedRequest(
            self._address,
            FromContinuationToken(parts.start),
            EntireDatabase(),
            max_page_size=self._page_events,
            provider_options=self._provider_options,
        )
        changes = self._client.iterate_changes(
            request,
            until_idle=not self._follows,
            wait_seconds=self._wait_seconds,
            timeout_seconds=self._options.timeout_seconds,
        )
        with self._changed:
            self._changes = changes
            if not (self._is_open and self._seats):
                return
        checked_at, divided = monotonic(), None
        with changes:
            for page in changes.pages():
                divided = parts.divided(page)
                if divided is None:
                    break
                self._give(divided, page)
                # Collections that no table follows may be written all the time, so that no page is idle.
                if not self._follows and parts.now is not None and _has_read(page, parts.now):
                    self._end(divided)
                    return
                if monotonic() - checked_at >= _CHECK_SECONDS:
                    checked_at = monotonic()
                    self._check()
                if not self._goes_on():
                    return
            else:
                if divided is not None and not self._follows:
                    self._end(divided)
                    return
        with self._changed:
            self._dismiss(self._seats)

    def _begun(self) -> Parts | None:
        """Begin a reading before the positions of the tables; None if fewer than two can share one."""
        with self._changed:
            self._joins_at = monotonic() + _JOIN_SECONDS
            seats = list(self._seats)
            at = {seat: to_moment(decode_token(seat.token).watermark or 0) for seat in seats}
            newest = max(at.values())
            self._dismiss([seat for seat in seats if newest - at[seat] > _NEAR])
            seats = list(self._seats)
        if len(seats) < 2:
            with self._changed:
                self._dismiss(seats)
            return None
        first = min(at[seat] for seat in seats)
        parts = parts_at(self._client, self._address, first, self._options, self._provider_options)
        with self._changed:
            for seat in seats:
                seat.part = parts.part(seat.token)
                seat.is_refused = seat.part is None
                seat.told_at = 0.0
            self._dismiss([seat for seat in seats if seat.part is None])
            if len(self._seats) < 2:
                self._dismiss(self._seats)
                return None
        return parts

    def _give(self, divided: Divided, page: ChangeFeedPage) -> None:
        """Give each table its part of a page, and wait until it is merged."""
        with self._changed:
            now = monotonic()
            for seat in [each for each in self._seats if each.part is not None]:
                part = seat.part
                assert part is not None
                source = FeedSource("", self._address, None, part.address)
                if any(concerns(notice, source) for notice in page.notices):
                    self._dismiss([seat])
                elif part.address.collection in divided.events or now - seat.told_at >= _TOLD_SECONDS:
                    seat.page, seat.told_at = part.page(divided), now
                    if seat.page is None:
                        self._dismiss([seat])
                    seat.told.set()
            # Only a few write at a time, so a table that waits for that is not slow while others get done.
            while busy := self._busy():
                if not self._changed.wait_for(lambda: len(self._busy()) < len(busy), _SLOW_SECONDS):
                    self._dismiss(busy)

    def _busy(self) -> list[Seat]:
        """Return the tables that have not merged what they were given."""
        return [each for each in self._seats if each.part is not None and (each.page or not each.asks)]

    def _check(self) -> None:
        """Let the tables go on alone whose collections are gone, or are other ones."""
        there = incarnations(self._client, self._address, self._options, self._provider_options)
        with self._changed:
            self._dismiss(
                [
                    seat
                    for seat in self._seats
                    if (part := seat.part) is not None
                    and there.get(part.address.collection or "", _GONE) != part.incarnation
                ]
            )

    def _goes_on(self) -> bool:
        """Return whether the next page is for the same tables."""
        with self._changed:
            if not self._is_open or not any(each.part is not None for each in self._seats):
                return False
            comes = any(each.part is None for each in self._seats)
            return not (comes and monotonic() >= self._gathers_at())

    def _end(self, divided: Divided) -> None:
        """Tell the tables that everything is read, with the last position."""
        with self._changed:
            for seat in self._seats:
                if seat.part is not None:
                    seat.page = seat.part.page(attrs.evolve(divided, events={}))
                seat.is_over = True
                seat.told.set()
            self._seats = []

    def _failed(self, error: MulticloudDbError) -> None:
        """End the reading after an error; reading alone, each table finds out whether it has it too."""
        _LOG.info("%s is not read as one: %s", self._address, error.message)
        with self._changed:
            self._joins_at = monotonic() + _REST_SECONDS
            self._dismiss(self._seats)

    def _dismiss(self, seats: list[Seat]) -> None:
        """Let tables go on alone; what they have been given they merge first."""
        for seat in list(seats):
            seat.has_left = True
            seat.told.set()
            if seat in self._seats:
                self._seats.remove(seat)
        self._changed.notify_all()


def _has_read(page: ChangeFeedPage, time: datetime) -> bool:
    """Return True if every change before a time of the service was read."""
    told = page.diagnostics
    return (
        told.read_until is not None
        and not told.read_until_estimated
        and told.read_until >= time + timedelta(seconds=_CLOCK_SECONDS)
    )
