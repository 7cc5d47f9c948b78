"""Makes the calls of one client: pages, plans, listings and look-ups.

Whatever is kept between calls belongs to `Calls`, so it can be thrown away as a whole (`interrupts.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import attrs

from multiclouddb_api import (
    Beginning,
    Capability,
    ChangeFeedPage,
    ChangeFeedRequest,
    ClientConfig,
    Dropped,
    EntireCollection,
    EntireDatabase,
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    FeedEnded,
    FromContinuationToken,
    Invalidated,
    LookupAnswer,
    MulticloudDbError,
    MulticloudDbKey,
    Now,
    OperationOptions,
    PhysicalPartition,
    PlannedPartition,
    ProviderOptions,
    Renamed,
    Resnapshot,
    ResourceAddress,
    Snapshot,
    TokenReport,
    invalid_request,
)
from multiclouddb_spi.abilities import CollectionPart, SupportsCollections, SupportsLookup, SupportsParts
from multiclouddb_spi.batch import Batch
from multiclouddb_spi.consumer_opener import ConsumerOpener, key_of
from multiclouddb_spi.continuation.entry import Stage
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import EndedFeed, FeedOver, Retired
from multiclouddb_spi.continuation.token import decode_token, encode_token
from multiclouddb_spi.contract import Feed, FeedSpec, PartitionState, Provider
from multiclouddb_spi.errors import user_errors
from multiclouddb_spi.faults import ProviderFault, unwritten
from multiclouddb_spi.fetching.consumer import Consumer
from multiclouddb_spi.fetching.fetcher import ReadContext, late_fault
from multiclouddb_spi.fetching.page_content import PageContent
from multiclouddb_spi.observing import Observing
from multiclouddb_spi.open_feed import FeedCache
from multiclouddb_spi.reading import unchanged
from multiclouddb_spi.reading.answers import Look, look_again
from multiclouddb_spi.reading.filling import Filling
from multiclouddb_spi.reading.page_builder import PageBuilder, Reading, finished
from multiclouddb_spi.reading.unchanged import Check
from multiclouddb_spi.request_check import check_plan, check_planned, require, spec_of
from multiclouddb_spi.retry import ATTEMPTS
from multiclouddb_spi.time_limits import Deadline

if TYPE_CHECKING:
    from multiclouddb_spi.token_report import Standing

T = TypeVar("T")
_PAGES_IN_BUFFER: Final = 4
"""A page has at most this part of the bytes that a client may buffer, unless the request says otherwise."""
_ENDS: Final = (Dropped, Renamed, Invalidated, FeedEnded)


@attrs.frozen(eq=False)
class _PageCall(Generic[T]):
    """A call for a page: what its caller asked for, and until when."""

    request: ChangeFeedRequest
    spec: FeedSpec
    options: OperationOptions
    view: Callable[[Batch, int, int], T]
    """Makes the page's values, as in `Engine.read`."""
    deadline: Deadline
    began: float
    """When the call began, by the monotonic clock."""


@attrs.frozen(eq=False)
class PartsFound:
    """Where a reading of a database begins, and what it may be divided into."""

    start: str
    """A token of the database."""
    feed: SupportsParts
    """The feed of the database."""
    collections: Mapping[str, CollectionPart]
    """As `SupportsParts.parts` returns them, asked after the start."""
    now: datetime | None
    """The service's time after that; None if it is not known."""


