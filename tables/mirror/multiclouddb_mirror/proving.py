"""Follows a collection, and compares every row of the table from time to time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, Timer
from typing import TYPE_CHECKING

import attrs

from multiclouddb_mirror.mirroring import Mirror
from multiclouddb_mirror.report import MirrorReport
from multiclouddb_mirror.settings import MirrorSettings

if TYPE_CHECKING:
    from multiclouddb_verify import Report

__all__ = ["ProvedMirror"]


class ProvedMirror:
    """A mirror that follows until it is stopped, with a proof whenever one is due.

    It follows until then; the proof goes on merging, and the next run begins where it has ended.

    Args:
        made: Makes the mirror of one run.
        settings: The settings of each run, without `follow` and `prove`.
        seconds: The time from the end of one proof to the beginning of the next.
        on_run: Called after each run, with its report; that of a proof has one.
        turn: Only who holds it proves, so that several tables prove one after the other.
    """

    def __init__(
        self,
        made: Callable[[MirrorSettings], Mirror],
        settings: MirrorSettings,
        seconds: float,
        on_run: Callable[[MirrorReport], None],
        turn: Lock | None = None,
    ) -> None:
        self._made, self._settings, self._seconds = made, settings.copy(), seconds
        self._on_run, self._turn = on_run, turn or Lock()
        self._stopped, self._guard = Event(), Lock()
        self._has_turn = self._proves = False
        self._job = self._next()

    def stop(self) -> None:
        """End the run after the page that is being merged; any thread or signal handler may call this."""
        self._stopped.set()
        self._job.stop()

    def run(self) -> MirrorReport:
        """Follow; after an error, another call goes on.

        Returns:
            The report of the last run, with the last proof.
        """
        proof: Report | None = None
        try:
            while True:
                if self._stopped.is_set():  # meanwhile
                    self._job.stop()
                with self._until_due():
                    report = self._job.run()
                self._on_run(report)
                proof = report.proof or proof
                if self._stopped.is_set():
                    return attrs.evolve(report, proof=proof)
                # What is done once was done by the first run.
                self._settings.update({"resync": False, "refill": False})
                self._turn_over(proves=not self._proves)
        except BaseException:
            if self._proves:
                self._turn_over(proves=False)
            raise
        finally:
            if self._has_turn:
                self._has_turn = False
                self._turn.release()

    def _turn_over(self, *, proves: bool) -> None:
        self._proves = proves
        self._job = self._next()
        if not proves and self._has_turn:
            self._has_turn = False
            self._turn.release()

    def _next(self) -> Mirror:
        settings = self._settings.copy()
        settings.update({"follow": not self._proves, "prove": self._proves})
        return self._made(settings)

    @contextmanager
    def _until_due(self) -> Iterator[None]:
        """Stop the mirror that follows in the block when a proof is due, and no other table proves."""
        if self._proves:
            yield
            return
        job, over = self._job, Event()

        def due() -> None:
            self._turn.acquire()
            with self._guard:
                if over.is_set():
                    self._turn.release()
                    return
                self._has_turn = True
            job.stop()

        timer = Timer(self._seconds, due)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            with self._guard:
                over.set()
