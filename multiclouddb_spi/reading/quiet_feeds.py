"""Returns the last idle page of a large feed again, after one call has found no newer changes."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import closing
from functools import partial
from typing import Final

import attrs

from multiclouddb_api import ChangeFeedPage, ChangeFeedRequest, FeedScope, FromContinuationToken
from multiclouddb_api.value import frozen
from multiclouddb_spi.abilities import SupportsChangeMark
from multiclouddb_spi.continuation.entry import Entry, Stage
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.contract import Feed, FeedSpec
from multiclouddb_spi.fetching.fetcher import ReadContext
from multiclouddb_spi.open_feed import OpenFeed
from multiclouddb_spi.reading.poll import Waiting
from multiclouddb_spi.time_limits import Deadline

_MOST: Final = 16
_MARK_SECONDS: Final = 1.0


@frozen
class _Idle:
    """An idle page, and the state of its feed."""

    page: ChangeFeedPage
    feed: Feed
    spec: FeedSpec
    scope: FeedScope  # a token of one scope must be refused for another scope
    mark: Hashable  # from the time before the page was read; None if no mark was requested


@frozen
class Check:
    """The result of one check: the seconds that are left to wait, and the page if nothing has changed."""

    wait: float
    page: ChangeFeedPage | None = None
    feed: Feed | None = None  # the feed that was asked for its mark, before anything is read
    mark: Hashable = None


class QuietFeeds:
    """Remembers the last idle pages of feeds that have more partitions than a call reads at once.

    A mark is requested only if the previous page was idle, so a busy feed needs no additional call. The mark
    is requested before the partitions are read. Therefore, if a change happens during the read, the next call
    gets a different mark and reads again.
    """

    def __init__(self, open_feed: Callable[[FeedSpec, Deadline], OpenFeed], context: ReadContext) -> None:
        self._open_feed, self._context = open_feed, context
        self.idle: OrderedDict[str, _Idle] = OrderedDict()
        self._lock = threading.Lock()

    def check(
        self, request: ChangeFeedRequest, spec: FeedSpec, wait: float, deadline: Deadline
    ) -> Check | None:
        """Find out whether the previous page can be returned again; None if nothing is known of it."""
        known = self._known(request, spec)
        if known is None:
            return None
        with closing(self._open_feed(spec, deadline)) as opened:
            feed = opened.feed
            if feed is not known.feed:
                return None
            assert isinstance(feed, SupportsChangeMark)
            ask, waiting, requests = feed.change_mark, Waiting(deadline, wait), 0
            while True:
                # Most of the call's time is reserved for the read, in case the service does not answer.
                soon = deadline.sooner(min(_MARK_SECONDS, deadline.remaining() / 4))
                try:
                    mark = self._context.fetcher.call(partial(ask, soon), soon)
                except Exception:  # noqa: BLE001 - the reading reports why the service does not answer
                    with self._lock:
                        self.idle.pop(known.page.continuation_token, None)
                    return Check(max(0.0, waiting.until - time.monotonic()))
                requests += 1
                left = max(0.0, waiting.until - time.monotonic())
                if known.mark is None or mark != known.mark:
                    return Check(left, None, feed, mark)
                if not left:
                    return Check(0.0, self._again(known, requests, time.monotonic() - waiting.began))
                self._context.pause(waiting.before_round())
                waiting.begin_round()

    def may_stay(self, lineage: Lineage) -> bool:
        """Return whether a call may leave this state as it is."""
        if len(lineage) <= self._context.width or lineage.audited is not None:
            return False
        # In every other state, each call has something to do: a scan, a search for children or for uncovered
        # partitions, or a partition that must be read first.
        return all(
            isinstance(each, Entry) and each.stage is Stage.READ and each.listed and not each.failed_last
            for each in lineage
        )

    def note(
        self,
        request: ChangeFeedRequest,
        feed: Feed,
        page: ChangeFeedPage,
        check: Check | None,
    ) -> None:
        """Remember an idle page if the next page may be equal to it."""
        if page.notices or not isinstance(feed, SupportsChangeMark):
            return
        mark = check.mark if check is not None and check.feed is feed else None
        self._keep(_Idle(page, feed, feed.spec, request.scope, mark))

    def _known(self, request: ChangeFeedRequest, spec: FeedSpec) -> _Idle | None:
        """Return the idle page from which the request's token comes."""
        position = request.start_position
        if not isinstance(position, FromContinuationToken):
            return None
        with self._lock:
            known = self.idle.get(position.token)
        if known is None or known.spec != spec or known.scope != request.scope:
            return None
        return known

    def _again(self, known: _Idle, requests: int, elapsed: float) -> ChangeFeedPage:
        """Return the previous idle page again, with the same token, because no position has moved."""
        self._keep(known)
        diagnostics = attrs.evolve(
            known.page.diagnostics, requests=requests, retries=0, native_charge=None, found_late=0,
            elapsed_seconds=elapsed,
        )  # fmt: skip
        return attrs.evolve(known.page, diagnostics=diagnostics)

    def _keep(self, idle: _Idle) -> None:
        with self._lock:
            self.idle[idle.page.continuation_token] = idle
            self.idle.move_to_end(idle.page.continuation_token)
            if len(self.idle) > _MOST:
                self.idle.popitem(last=False)
