"""A provider and its feed, one for each set of options in each of Spark's worker processes.

Spark unpickles a reader anew for every task, but keeps the process: what is opened here is used by
the tasks that follow. Nothing is opened at import, because workers are forked.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeVar

from multiclouddb_api import AtTime, Beginning, Capability
from multiclouddb_spi import (
    Deadline,
    Feed,
    FeedStart,
    Lineage,
    Planner,
    Provider,
    Target,
    open_provider,
)
from multiclouddb_spi.calling import call
from multiclouddb_spi.failure import fault_of
from multiclouddb_spi.gate import require, spec_of
from pyspark_multiclouddb.options import Settings

__all__ = ["Connection", "close_connections", "connection_for"]

T = TypeVar("T")

_CALL_SECONDS: Final = 120.0
_TRIES: Final = 100
_LOG: Final = logging.getLogger("multiclouddb.spark")

_open: dict[Settings, Connection] = {}
_pid = 0


class Connection:
    """One provider and one feed of it. Used by one thread.

    Args:
        settings: The options.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.provider: Provider = open_provider(settings.config)
        self._spec = spec_of(self.provider, settings.request(), "open")
        self._feed: Feed | None = None

    @property
    def feed(self) -> Feed:
        """The feed, opened at the first use."""
        if self._feed is None:
            self._feed = self.call("open", lambda deadline: self.provider.open_feed(self._spec, deadline))
        return self._feed

    @property
    def incarnation(self) -> str | None:
        """Which incarnation of the resource the feed is of."""
        return self.feed.identity.incarnation

    def resumes(self, incarnation: str | None) -> bool:
        """Whether what was planned on an incarnation goes on here, as `Feed.resumes` says it.

        A feed that was opened long ago may be of an earlier one: it is opened again before the answer is no.
        """
        if not self.feed.resumes(incarnation):
            self.renew_feed()
        return self.feed.resumes(incarnation)

    def renew_feed(self) -> None:
        """Forget the feed: the resource may be another one by now."""
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()

    def start(self, position: FeedStart) -> Lineage:
        """Resolve a start, if the database can start there."""
        match position:
            case Beginning():
                self._require(Capability.CHANGE_FEED_BEGINNING)
            case AtTime():
                self._require(Capability.CHANGE_FEED_POINT_IN_TIME)
            case _:
                pass
        return self.plan(
            "start", lambda planner, deadline: planner.start(position, deadline, "startingPosition")
        )

    def target_at(self, moment: datetime) -> Target:
        """The end of the feed as it was at a moment, if the database can tell."""
        self._require(Capability.CHANGE_FEED_POINT_IN_TIME)
        return self.plan(
            "plan", lambda planner, deadline: planner.target_at(moment, deadline, "endingPosition")
        )

    def plan(self, operation: str, ask: Callable[[Planner, Deadline], T]) -> T:
        """Ask a planner over the feed.

        Args:
            operation: What is asked, for errors.
            ask: Gets the planner; may be called several times.
        """
        config = self._settings.config
        planner = Planner(
            self.provider,
            self.feed,
            self._settings.on_expired,
            watch_seconds=config.child_watch_seconds,
            audit_seconds=config.coverage_audit_seconds,
        )
        return self.call(operation, lambda deadline: ask(planner, deadline))

    def call(self, operation: str, ask: Callable[[Deadline], T]) -> T:
        """Call the provider; an outage of up to two minutes is waited out, since Spark retries nothing.

        Raises:
            MulticloudDbError: By category.
        """
        return call(self.provider, operation, ask, _CALL_SECONDS, attempts=_TRIES, told=self._told)

    def close(self) -> None:
        """Free everything; idempotent."""
        self._feed = None
        self.provider.close()

    def _require(self, capability: Capability) -> None:
        require(self.provider, capability, self._spec.options, "start")

    def _told(self, attempt: int, seconds: float, error: Exception) -> None:
        fault = fault_of(self.provider, error)
        _LOG.warning("try %d of a call failed (%s), next in %.1f s", attempt, fault.message, seconds)


def connection_for(settings: Settings) -> Connection:
    """The connection of this process for these options, made at the first use."""
    global _pid
    if _pid != os.getpid():
        # Of the parent process: not ours to close.
        _open.clear()
        _pid = os.getpid()
    connection = _open.get(settings)
    if connection is None:
        connection = _open[settings] = Connection(settings)
    return connection


def close_connections() -> None:
    """Close the connections of this process; the next use opens others."""
    while _open:
        _, connection = _open.popitem()
        if _pid == os.getpid():
            connection.close()


atexit.register(close_connections)
