"""What the readers of one change stream share."""

from __future__ import annotations

import threading
from weakref import WeakSet

from multiclouddb_api import ErrorCategory
from multiclouddb_spanner.catalog import Found, how_to_create, is_whole
from multiclouddb_spanner.client import Calls
from multiclouddb_spanner.errors import (
    earliest_of,
    interval_of,
    is_foreign_partition,
    is_outside_partition,
    is_past,
    is_without_stream,
)
from multiclouddb_spanner.hold import Hold
from multiclouddb_spanner.position import micros_of, text_at
from multiclouddb_spanner.query import Window, list_partitions, open_window
from multiclouddb_spanner.records import Shape, Shapes
from multiclouddb_spi import Deadline, ProviderFault, Reader

__all__ = ["Slots", "Source"]

_SECOND = 1_000_000
# What the oldest moment may differ from now less the retention, when it is that which bounds it.
_SLACK = 60 * _SECOND
# A start at the oldest change keeps so far away from the edge of retention at least: the edge moves on while
# partitions are read for the first time. And twice as far as the call may take.
_MARGIN = 60 * _SECOND
_MOST_MOVES = 3


class Slots:
    """How many answers may stay open between two reads: each holds a stream of the one connection.

    A connection carries a hundred streams at a time; a hundred and first would wait for another to end.

    Args:
        most: How many.
    """

    def __init__(self, most: int) -> None:
        self._free = threading.Semaphore(most)

    def take(self) -> bool:
        """Take one, if one is free."""
        return self._free.acquire(blocking=False)

    def give(self) -> None:
        """Give it back."""
        self._free.release()