class Calls:
    """Makes calls until it is ended; the arguments are those of `Engine`."""

    def __init__(
        self,
        provider: Provider,
        config: ClientConfig,
        observing: Observing,
        *,
        executor: Executor | None = None,
        attempts: int = ATTEMPTS,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._provider, self._observing = provider, observing
        self.context = context = ReadContext.made(
            provider, config, observing, executor=executor, attempts=attempts, pause=pause
        )
        self.closed = context.closed
        self._fetcher, self.consumers = context.fetcher, context.consumers
        self._page_bytes = max(1, config.max_buffered_bytes // _PAGES_IN_BUFFER)
        self.feeds = FeedCache(self._fetcher.call, self.consumers.forget)
        self.pages = PageBuilder(
            provider.provider_id, self._fetcher, self.feeds, observing, config.headroom_warning_seconds
        )
        self._opener = ConsumerOpener(provider, self.feeds, self._fetcher, self.consumers)

    def interrupted(self) -> None:
        """Let the provider throw away what a call that was interrupted may have used."""
        self.context.interrupted()

    def end(self) -> None:
        """End all calls within a second, and free what they have kept."""
        self.context.end()
        self.feeds.close()

    def read_changes(self, request: ChangeFeedRequest, options: OperationOptions) -> ChangeFeedPage:
        """Return one page of events, as `MulticloudDbClient.read_changes` does."""
        reading = self.read(request, options, Batch.events)
        events = tuple(chain.from_iterable(reading.values))
        page = attrs.evolve(reading.page, events=events)
        self._observing.page(request.address, page)
        return page

    def read(
        self, request: ChangeFeedRequest, options: OperationOptions, view: Callable[[Batch, int, int], T]
    ) -> Reading[T]:
        """Return one page with the values that `view` makes, as `Engine.read` does."""
        began = time.monotonic()
        deadline = Deadline(began + options.timeout_seconds, options.progress)
        try:
            spec = spec_of(self._provider, request, "read_changes")
            with self._opener.open(request, spec, deadline, keeps=True) as consumer:
                if isinstance(consumer, EndedFeed):
                    return finished(consumer)
                call = _PageCall(request, spec, options, view, deadline, began)
                return self._used(consumer, call)
        except Exception:
            with user_errors(self._provider, "read_changes"):
                raise

    def _used(self, consumer: Consumer, call: _PageCall[T]) -> Reading[T]:
        """Read a page, and keep the consumer for the next call, also if this one fails.

        Its keys are the token of the page and, after a page without news, the token or start of the request,
        which may come again. After an error they are those of the request and the `skip_token` of the error.
        It is not kept if its feed may have been recreated or has ended, or if the page has the token of the
        request although something was read.
        """
        asked, skip = key_of(call.request, call.spec), None
        try:
            reading = self._reading(consumer, call)
        except Exception as error:
            # The next call takes over what still stands at the positions of its token.
            consumer.token = None
            if self.pages.forget_if_gone(consumer, self._fetcher.fault(error)):
                self.consumers.discard(consumer)
            else:
                if isinstance(error, MulticloudDbError):
                    skip = error.detail.skip_token
                self.consumers.put(consumer, *((asked,) if skip is None else (asked, skip)))
            raise
        page = reading.page
        if page.continuation_token != consumer.token or isinstance(consumer.state, FeedOver):
            self.consumers.discard(consumer)
            return reading
        if page.notices:
            consumer.prune()
        # A consumer may keep its token until something is delivered.
        told = reading.values or page.notices or page.partition_retired
        keys = (consumer.token,) if told or asked == consumer.token else (asked, consumer.token)
        self.consumers.put(consumer, *keys)
        return reading

    def _reading(self, consumer: Consumer, call: _PageCall[T]) -> Reading[T]:
        request, deadline, began = call.request, call.deadline, call.began
        check = unchanged.check(consumer, call.options, self.context, deadline)
        if check.page is not None:
            return Reading((), check.page)
        consumer.last_page = None
        lineage = consumer.state
        if isinstance(lineage, Retired):
            look = look_again(consumer, lineage, self.context, deadline)
            return self.pages.ended(consumer, look)
        if not isinstance(lineage, Lineage):
            return self.pages.ended(consumer, Look(lineage))
        if consumer.skipped:  # a separate page, so that the notice comes before the records after it
            return self.pages.reading(consumer, lineage, PageContent(), deadline, began)
        if lineage.waiting():
            lineage.check_waits()
            lineage.start_passed()
        if lineage.plan is not None:
            # The first read of one segment of a plan starts from a token. Without changes, a row that is
            # changed during the scan may be left out.
            from multiclouddb_spi.scan.start import announced

            is_whole = isinstance(request.start_position, Beginning | Snapshot) and lineage.listed()
            whole = bool(is_whole) and isinstance(request.scope, EntireCollection | EntireDatabase)
            if (started := announced(consumer.feed, lineage, whole=whole)) is not None:
                return self.pages.reading(consumer, lineage, started, deadline, began)
        if call.options.start_only and isinstance(request.start_position, Now):
            return self.pages.reading(consumer, lineage, PageContent(), deadline, began)
        return self._polled(consumer, lineage, check, call)

    def _polled(self, consumer: Consumer, lineage: Lineage, check: Check, call: _PageCall[T]) -> Reading[T]:
        request, deadline = call.request, call.deadline
        scope, width = request.scope, self.context.width
        filling = Filling(
            self.context, consumer, request.max_page_size or self._provider.page_records,
            request.max_page_bytes or self._page_bytes, call.view, deadline,
            wait=check.wait, on_expired=request.on_expired,
            single=isinstance(scope, PhysicalPartition) and not scope.with_descendants,
            now=lambda: self.feeds.soon(consumer.feed, deadline),
            leaves_out=not call.options.ask_all and unchanged.may_leave_out(lineage, width),
        )  # fmt: skip
        result = filling.run()
        if not result.in_hand() and (lineage.ends() or lineage.waiting() or lineage.plan):
            self._fetcher.pause_briefly()
        start = request.start_position
        recreated: MulticloudDbError | None = None
        gone = (result.failure or result.over or result.notices) and self.pages.is_gone(result)
        if gone and isinstance(start, FromContinuationToken):
            recreated = self._opener.recreated(consumer.feed, deadline)
        if recreated is not None and not result.count:
            raise recreated
        again = request.on_expired
        if isinstance(again, Resnapshot) and lineage.listed() and self.pages.has_expired(result):
            fresh = self._opener.snapshot(consumer.feed, again.snapshot, deadline)
            whole = isinstance(scope, EntireCollection | EntireDatabase)
            result = self.pages.begun_again(consumer, lineage, fresh, result, whole=whole)
            lineage = fresh
        if not result.count:
            self.pages.raise_failure(consumer, lineage, result, deadline)
        reading = self.pages.reading(consumer, lineage, result, deadline, call.began)
        if recreated is not None:
            # These are the last events of the earlier resource. The next read refuses the token, so no notice
            # says that the feed has ended.
            assert isinstance(start, FromContinuationToken)
            notices = tuple(each for each in reading.page.notices if not isinstance(each, _ENDS))
            page = attrs.evolve(reading.page, continuation_token=start.token, idle=False, notices=notices)
            return Reading(reading.values, page)
        stays = result.idle and unchanged.may_stay(lineage, width)
        consumer.last_page = unchanged.last_page(
            consumer, reading.page, result.due_at, check.mark, stays=stays
        )
        return reading

    def list_physical_partitions(
        self, address: ResourceAddress, options: OperationOptions
    ) -> tuple[str, ...]:
        """Return the ids of the open partitions, as `MulticloudDbClient.list_physical_partitions` does."""
        deadline = Deadline.after(options.timeout_seconds)

        def listed(feed: Feed) -> tuple[str, ...]:
            asked = feed.for_one_call()
            survey = opened.call("survey", lambda until: asked.survey({}, until))
            return tuple(
                feed.public_id(item.partition_id)
                for item in survey.present
                if item.state is PartitionState.OPEN
            )

        with user_errors(self._provider, "list_physical_partitions"):
            request = ChangeFeedRequest(address, Now())
            spec = spec_of(self._provider, request, "list_physical_partitions")
            with closing(self._opener.feed(spec, deadline)) as opened:
                return opened.use(listed)

    def plan_partitions(
        self, request: ChangeFeedRequest, options: OperationOptions, *, with_descendants: bool = False
    ) -> tuple[PlannedPartition, ...]:
        """Return one token per partition, as `MulticloudDbClient.plan_partitions` does."""
        if not isinstance(request.scope, EntireCollection):
            raise invalid_request(
                "ChangeFeedRequest.scope", "must be EntireCollection() to be planned", "omit the scope"
            )
        check_planned(request.start_position)
        deadline = Deadline.after(options.timeout_seconds)
        with (
            user_errors(self._provider, "plan_partitions"),
            self._opener.open(
                request, spec_of(self._provider, request, "plan_partitions"), deadline
            ) as consumer,
        ):
            if isinstance(consumer, EndedFeed) or not isinstance(consumer.state, Lineage):
                return ()
            check_plan(consumer.state.plan)
            from multiclouddb_spi.scan.start import segment_lineages

            segments = segment_lineages(consumer.feed, consumer.state, self._fetcher.call, deadline)
            parts = [
                (each.partition_id, consumer.alone(each))
                for each in consumer.state.listed()
                if each.stage is not Stage.WAIT
            ]
            return tuple(
                PlannedPartition(
                    consumer.feed.public_id(name),
                    consumer.partition_token(name, lineage, with_descendants=with_descendants),
                    is_segment,
                )
                for found, is_segment in ((parts, False), (segments, True))
                for name, lineage in found
            )

    def lookup(
        self,
        address: ResourceAddress,
        keys: Sequence[MulticloudDbKey],
        options: OperationOptions,
        provider_options: ProviderOptions | None,
    ) -> dict[MulticloudDbKey, LookupAnswer]:
        """Return the rows with these keys, as `MulticloudDbClient.lookup` does."""
        deadline = Deadline.after(options.timeout_seconds)
        with user_errors(self._provider, "lookup"):
            request = ChangeFeedRequest(address, Now(), provider_options=provider_options)
            spec = spec_of(self._provider, request, "lookup")
            require(self._provider, (Capability.LOOKUP,), spec.options, "lookup")
            with closing(self._opener.feed(spec, deadline)) as opened:
                return opened.use(lambda feed: self._looked_up(feed, keys, deadline))

    def _looked_up(
        self, feed: Feed, keys: Sequence[MulticloudDbKey], deadline: Deadline
    ) -> dict[MulticloudDbKey, LookupAnswer]:
        if not isinstance(feed, SupportsLookup):
            raise unwritten(type(feed), "lookup", "how to read single rows")
        found = dict[MulticloudDbKey, LookupAnswer]()
        left = list(dict.fromkeys(keys))
        while left:
            found |= self._fetcher.call(partial(_answers, feed, left, deadline), deadline)
            left = [key for key in left if key not in found]
            if left and deadline.passed():
                raise ProviderFault(late_fault())
        return {key: found[key] for key in keys}

    def collections(self, database: str | None, options: OperationOptions) -> list[ResourceAddress]:
        """Return the collections in any order, as `MulticloudDbClient.collections` does."""
        provider = self._provider
        if not isinstance(provider, SupportsCollections):
            raise MulticloudDbError(
                f"{provider.provider_id} does not list collections; name the one to follow",
                ErrorDetail(
                    ErrorCategory.UNSUPPORTED_CAPABILITY,
                    provider.provider_id,
                    "collections",
                    reason=ErrorReason.NOT_OFFERED,
                ),
            )
        deadline = Deadline.after(options.timeout_seconds)
        with user_errors(provider, "collections"):
            return self._fetcher.call(lambda: provider.collections(database, deadline), deadline)

    def parts(self, request: ChangeFeedRequest, options: OperationOptions) -> PartsFound:
        """Return where a reading of a database begins, and its collections after that.

        Args:
            request: The request of the database, with a time to begin at.
            options: The time limit.
        """
        deadline = Deadline.after(options.timeout_seconds)
        with user_errors(self._provider, "read_changes"):
            spec = spec_of(self._provider, request, "read_changes")
            with self._opener.open(request, spec, deadline) as consumer:
                assert not isinstance(consumer, EndedFeed)
                assert isinstance(consumer.state, Lineage)
                feed, start = consumer.feed, encode_token(consumer.envelope(consumer.state.to_json()))
                # Asked after the start, so that a collection that is dropped and made again has either
                # another incarnation in the answer, or a notice in the feed.
                found = self._asked_parts(feed, deadline)
                now = self._fetcher.call(lambda: feed.clock(deadline), deadline)
                return PartsFound(start, _with_parts(feed), found, now)

    def incarnations(self, request: ChangeFeedRequest, options: OperationOptions) -> Mapping[str, str | None]:
        """Return the collections that a database has now, each with its incarnation."""
        deadline = Deadline.after(options.timeout_seconds)
        with user_errors(self._provider, "read_changes"):
            spec = spec_of(self._provider, request, "read_changes")
            with closing(self._opener.feed(spec, deadline)) as opened:
                found = opened.use(lambda feed: self._asked_parts(feed, deadline))
                return {name: each.incarnation for name, each in found.items()}

    def _asked_parts(self, feed: Feed, deadline: Deadline) -> Mapping[str, CollectionPart]:
        return self._fetcher.call(lambda: _with_parts(feed).parts(deadline), deadline)

    def inspect(
        self,
        token: str,
        options: OperationOptions,
        key: MulticloudDbKey | None,
        provider_options: ProviderOptions | None,
    ) -> TokenReport:
        """Show what a token contains, as `MulticloudDbClient.inspect` does."""
        from multiclouddb_spi.token_report import check_provider, report

        deadline = Deadline.after(options.timeout_seconds)

        def describe(
            request: ChangeFeedRequest, standings: list[Standing]
        ) -> list[tuple[str, datetime | None]]:
            spec = spec_of(self._provider, request, "inspect")
            with closing(self._opener.feed(spec, deadline)) as opened:
                return opened.use(lambda feed: [each.describe(feed) for each in standings])

        envelope = decode_token(token)
        check_provider(self._provider.provider_id, envelope)
        with user_errors(self._provider, "inspect"):
            return report(
                envelope, token, key, provider_options,
                lambda request: self.read_changes(request, options), describe,
            )  # fmt: skip


def _answers(
    feed: SupportsLookup, keys: Sequence[MulticloudDbKey], deadline: Deadline
) -> Mapping[MulticloudDbKey, LookupAnswer]:
    """Return the service's answers for at least one key, and for no key that was not asked."""
    answers = feed.lookup(keys, deadline)
    if not answers:
        raise ProviderFault.of(
            ErrorCategory.TRANSIENT_FAILURE,
            "the service has answered for none of the keys; ask again, or for fewer keys",
            retryable=True,
        )
    if not answers.keys() <= set(keys):
        raise ProviderFault.of(
            ErrorCategory.PROVIDER_ERROR,
            "the provider answered for a key that was not asked; this is a defect of the provider",
        )
    return answers


def _with_parts(feed: Feed) -> SupportsParts:
    if not isinstance(feed, SupportsParts):
        raise ProviderFault.of(
            ErrorCategory.UNSUPPORTED_CAPABILITY,
            "positions of a database do not become positions of its collections here; read each of them with "
            "EntireCollection()",
            reason=ErrorReason.NOT_OFFERED,
        )
    return feed
