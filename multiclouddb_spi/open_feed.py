"""Wraps one feed of a provider for the engine, Spark and the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import attrs

from multiclouddb_api import ErrorCategory, MulticloudDbError, Snapshot, invalid_request
from multiclouddb_spi.contract import Feed, FeedSpec, FeedStart, Provider
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.errors import cause_of, fault_of, user_errors
from multiclouddb_spi.faults import ProviderFault
from multiclouddb_spi.request_check import require_start
from multiclouddb_spi.retry import Call

__all__ = ["Keeper", "OpenFeed", "recreated"]

T = TypeVar("T")


class Keeper(Protocol):
    """Keeps opened feeds, so that callers with the same spec can share them."""

    is_new: bool
    """True if no feed was opened yet; an unknown host is then a mistake in the connection."""

    def acquire(self, spec: FeedSpec, open_feed: Callable[[], Feed]) -> tuple[Feed, bool]:
        """Return the feed for this spec, and whether this call opened it; the caller must release it."""
        ...

    def forget(self, feed: Feed) -> None:
        """Do not give this feed to other callers any more."""
        ...

    def release(self, feed: Feed) -> None:
        """End one use of this feed."""
        ...


class OpenFeed:
    """A feed that is opened when it is first used, with retries.

    If a feed has been open for some time, its resource may have been deleted and created again. Therefore, if
    a token or an id belongs to another resource, the feed is opened again before the token or id is refused.

    Args:
        provider: Opens the feed.
        spec: The spec of the feed, made by `spec_of` from a request that the provider can serve.
        make: The function that makes the calls, for example `Tries.call`.
        limit: The time limit. A `Deadline` limits all calls together, and the caller converts failures to
            errors for the user. A number of seconds limits each call separately, and a failed call raises the
            error for the user.
        keeper: Keeps the feed open for other callers. Without a keeper, `close` closes the feed.
    """

    def __init__(
        self,
        provider: Provider,
        spec: FeedSpec,
        make: Call,
        limit: Deadline | float,
        keeper: Keeper | None = None,
    ) -> None:
        self.provider, self.spec = provider, spec
        self._make, self._limit = make, limit
        self._keeper: Keeper = keeper or _Alone()
        self._feed: Feed | None = None

    @property
    def feed(self) -> Feed:
        """The opened feed."""
        return self._acquire()[0]

    def call(self, operation: str, ask: Callable[[Deadline], T]) -> T:
        """Call the provider or the feed, with retries.

        Args:
            operation: The name of the call, used in errors.
            ask: The function to call; it receives the deadline and may be called several times.

        Raises:
            MulticloudDbError: An error with a category, if `limit` is a number of seconds.
            Exception: Otherwise the error of the last attempt is raised unchanged.
        """
        limit = self._limit
        if isinstance(limit, Deadline):
            return self._make(lambda: ask(limit), limit)
        deadline = Deadline.after(limit)
        with user_errors(self.provider, operation):
            return self._make(lambda: ask(deadline), deadline)

    def use(self, begin: Callable[[Feed], T], check: Callable[[Feed], object] = lambda _: None) -> T:
        """Call `begin` with the feed, and return its result.

        A feed that was opened before this call is opened again in two cases: the feed does not
        match the token, or the feed's resource is not found.

        Args:
            begin: The function to call; it is called again if the feed is opened again.
            check: A function that raises a `MulticloudDbError` if the feed belongs to another resource.

        Raises:
            Exception: The error that `begin` or opening the feed raised.
        """
        feed, fresh = self._acquire()
        try:
            check(feed)
        except MulticloudDbError:
            if fresh:
                raise
            self.renew()
            feed, fresh = self._acquire()
            check(feed)
        try:
            return begin(feed)
        except Exception as error:
            if fault_of(self.provider, error).category != ErrorCategory.NOT_FOUND:
                raise
            if fresh:
                self.renew()
                raise
        self.renew()
        check(self.feed)
        return begin(self.feed)

    def check_resumes(self, incarnation: str | None, field: str, way_out: str) -> None:
        """Refuse a token or an id from another incarnation of the resource.

        `Feed.resumes` decides whether the feed accepts the incarnation.

        Args:
            incarnation: The incarnation of the token or id.
            field: The caller's name for the token or id, used in the error.
            way_out: What the user can do instead.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the resource was deleted and created again.
        """

        def check(feed: Feed) -> None:
            if not feed.resumes(incarnation):
                raise recreated(feed, field, way_out)

        self.use(lambda _: None, check)

    def check_start(self, position: FeedStart | Snapshot) -> None:
        """Refuse a start position that the provider does not support.

        Raises:
            MulticloudDbError: `UNSUPPORTED_CAPABILITY` with a message that says what to do instead.
        """
        require_start(self.provider, position, self.spec.options, "start")

    def renew(self) -> None:
        """Forget the feed, because its resource may have been deleted and created again."""
        if self._feed is not None:
            self._keeper.forget(self._feed)
        self.close()

    def close(self) -> None:
        """Release the feed; may be called more than once."""
        feed, self._feed = self._feed, None
        if feed is not None:
            self._keeper.release(feed)

    def _acquire(self) -> tuple[Feed, bool]:
        if self._feed is not None:
            return self._feed, False
        self._feed, fresh = self._keeper.acquire(self.spec, self._open)
        return self._feed, fresh

    def _open(self) -> Feed:
        return self.call("open", self._opened)

    def _opened(self, deadline: Deadline) -> Feed:
        try:
            return self.provider.open_feed(self.spec, deadline)
        except Exception as error:
            fault = fault_of(self.provider, error)
            if not (fault.unknown_host and self._keeper.is_new):
                raise
            wrong = attrs.evolve(fault, category=ErrorCategory.INVALID_REQUEST, retryable=False)
            raise ProviderFault(wrong) from cause_of(fault, error)


def recreated(feed: Feed, field: str, way_out: str) -> MulticloudDbError:
    """Make the error for a token or an id from another incarnation of the resource.

    `OpenFeed.check_resumes` raises this error.
    """
    problem = f"belongs to an earlier {feed.spec.address}, which was recreated under the same name"
    return invalid_request(field, problem, way_out)


class _Alone:
    """A keeper that keeps no feed."""

    is_new = False

    def acquire(self, spec: FeedSpec, open_feed: Callable[[], Feed]) -> tuple[Feed, bool]:
        del spec
        return open_feed(), True

    def forget(self, feed: Feed) -> None:
        del feed

    def release(self, feed: Feed) -> None:
        feed.close()