class Source:
    """One change stream, and the table that is wanted of it.

    Args:
        calls: The database.
        found: The stream.
        slots: The client's.
    """

    def __init__(self, calls: Calls, found: Found, slots: Slots) -> None:
        self.calls, self.found, self.slots = calls, found, slots
        self.shapes = Shapes()
        self.readers: WeakSet[Reader] = WeakSet()
        self.whole = found.whole
        self._checked: WeakSet[Shape] = WeakSet()

    def partitions(self, at: int, deadline: Deadline, hold: Hold) -> list[str]:
        """The partitions that are alive at a moment."""
        return list_partitions(self.calls, self.found, at, deadline, hold)

    def window(
        self,
        token: str,
        start: int,
        end: int,
        deadline: Deadline,
        hold: Hold,
        *,
        waits: float = 0.0,
        current: bool = False,
    ) -> Window:
        """Begin to read a partition; see `open_window`."""
        calls, found, shapes = self.calls, self.found, self.shapes
        return open_window(
            calls, found, token, start, end, deadline, hold, shapes, waits=waits, current=current
        )

    def earliest(self, now: int, deadline: Deadline, hold: Hold) -> int:
        """The oldest moment that can be read.

        Args:
            now: The service's time.
            deadline: When it has to be over.
            hold: Who asks.
        """
        bound = now - self.found.retention * _SECOND
        try:
            self.partitions(bound, deadline, hold)
        except Exception as error:
            if not is_past(error):
                raise
            told = earliest_of(error)
            return self._search(bound, now, deadline, hold) if told is None else micros_of(told, up=True)
        return bound

    def oldest(self, now: int, deadline: Deadline, hold: Hold) -> tuple[int, list[str]]:
        """The oldest moment that a start can read every partition at, and the partitions alive then.

        Where retention bounds what can be read, that is a margin later: the bound moves on meanwhile. Where
        the stream's creation does, it stands still, and nothing is left out.

        Args:
            now: The service's time.
            deadline: When it has to be over.
            hold: Who asks.
        """
        kept = self.found.retention * _SECOND
        margin = round(min(max(_MARGIN, 2 * deadline.remaining() * _SECOND), kept / 10))
        at = max(self.earliest(now, deadline, hold), now - kept + margin)
        for _ in range(_MOST_MOVES):
            try:
                return at, self.partitions(at, deadline, hold)
            except Exception as error:
                if not is_past(error):
                    raise
                # The retention period was made shorter.
                told = earliest_of(error)
                at = (at if told is None else micros_of(told, up=True)) + margin
        return at, self.partitions(at, deadline, hold)

    def _search(self, before: int, behind: int, deadline: Deadline, hold: Hold) -> int:
        """The same where the service does not say it: by halves, to the microsecond."""
        while behind - before > 1:
            middle = (before + behind) // 2
            try:
                self.partitions(middle, deadline, hold)
                behind = middle
            except Exception as error:
                if not is_past(error):
                    raise
                before = middle
        return behind

    def is_recreated(self, earliest: int, now: int) -> bool:
        """Whether a position before the oldest moment is of an earlier stream of the same name.

        Retention moves the oldest moment to now less its length. Where it lies later, the stream began there.
        """
        return earliest > now - self.found.retention * _SECOND + _SLACK

    def interval(self, token: str, now: int, deadline: Deadline, hold: Hold) -> tuple[int, int] | None:
        """When a partition began and how far it has come; None for what is none of this stream.

        The service says it when a partition is read at a moment that it does not have. Where it says nothing,
        the beginning is searched for in what the stream holds.

        Args:
            token: The partition.
            now: The service's time.
            deadline: When it has to be over.
            hold: Who asks.
        """
        earliest = self.earliest(now, deadline, hold)
        for at in (earliest, now):
            error = self._refusal(token, at, deadline, hold)
            if error is None and at == earliest:
                return earliest, now
            if error is not None and is_foreign_partition(error):
                return None
            told = interval_of(error) if error is not None else None
            if told is not None:
                return micros_of(told[0], up=True), micros_of(told[1])
        if error is not None:
            return None
        before, behind = earliest, now
        while behind - before > 1:
            middle = (before + behind) // 2
            if self._refusal(token, middle, deadline, hold) is None:
                behind = middle
            else:
                before = middle
        return behind, now

    def _refusal(self, token: str, at: int, deadline: Deadline, hold: Hold) -> Exception | None:
        """Why a partition cannot be read at a moment; None when it can."""
        window = self.window(token, at, at, deadline, hold)
        try:
            while window.next() is not None:
                pass
        except Exception as error:
            if not (is_outside_partition(error) or is_foreign_partition(error) or is_past(error)):
                raise
            return error
        finally:
            window.cancel()
        return None

    def watches_whole(self, shape: Shape, deadline: Deadline, hold: Hold) -> bool:
        """Whether rows with these columns are whole: a stream may be altered while it is read.

        It is asked again at each shape that is new, but for the first.
        """
        if shape not in self._checked:
            if self._checked and self.whole:
                self.whole = is_whole(self.calls, self.found, deadline, hold)
            self._checked.add(shape)
        return self.whole

    # -- Errors whose meaning depends on the call

    def translated(
        self, error: Exception, at: int, deadline: Deadline, hold: Hold, token: str | None = None
    ) -> ProviderFault | None:
        """What an error of a read means; None for what `classify` says.

        Args:
            error: What gRPC raised.
            at: Where the read began.
            deadline: When it has to be over.
            hold: Who reads.
            token: The partition that a position is of; None for a start.
        """
        name = self.found.stream
        if is_without_stream(error):
            return ProviderFault.of(
                ErrorCategory.NOT_FOUND,
                f"change stream {name!r} was dropped; create it and start again: "
                f"{how_to_create(self.found.table, postgres=self.found.postgres)}",
            )
        if is_foreign_partition(error):
            return ProviderFault.of(
                ErrorCategory.INVALID_REQUEST,
                f"partition {_short(token)} is none of change stream {name!r}: it is of another one, or of "
                "an earlier one that was recreated under the same name; start again",
            )
        if is_past(error):
            return self._past(error, at, deadline, hold, resumes=token is not None)
        if is_outside_partition(error):
            return ProviderFault.of(
                ErrorCategory.INVALID_REQUEST,
                f"partition {_short(token)} of change stream {name!r} has nothing at {text_at(at)}: it began "
                "later or had ended; pass a token as it was returned, or start again",
            )
        return None

    def _past(
        self, error: Exception, at: int, deadline: Deadline, hold: Hold, *, resumes: bool
    ) -> ProviderFault:
        name = self.found.stream
        now = self.calls.now(deadline, hold)
        told = earliest_of(error)
        earliest = self.earliest(now, deadline, hold) if told is None else micros_of(told, up=True)
        if resumes and self.is_recreated(earliest, now):
            return ProviderFault.of(
                ErrorCategory.INVALID_REQUEST,
                f"change stream {name!r} holds nothing before {text_at(earliest)}, when it was created, and "
                f"this position is of {text_at(at)}: it is of an earlier stream that was recreated under the "
                "same name; start again: what the old one held is gone",
            )
        return ProviderFault.of(
            ErrorCategory.CHECKPOINT_EXPIRED,
            f"change stream {name!r} holds nothing before {text_at(earliest)}, and this position is of "
            f"{text_at(at)}; start again, or read with on_expired=SkipToOldest() to go on behind the gap; a "
            "longer retention_period keeps more",
        )


def _short(token: str | None) -> str:
    return "(none)" if token is None else f"{token[:12]}…"
