"""A polling loop over `read_changes`: backs off, retries, keeps a checkpoint."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from types import TracebackType
from typing import Literal, Protocol, TypedDict

import attrs

from multiclouddb_api.checkpoint import CheckpointStore
from multiclouddb_api.checkpointer import Checkpointer
from multiclouddb_api.errors import MulticloudDbError, invalid_request
from multiclouddb_api.event import ChangeEvent
from multiclouddb_api.notice import FeedEnded
from multiclouddb_api.options import OperationOptions
from multiclouddb_api.pacing import PollSchedule, Timer
from multiclouddb_api.page import ChangeFeedPage
from multiclouddb_api.position import FromContinuationToken, Now, StartPosition
from multiclouddb_api.request import ChangeFeedRequest
from multiclouddb_api.snapshot import Resnapshot, Snapshot
from multiclouddb_api.validators import at_least, is_a, not_blank, one_of

__all__ = ["ChangeFeedIterator", "IteratorSettings", "ReadsChanges"]


class ReadsChanges(Protocol):
    """The part of a client that an iterator uses."""

    def read_changes(
        self, request: ChangeFeedRequest, options: OperationOptions | None = None
    ) -> ChangeFeedPage:
        """See `MulticloudDbClient.read_changes`."""
        ...


class IteratorSettings(TypedDict, total=False):
    """The keyword settings of `ChangeFeedIterator`, which describes them."""

    timeout_seconds: float
    wait_seconds: float
    until_idle: bool
    idle_backoff_seconds: float
    max_idle_backoff_seconds: float
    max_outage_seconds: float
    checkpoint_store: CheckpointStore | None
    checkpoint_name: str | None
    checkpoint_interval_seconds: float
    on_poison: Literal["raise", "skip"]


def _not_below_the_first(
    iterator: ChangeFeedIterator, attribute: attrs.Attribute[float], value: float
) -> None:
    if not value >= iterator.idle_backoff_seconds:
        raise invalid_request(
            f"ChangeFeedIterator.{attribute.name}",
            f"is {value}, less than idle_backoff_seconds",
            "give the seconds of the longest wait",
        )


@attrs.define(eq=False)
class ChangeFeedIterator:
    """Reads a feed page after page until it is stopped, or to its end.

    Iterate events (`for event in it`) or pages (`for page in it.pages()`), in one thread. A page is done when
    the caller asks for the next event or page (an empty page is done at once). Only then `continuation_token`
    moves and the checkpoint is saved. So a crash, an exception or a `break` in the body of the loop delivers
    the page again and never skips it: the next `for` over the same iterator, or a new iterator with the same
    checkpoint, begins after the last page that is done. After the error of a read, the iterator also
    continues from there.

    Retryable failures are retried with growing, jittered waits. `CONFLICT` means that somebody else
    has saved the checkpoint in the meantime.

    A partition that has ended ends the iteration. With the scope
    `PhysicalPartition(…, with_descendants=True)`, reading continues in the partitions that replace it.

    With `on_expired=Resnapshot()`, iterate pages. A loop over single events is refused, because it would not
    see the notices.

    Attributes:
        client: Reads the pages. It stays open when the iterator is closed.
        request: The request. A stored checkpoint takes precedence over its `start_position`.
        timeout_seconds: Limit of each read; 30 by default.
        wait_seconds: How long a read may wait at the service for a first event (long poll); 0 by
            default. `stop` has to wait for this read, so choose a time that stopping may take.
        until_idle: True for a bounded run: end after the first idle page.
        idle_backoff_seconds: Wait after the first idle page; 0.005 by default. The upper limit of the wait
            doubles with each further idle page, and the first event resets it.
        max_idle_backoff_seconds: Longest wait after an idle page; 5 by default.
        max_outage_seconds: How long to continue while every read fails with a retryable error, or while every
            page names the same partition in `partition_errors`; 300 by default. Then the last error is
            raised; for a partition this is `TRANSIENT_FAILURE`.
        checkpoint_store: The store for the position, or None.
        checkpoint_name: Which checkpoint of the store.
        checkpoint_interval_seconds: The shortest time between two saves after empty pages; 0 by default,
            which saves after each empty page. After events the position is always saved.
        on_poison: `"raise"`, the default, or `"skip"`: continue after a record that cannot be decoded;
            the next page contains a `RecordSkipped` notice and no events.

    Raises:
        MulticloudDbError: When it is built: `INVALID_REQUEST` that names the setting.

    Examples:
        >>> with client.iterate_changes(request, until_idle=True) as changes:
        ...     for event in changes:
        ...         print(event.type, event.key)

    Portability:
        The same on all databases. A partition of MongoDB never ends. Warning 11 in docs/configuration.md.
    """

    client: ReadsChanges = attrs.field(repr=False)
    request: ChangeFeedRequest = attrs.field(validator=is_a(ChangeFeedRequest))
    timeout_seconds: float = attrs.field(
        default=30.0,
        kw_only=True,
        validator=[is_a(int, float), at_least(0.001, "give the seconds that one read may take")],
    )
    wait_seconds: float = attrs.field(
        default=0.0,
        kw_only=True,
        validator=[is_a(int, float), at_least(0, "use 0 to be answered at once")],
    )
    until_idle: bool = attrs.field(default=False, kw_only=True, validator=is_a(bool))
    idle_backoff_seconds: float = attrs.field(
        default=0.005,
        kw_only=True,
        validator=[is_a(int, float), at_least(0.001, "give the seconds of the first wait")],
    )
    max_idle_backoff_seconds: float = attrs.field(
        default=5.0, kw_only=True, validator=[is_a(int, float), _not_below_the_first]
    )
    max_outage_seconds: float = attrs.field(
        default=300.0,
        kw_only=True,
        validator=[is_a(int, float), at_least(0, "use 0 to raise at the first failure")],
    )
    checkpoint_store: CheckpointStore | None = attrs.field(default=None, kw_only=True)
    checkpoint_name: str | None = attrs.field(
        default=None, kw_only=True, validator=[is_a(str, type(None)), not_blank("name the checkpoint")]
    )
    checkpoint_interval_seconds: float = attrs.field(
        default=0.0,
        kw_only=True,
        validator=[is_a(int, float), at_least(0, "use 0 to save after each page")],
    )
    on_poison: Literal["raise", "skip"] = attrs.field(
        default="raise", kw_only=True, validator=one_of("raise", "skip")
    )

    _timer: Timer = attrs.field(factory=Timer, init=False, repr=False)
    _position: StartPosition | None = attrs.field(default=None, init=False, repr=False)
    _checkpointer: Checkpointer | None = attrs.field(default=None, init=False, repr=False)
    _skip_to: FromContinuationToken | None = attrs.field(default=None, init=False, repr=False)
    _unrepeatable: ChangeFeedPage | None = attrs.field(default=None, init=False, repr=False)
    _round: int = attrs.field(default=0, init=False, repr=False)
    _closed: bool = attrs.field(default=False, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if (self.checkpoint_store is None) != (self.checkpoint_name is None):
            missing = "checkpoint_name" if self.checkpoint_name is None else "checkpoint_store"
            raise invalid_request(f"ChangeFeedIterator.{missing}", "is missing", "pass both or neither")

    @property
    def continuation_token(self) -> str | None:
        """The token after the last page that is done; None while there is no token to start from."""
        position = self._position or self.request.start_position
        return position.token if isinstance(position, FromContinuationToken) else None

    def pages(self) -> Iterator[ChangeFeedPage]:
        """Pages, empty and idle ones included, starting after the last page that is done.

        Raises:
            MulticloudDbError: From the reads and from the checkpoint store, see the class.
        """
        return self._pages()

    def __iter__(self) -> Iterator[ChangeEvent]:
        if isinstance(self.request.on_expired, Resnapshot):
            raise invalid_request(
                "ChangeFeedRequest.on_expired",
                "is Resnapshot(), whose notices a loop over single events does not see",
                "iterate with .pages() and handle SnapshotStarted and BackfillDone",
            )
        return self._events()

    def _events(self) -> Generator[ChangeEvent, None, None]:
        with closing(self._pages()) as pages:
            for page in pages:
                for event in page.events:
                    if self._timer.stopped:
                        self._save()
                        return
                    yield event

    def stop(self) -> None:
        """End the iteration for good; from any thread, also from a signal handler.

        It takes effect within 0.1 seconds while backing off, otherwise after the read in flight,
        whose page is not delivered. The caller has to finish the events that were already returned.
        """
        self._timer.stop()

    def close(self) -> None:
        """Stop, and save the position after the last page that is done; for the iterating thread only."""
        self.stop()
        self._closed = True
        self._save()

    def __enter__(self) -> ChangeFeedIterator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:  # If this save fails, only the progress over pages without events is lost.
            self.stop()
            self._closed = True

    def _pages(self) -> Generator[ChangeFeedPage, None, None]:
        schedule = self._begin()
        mine = self._round
        while (page := self._next(schedule)) is not None:
            over = page.partition_retired or any(isinstance(notice, FeedEnded) for notice in page.notices)
            matters = bool(page.events or page.notices or over)
            stuck = schedule.stuck
            if not matters:
                self._done(page, at_once=False)
            yield page
            if self._round != mine:
                raise invalid_request("ChangeFeedIterator", "is iterated twice", "iterate in one loop")
            if matters:
                self._done(page, at_once=True)
            if stuck is not None:
                raise stuck
            if over or (self.until_idle and schedule.idle):
                break
        self._save()

    def _begin(self) -> PollSchedule:
        if self._closed:
            raise invalid_request("ChangeFeedIterator", "is closed", "call client.iterate_changes again")
        self._round += 1
        if self._position is None:
            store, name = self.checkpoint_store, self.checkpoint_name or ""
            checkpointer = Checkpointer(store, name, self.checkpoint_interval_seconds, self._timer)
            stored = checkpointer.load()
            start = self.request.start_position if stored is None else FromContinuationToken(stored)
            self._position, self._checkpointer = start, checkpointer
        return PollSchedule(
            self._timer, self.idle_backoff_seconds, self.max_idle_backoff_seconds, self.max_outage_seconds
        )

    def _next(self, schedule: PollSchedule) -> ChangeFeedPage | None:
        """The next page; None when stopped."""
        while not self._timer.stopped:
            if self._timer.wait(schedule.due - self._timer.now()):
                page = self._read(schedule)
                if page is not None and not self._timer.stopped:
                    return page
        return None

    def _read(self, schedule: PollSchedule) -> ChangeFeedPage | None:
        """One page, or None after a failure that is tolerated."""
        if self._unrepeatable is not None:
            return self._unrepeatable
        began = self._timer.now()
        position = self._skip_to or self._position or self.request.start_position
        request = attrs.evolve(self.request, start_position=position)
        wait = 0.0 if isinstance(position, Now | Snapshot) else self.wait_seconds
        try:
            page = self.client.read_changes(request, OperationOptions(self.timeout_seconds, wait))
        except MulticloudDbError as error:
            if not (self._step_over(position, error) or (error.retryable and schedule.failed())):
                raise
            return None
        schedule.succeeded(page, min(wait, self._timer.now() - began))
        if isinstance(position, Now | Snapshot) and (page.events or page.notices):
            # A second read at Now would begin later, so this page must be delivered without it.
            self._unrepeatable = page
        return page

    def _step_over(self, position: StartPosition, error: MulticloudDbError) -> bool:
        after = error.detail.skip_token
        if self.on_poison == "raise" or after is None or position == FromContinuationToken(after):
            return False
        self._skip_to = FromContinuationToken(after)
        return True

    def _done(self, page: ChangeFeedPage, *, at_once: bool) -> None:
        self._unrepeatable = self._skip_to = None
        self._position = FromContinuationToken(page.continuation_token)
        if self._checkpointer is not None:
            self._checkpointer.done(page.continuation_token, at_once=at_once)

    def _save(self) -> None:
        if self._checkpointer is not None:
            self._checkpointer.flush()
