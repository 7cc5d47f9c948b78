"""Defines the time limit of a call, and gives up an answer that does not arrive or arrives too slowly.

After an answer was given up, less is requested. A socket's own timeout is not sufficient, because it begins
again with each byte. The socket's owner asks `current` for the limits of the thread, so that no limit has to
be passed through the vendor's client. How long a call waits for a first event: `Waiting` in
`reading.filling`.
"""

from __future__ import annotations

import threading
import time
from typing import Final

import attrs
from attrs import frozen

from multiclouddb_api.progress import Progress


@frozen
class Deadline:
    """The time by which a call must end, on the monotonic clock; all parts of the call share the deadline.

    Attributes:
        at: The value of `time.monotonic()` by which the call must end.
        progress: What can end the call before, and what its waits are reported to, if anything.
    """

    at: float
    progress: Progress | None = attrs.field(default=None, eq=False, repr=False)

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return a deadline this many seconds from now.

        Args:
            seconds: The number of seconds.
        """
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Return the number of seconds that are left, which is never negative."""
        return max(0.0, self.at - time.monotonic())

    def passed(self) -> bool:
        """Return True if no time is left."""
        return time.monotonic() >= self.at

    def sooner(self, seconds: float) -> Deadline:
        """Return this deadline, or a deadline `seconds` from now if that is earlier.

        Args:
            seconds: The number of seconds from now.
        """
        return Deadline(min(self.at, time.monotonic() + seconds), self.progress)


ANSWER_SECONDS: Final = 60.0
"""How long a whole answer may take, from the request to the last byte."""
SILENT_SECONDS: Final = 10.0
"""How long the service may send nothing, in addition to the time for which it may wait for new records."""
CALL_SILENT_SECONDS: Final = 30.0
"""How long the service may send nothing if it is asked for other information than records."""
_WINDOW_SECONDS: Final = 4.0
_NEVER: Final = float("inf")
_LEAST_BYTES: Final = 1024
# An error message is shorter than this.
_ERROR_BYTES: Final = 8192
_SMALLER: Final = 2  # a quarter
_LARGER: Final = 1  # twice as much
_MOST: Final = 16  # one record of 100,000
_ARRIVED: Final = 4


class TooSlow(TimeoutError):  # noqa: N818
    """Raised while an answer is received, if the answer is given up."""


class Arrival:
    """The limits on the answers that one thread receives.

    An answer is given up in four cases: nothing arrives for `silence` seconds, fewer than 1024 bytes arrive
    in four seconds, the whole answer takes longer than `ANSWER_SECONDS`, or another thread has called
    `cancel` or closed the client. After that, every further answer is given up too, until `begin_call`.
    `received` is the number of bytes that have arrived of the longest answer in this call. It is None if the
    driver, or an application's own client, doesn't let them be counted.
    """

    __slots__ = (
        "_answer", "_before", "_cancelled", "_closed", "_count", "_end", "_over", "_silence", "_silent_at",
        "_wait", "_window_end", "received",
    )  # fmt: skip

    def __init__(self, closed: threading.Event | None = None) -> None:
        self._closed, self._cancelled = closed, False
        self._wait, self._silence = 0.0, SILENT_SECONDS
        self._over: str | None = None
        self._silent_at = self._end = self._window_end = _NEVER
        self._count = self._answer = 0
        self.received: int | None = None

    def begin_call(self, wait: float = 0.0, silence: float | None = None) -> None:
        """Begin a call, in which the service may `wait` for records and then send nothing for `silence`."""
        self._wait, self._silence, self._over = wait, SILENT_SECONDS if silence is None else silence, None
        self.received = None
        self._begin()

    def __enter__(self) -> Arrival:
        """Apply the limits to all answers that this thread receives in the `with` block."""
        self._before: Arrival | None = getattr(_local, "arrival", None)
        _local.arrival = self
        return self

    def __exit__(self, *_: object) -> None:
        _local.arrival = self._before

    @property
    def cancelled(self) -> bool:
        """True if another thread has called `cancel` or has closed the client."""
        return self._cancelled or (self._closed is not None and self._closed.is_set())

    def cancel(self) -> None:
        """Give up this and every later answer, within a quarter of a second; any thread may call this."""
        self._cancelled = True

    def begin(self) -> None:
        """Begin to wait for one answer, whose bytes are counted."""
        self.received = self.received or 0
        self._begin()

    def _begin(self) -> None:
        now = time.monotonic()
        self._silent_at = now + self._wait + self._silence
        self._end = now + self._wait + max(ANSWER_SECONDS, self._silence)
        self._window_end, self._count, self._answer = _NEVER, 0, 0

    def heard(self, nbytes: int) -> None:
        """Record that some bytes of the answer have arrived."""
        now = time.monotonic()
        self._silent_at = now + self._silence
        if self._window_end == _NEVER:
            self._window_end = now + _WINDOW_SECONDS
        self._count += nbytes
        self._answer += nbytes
        self.received = max(self.received or 0, self._answer)

    def check(self) -> None:
        """Raise `TooSlow` if the answer is given up."""
        if self._over is None:
            self._over = self._reason(time.monotonic())
        if self._over is not None:
            raise TooSlow(self._over)

    def _reason(self, now: float) -> str | None:
        if self.cancelled:
            return "the read was cancelled"
        if now >= self._silent_at:
            return f"the service sent nothing for {self._silence:.0f} s, so its connection is not used again"
        if now >= self._window_end:
            if self._count < _LEAST_BYTES:
                return f"the answer arrives too slowly: {self._count} bytes in {_WINDOW_SECONDS:.0f} s"
            self._window_end, self._count = now + _WINDOW_SECONDS, 0
        return "the answer took too long to arrive" if now >= self._end else None


