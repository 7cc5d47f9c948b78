"""Defines what the mirror of one table reads from: a reading that several tables share, or one of its own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from threading import Event
from types import TracebackType
from typing import Protocol

import attrs

from multiclouddb_api import ChangeFeedIterator, ChangeFeedPage, ChangeFeedRequest, FromContinuationToken
from multiclouddb_mirror.sharing import Seat, SharedReading
from multiclouddb_spi.token_report import is_in_snapshot

__all__ = ["Changes", "TableReading"]


class Changes(Protocol):
    """What a mirror reads: the part of `ChangeFeedIterator` that it uses."""

    def pages(self) -> Iterator[ChangeFeedPage]:
        """See `ChangeFeedIterator.pages`."""
        ...

    def stop(self) -> None:
        """See `ChangeFeedIterator.stop`."""
        ...

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class TableReading:
    """What one table of several reads from: the shared reading, or a reading of its own.

    Args:
        shared: The shared reading; None if there is none.
        turn: Held by a table while it reads alone and after it has read everything; None for nothing.
        is_expected: True if the reading waits for the table.
    """

    def __init__(
        self,
        shared: SharedReading | None,
        turn: AbstractContextManager[object] | None,
        *,
        is_expected: bool = False,
    ) -> None:
        self.shared = shared
        self.turn: AbstractContextManager[object] = nullcontext() if turn is None else turn
        """What a table enters while it works without the shared reading."""
        self._is_expected = is_expected and shared is not None

    def come(self, token: str | None) -> Seat | None:
        """Enter the shared reading at a position; None if the table reads alone.

        Args:
            token: The position; None before the first one.
        """
        expected, self._is_expected = self._is_expected, False
        if self.shared is None:
            return None
        if token is None:
            if expected:
                self.shared.stays_away()
            return None
        return self.shared.come(token, expected=expected)

    def end(self) -> None:
        """Note that the run of the table is over."""
        if self._is_expected and self.shared is not None:
            self._is_expected = False
            self.shared.stays_away()

    def changes(
        self, request: ChangeFeedRequest, iterate: Callable[[ChangeFeedRequest], ChangeFeedIterator]
    ) -> Changes:
        """Return the changes of a request.

        Args:
            request: The request.
            iterate: Makes the iterator of a reading alone.
        """
        return _TableChanges(self, request, iterate)


class _TableChanges:
    """The changes of a collection, from the shared reading for as long as that is possible."""

    def __init__(
        self,
        reading: TableReading,
        request: ChangeFeedRequest,
        iterate: Callable[[ChangeFeedRequest], ChangeFeedIterator],
    ) -> None:
        self._reading, self._request, self._iterate = reading, request, iterate
        self._stopped = Event()
        self._own: ChangeFeedIterator | None = None
        self._seat: Seat | None = None
        self._may_join = True
        self._pages: Generator[ChangeFeedPage, None, None] | None = None

    def __enter__(self) -> _TableChanges:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pages is not None:
            self._pages.close()  # it may hold the turn

    def stop(self) -> None:
        """End the iteration; any thread may call this."""
        self._stopped.set()
        self._leave()
        if self._own is not None:
            self._own.stop()

    def _leave(self) -> None:
        if self._seat is not None and self._reading.shared is not None:
            self._reading.shared.leave(self._seat)

    def pages(self) -> Iterator[ChangeFeedPage]:
        """Yield the pages."""
        self._pages = self._steps()
        return self._pages

    def _steps(self) -> Generator[ChangeFeedPage, None, None]:
        while not self._stopped.is_set():
            start = self._request.start_position
            token = start.token if isinstance(start, FromContinuationToken) else None
            seat = self._seat = self._reading.come(token)
            if self._stopped.is_set():  # meanwhile
                self._leave()
                return
            if seat is not None and self._reading.shared is not None:
                for page in self._reading.shared.pages(seat):
                    yield self._done(page)
                if seat.is_over or self._stopped.is_set():
                    return
                self._may_join = not seat.is_refused
            if not (yield from self._alone()):
                return

    def _alone(self) -> Generator[ChangeFeedPage, None, bool]:
        """Yield the pages of a reading alone; return True if the table may join the others now."""
        shared = self._reading.shared
        with self._reading.turn, self._iterate(self._request) as own:
            self._own = own
            if self._stopped.is_set():
                own.stop()
            for page in own.pages():
                yield self._done(page)
                if shared is not None and self._may_join and shared.takes_more and _may_share(page):
                    return True
        return False

    def _done(self, page: ChangeFeedPage) -> ChangeFeedPage:
        """Note where the next reading begins."""
        self._request = attrs.evolve(
            self._request, start_position=FromContinuationToken(page.continuation_token)
        )
        return page


def _may_share(page: ChangeFeedPage) -> bool:
    """Return whether a table has caught up with a page, so that it may join the others."""
    told = page.diagnostics
    return page.idle and told.watermark is not None and not is_in_snapshot(page.continuation_token)
