"""Notices, while a stream is idle, that its feed may have changed; the planner decides whether it has."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Hashable
from typing import Final, Protocol

from multiclouddb_spi import Deadline, Feed, SupportsChangeMark
from multiclouddb_spi.batch import Continue
from multiclouddb_spi.continuation.entry import Entry, Stage
from multiclouddb_spi.continuation.lineage import Lineage

_LOG: Final = logging.getLogger("multiclouddb.spark")
# A store in this process is asked for its mark 25 times a second, for one hundredth of a core.
_LOOK_SECONDS: Final = 0.04
_MARK_SECONDS: Final = 1.0
# A fetch that ends early without a change is not repeated before this number of seconds.
_PAUSE_SECONDS: Final = 0.5
_SPARE_SECONDS: Final = 30.0


class Watch(Protocol):
    """Waits for a hint that a feed may have changed. An error is a hint too, because the planner meets it."""

    def wait(self, seconds: float) -> bool:
        """Return True as soon as there is a hint, and False after this number of seconds."""

    def close(self) -> None:
        """Stop waiting; may be called more than once."""


class MarkWatch:
    """Compares the change mark of a feed with the one from before the feed was planned."""

    def __init__(self, feed: SupportsChangeMark, mark: Hashable) -> None:
        self._feed, self._mark = feed, mark

    def wait(self, seconds: float) -> bool:
        """Ask for the mark again and again, in the caller's thread."""
        until = time.monotonic() + seconds
        while True:
            try:
                if self._feed.change_mark(Deadline.after(_MARK_SECONDS)) != self._mark:
                    return True
            except Exception:  # noqa: BLE001 - the planner meets the error, and raises it
                return True
            left = until - time.monotonic()
            time.sleep(max(0.0, min(_LOOK_SECONDS, left)))
            if left <= _LOOK_SECONDS:
                return False

    def close(self) -> None:
        """Do nothing, because no thread is running."""


class ReadWatch:
    """Reads the next change after a position in a thread, while the service makes the reader wait."""

    def __init__(self, feed: Feed, entry: Entry) -> None:
        self._reader = feed.open(entry.partition_id, entry.cursor)
        self._seconds = feed.longest_wait()
        self._hint, self._closed, self._pid = threading.Event(), threading.Event(), os.getpid()
        threading.Thread(target=self._run, name="multiclouddb-watch", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Wait for the thread."""
        # The thread does not exist in a forked process.
        return os.getpid() != self._pid or self._hint.wait(seconds)

    def close(self) -> None:
        """End the thread, which closes its reader within a second."""
        if not self._closed.is_set() and os.getpid() == self._pid:
            self._closed.set()
            self._reader.cancel()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                began = time.monotonic()
                deadline = Deadline.after(self._seconds + _SPARE_SECONDS)
                batch = self._reader.fetch(1, 1, self._seconds, deadline)
                if len(batch) or batch.notices or not isinstance(batch.outcome, Continue):
                    break
                pause = max(_PAUSE_SECONDS, batch.poll_after) - (time.monotonic() - began)
                self._closed.wait(max(0.0, pause))
        except Exception as error:  # noqa: BLE001 - the planner meets the error, and raises it
            _LOG.debug("waiting for a change has ended: %s", type(error).__name__)
        finally:
            self._hint.set()
            self._reader.close()


def watch_after(feed: Feed, lineage: Lineage, mark: Hashable) -> Watch | None:
    """Return a watch for the first change after these positions, or None if the feed has to be polled.

    Args:
        feed: The feed.
        lineage: The positions, after which the planner has found no change.
        mark: The change mark of the feed from before it was planned; None if it has no marks.
    """
    if mark is not None and isinstance(feed, SupportsChangeMark):
        return MarkWatch(feed, mark)
    entries = list(lineage)
    if not feed.waits_at_service or lineage.plan is not None or len(entries) != 1:
        return None
    [entry] = entries
    return ReadWatch(feed, entry) if isinstance(entry, Entry) and entry.stage is Stage.READ else None