def answer_deadline(deadline: Deadline) -> Deadline:
    """Return the time by which an answer must arrive that is requested now; it may be for the next call."""
    return Deadline(max(deadline.at, time.monotonic() + ANSWER_SECONDS))


_local = threading.local()


def current() -> Arrival | None:
    """Return the limits of this thread, or None."""
    found: Arrival | None = getattr(_local, "arrival", None)
    return found


class Counting:
    """Whether the bytes of a client's answers are counted, which its first answer shows."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = False

    def received(self, arrival: Arrival) -> int | None:
        """Return how many bytes arrived of the longest answer in a call, or None if nobody counts them.

        A call that did not reach the server has no answer, so it does not show whether they are counted.
        """
        self._counts = self._counts or arrival.received is not None
        return arrival.received or 0 if self._counts else None


class AnswerSize:
    """The size of the answers to request from one partition: a part of what the caller wants."""

    __slots__ = ("_arrived", "_shift", "_uncounted")

    def __init__(self) -> None:
        self._shift = self._arrived = self._uncounted = 0

    @property
    def is_full(self) -> bool:
        """True if the caller gets as much as it wants."""
        return not self._shift

    def of(self, wanted: int) -> int:
        """Return how much to request."""
        return max(1, wanted >> self._shift)

    def failed(self, received: int | None) -> None:
        """Record that a read has failed with an error that may pass, or was given up after too long a time.

        If the connection has broken within an answer, the next one is a quarter as large. If nobody counts
        bytes, that may have happened; then this begins with the second failure of the same answer, because a
        server that is down fails in the same way.

        Args:
            received: See `Counting.received`.
        """
        if received is None:
            broken, self._uncounted = self._uncounted > 0, self._uncounted + 1
        else:
            broken = received >= _ERROR_BYTES
        if broken:
            self._shift, self._arrived = min(_MOST, self._shift + _SMALLER), 0

    def succeeded(self, nbytes: int, caught_up: bool) -> None:
        """Record that an answer has arrived; after four with records, the next is twice as large.

        Args:
            nbytes: The memory that its records took, also of those that the reader has left out.
            caught_up: True if the partition has no more records, so no answer can have been cut before.
        """
        # A stream that is opened again may begin with an empty answer before the one that is cut.
        if nbytes or caught_up:
            self._uncounted = 0
        if nbytes and self._shift:
            self._arrived += 1
            if self._arrived >= _ARRIVED:
                self._shift, self._arrived = max(0, self._shift - _LARGER), 0
