"""One feed of a provider, in the form that the engine, Spark and the command line use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from multiclouddb_api import ErrorCategory, Snapshot, invalid_request
from multiclouddb_spi.contract import Feed, FeedSpec, FeedStart, Provider
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.errors import fault_of, user_errors
from multiclouddb_spi.request_check import require_start
from multiclouddb_spi.retry import Call

__all__ = ["Keeper", "OpenFeed", "check_resumes"]

T = TypeVar("T")


class Keeper(Protocol):
    """Keeps opened feeds so that other callers with the same spec can use them."""

    def acquire(self, spec: FeedSpec, open_feed: Callable[[], Feed]) -> tuple[Feed, bool]:
        """The feed of this spec, which the caller must release, and whether this call opened it."""
        ...

    def forget(self, feed: Feed) -> None:
        """Give this feed to no other caller from now on."""
        ...

    def release(self, feed: Feed) -> None:
        """End one use of this feed."""
        ...


class OpenFeed:
    """A feed that is opened at the first use, with retries.

    If a feed has been open for long, its resource may have been recreated in the meantime. So the feed is
    opened again before a token or an id is refused because it belongs to another resource.

    Args:
        provider: Opens the feed.
        spec: The spec of the feed, made by `spec_of` from a request that the provider can serve.
        make: Makes the calls.
        limit: The time limit. A `Deadline` limits all calls together, and then the caller itself makes the
            user's errors. A number of seconds limits each call, and then a call raises the user's error.
        keeper: Keeps the feed for other callers. Without one, `close` closes the feed.
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
        """The feed."""
        return self._acquire()[0]

    def call(self, operation: str, ask: Callable[[Deadline], T]) -> T:
        """Ask the provider or the feed, with retries.

        Args:
            operation: The name of the call, for errors.
            ask: The question; it gets the deadline and may be called several times.

        Raises:
            MulticloudDbError: With a category, if `limit` is in seconds.
            Exception: Otherwise the error of the last attempt.
        """
        limit = self._limit
        if isinstance(limit, Deadline):
            return self._make(lambda: ask(limit), limit)
        deadline = Deadline.after(limit)
        with user_errors(self.provider, operation):
            return self._make(lambda: ask(deadline), deadline)

    def use(self, begin: Callable[[Feed], T], suits: Callable[[Feed], bool] = lambda _: True) -> T:
        """Call `begin` with the feed, and return its result.

        A feed that was opened before this call is opened again if it does not suit or its resource is not
        found.

        Args:
            begin: The call. It is repeated if the feed is opened again.
            suits: Returns True if a feed that was opened before this call belongs to the right resource.

        Raises:
            Exception: The error of `begin`, or of opening the feed.
        """
        feed, fresh = self._acquire()
        try:
            if fresh or suits(feed):
                return begin(feed)
        except Exception as error:
            if fault_of(self.provider, error).category != ErrorCategory.NOT_FOUND:
                raise
            if fresh:
                self.renew()
                raise
        self.renew()
        return begin(self.feed)

    def check_resumes(self, incarnation: str | None, field: str, way_out: str) -> None:
        """Refuse a token or an id of another incarnation of the resource, as `Feed.resumes` decides.

        Args:
            incarnation: The incarnation of the token or id.
            field: The caller's name for it, for the error.
            way_out: The alternative for the user.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` for a resource that was recreated.
        """
        self.use(
            lambda feed: check_resumes(feed, incarnation, field, way_out),
            lambda feed: feed.resumes(incarnation),
        )

    def check_start(self, position: FeedStart | Snapshot) -> None:
        """Refuse a start that the provider does not support.

        Raises:
            MulticloudDbError: `UNSUPPORTED_CAPABILITY` with the way out.
        """
        require_start(self.provider, position, self.spec.options, "start")

    def renew(self) -> None:
        """Forget the feed, because its resource may have been recreated."""
        if self._feed is not None:
            self._keeper.forget(self._feed)
        self.close()

    def close(self) -> None:
        """Release the feed; idempotent."""
        feed, self._feed = self._feed, None
        if feed is not None:
            self._keeper.release(feed)

    def _acquire(self) -> tuple[Feed, bool]:
        if self._feed is not None:
            return self._feed, False
        self._feed, fresh = self._keeper.acquire(self.spec, self._open)
        return self._feed, fresh

    def _open(self) -> Feed:
        return self.call("open", lambda deadline: self.provider.open_feed(self.spec, deadline))


def check_resumes(feed: Feed, incarnation: str | None, field: str, way_out: str) -> None:
    """As `OpenFeed.check_resumes`, for this feed."""
    if not feed.resumes(incarnation):
        problem = f"is of an earlier {feed.spec.address} that was recreated under the same name"
        raise invalid_request(field, problem, way_out)


class _Alone:
    """Keeps no feed."""

    def acquire(self, spec: FeedSpec, open_feed: Callable[[], Feed]) -> tuple[Feed, bool]:
        del spec
        return open_feed(), True

    def forget(self, feed: Feed) -> None:
        del feed

    def release(self, feed: Feed) -> None:
        feed.close()
