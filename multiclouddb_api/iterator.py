"""Reads changes in a loop over `read_changes`, with backoff, retries and a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import AbstractContextManager, closing
from inspect import GEN_CLOSED, GEN_RUNNING, getgeneratorstate
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Protocol, TypedDict
from weakref import ref

import attrs
from attrs import define

from multiclouddb_api.checkpoint import Checkpointer, CheckpointStore, to_store
from multiclouddb_api.errors import ErrorReason, MulticloudDbError, invalid_request
from multiclouddb_api.event import ChangeEvent
from multiclouddb_api.observer import Observer
from multiclouddb_api.pacing import Outage, PollSchedule, Timer
from multiclouddb_api.page import ChangeFeedPage, FeedEnded
from multiclouddb_api.process import Home
from multiclouddb_api.request import (
    ChangeFeedRequest,
    FromContinuationToken,
    Now,
    OperationOptions,
    StartPosition,
)
from multiclouddb_api.snapshot import Resnapshot, Snapshot
from multiclouddb_api.steps import Call, Give, Steps, Wait, pages_of
from multiclouddb_api.validators import at_least, has_methods, is_a, not_blank, one_of

if TYPE_CHECKING:
    from multiclouddb_api.handling import Handling


_FOREIGN: Final = (
    ErrorReason.WRONG_PROVIDER,
    ErrorReason.WRONG_RESOURCE,
    ErrorReason.WRONG_SCOPE,
    ErrorReason.WRONG_OPTIONS,
)


class IteratorSettings(TypedDict, total=False):
    """The keyword settings of `ChangeFeedIterator`, which describes each of them."""

    timeout_seconds: float
    wait_seconds: float
    until_idle: bool
    idle_backoff_seconds: float
    max_idle_backoff_seconds: float
    max_outage_seconds: float
    max_start_seconds: float | None
    checkpoint_store: CheckpointStore | str | None
    checkpoint_name: str | None
    checkpoint_interval_seconds: float
    on_poison: Literal["raise", "skip"]
    set_aside: str | os.PathLike[str] | None
    set_aside_documents: bool
    max_set_aside: int


class ReadsChanges(Protocol):
    """The part of a client that an iterator calls."""

    def read_changes(
        self, request: ChangeFeedRequest, options: OperationOptions | None = None
    ) -> ChangeFeedPage:
        """See `MulticloudDbClient.read_changes`."""
        ...


def check_settings(function: str, settings: Collection[str], *others: str) -> None:
    """Refuse the names of settings that an iterator does not have, with the name that is most alike.

    Args:
        function: The function that was called.
        settings: The names that were given.
        others: The other names that the function takes.
    """
    known = [*others, *IteratorSettings.__annotations__]
    for name in settings:
        if name not in known:
            from difflib import get_close_matches

            alike = get_close_matches(name, known, 1)
            advice = f"did you mean {alike[0]}?" if alike else f"its settings are {', '.join(known)}"
            raise invalid_request(function, f"has no setting {name!r}", advice)


def _not_below_the_first(
    iterator: ChangeFeedIterator, attribute: attrs.Attribute[float], value: float
) -> None:
    if not value >= iterator.idle_backoff_seconds:
        raise invalid_request(
            f"ChangeFeedIterator.{attribute.name}",
            f"is {value}, less than idle_backoff_seconds",
            "give the longest wait in seconds",
        )


@define(eq=False)
class ChangeFeedIterator:
    """Reads a feed page by page until `stop` is called or the feed ends.

    Iterate over events (`for event in it`, `next(it)`) or over pages (`for page in it.pages()`), in one
    thread. No event is skipped, because a page counts as done only when you ask for the page or event after
    it; then `continuation_token` moves and the checkpoint is saved. (A page without events and notices is
    done at once.) So a page that a crash, an exception or a `break` has interrupted is delivered again: to
    another `for` over this iterator, to a new iterator with the same checkpoint, and after a failed read.

    Retryable failures are retried after random waits that grow, and never earlier than the service asks for
    (`ErrorDetail.retry_after_seconds`). An outage is reported within 2 seconds and then every 30 seconds, to
    the log (`multiclouddb.iterator`, WARNING) and to `Observer.outage`. `CONFLICT` means that another worker
    has saved the same checkpoint in the meantime.

    To stop when everything is read, use `until_idle` and not `ChangeFeedPage.idle`. Without `until_idle`,
    each read leaves out partitions that are not worth asking yet (`OperationOptions.ask_all`), so a feed with
    more partitions than `ClientConfig.max_concurrency` may never return a page that is idle.

    With the scope `PhysicalPartition(…)`, the iteration ends with the partition; with
    `with_descendants=True`, it continues in the partitions that replace it. With `on_expired=Resnapshot()`,
    iterate over pages: a loop over events is refused, because it would not see the notices.

    Raises:
        MulticloudDbError: Raised when the iterator is built: `INVALID_REQUEST` with a message that names the
            setting.

    Examples:
        >>> with client.iterate_changes(request, until_idle=True) as changes:
        ...     for event in changes:
        ...         print(event.type, event.key)

    Portability:
        On Cosmos DB, whose replicas may lag, `until_idle` can miss a write that was made just before; the
        next run returns it. MongoDB's only partition never ends. See warning 11 in docs/configuration.md.
    """

    client: ReadsChanges = attrs.field(
        repr=False, validator=has_methods("read_changes", advice="pass a client")
    )
    """Reads the pages, and stays open when the iterator is closed. Outages are reported to its `observer`, if
    it has one.
    """
    request: ChangeFeedRequest = attrs.field(validator=is_a(ChangeFeedRequest))
    """The request. A stored checkpoint takes precedence over its `start_position`."""
    timeout_seconds: float = attrs.field(
        default=30.0,
        kw_only=True,
        validator=[is_a(int, float), at_least(0.001, "give the time limit of one read in seconds")],
    )
    """The time limit of each read in seconds; 30 by default."""
    wait_seconds: float = attrs.field(
        default=0.0, kw_only=True, validator=[is_a(int, float), at_least(0, "use 0 to get an answer at once")]
    )
    """How long a read may wait for its first event (long poll), in seconds; 0, the default, means that it
    does not wait."""
    until_idle: bool = attrs.field(default=False, kw_only=True, validator=is_a(bool))
    """True to end the iteration after the first idle page; each read then asks every partition."""
    idle_backoff_seconds: float = attrs.field(
        default=0.005,
        kw_only=True,
        validator=[is_a(int, float), at_least(0.001, "give the first wait in seconds")],
    )
    """How long to wait after the first idle page, in seconds; 0.005 by default. Each further idle page
    doubles the upper limit of the wait, and the first event resets this limit."""
    max_idle_backoff_seconds: float = attrs.field(
        default=5.0, kw_only=True, validator=[is_a(int, float), _not_below_the_first]
    )
    """The longest wait after an idle page, in seconds; 5 by default."""
    max_outage_seconds: float = attrs.field(
        default=300.0,
        kw_only=True,
        validator=[is_a(int, float), at_least(0, "use 0 to raise at the first failure")],
    )
    """How long an outage is tolerated, in seconds; 300 by default. An outage is a time in which every read
    fails with a retryable error, or in which every page has the same partition in `partition_errors`. After
    it, the iterator raises the last error, or `TRANSIENT_FAILURE` for the partition."""
    max_start_seconds: float | None = attrs.field(
        default=None,
        kw_only=True,
        validator=[
            is_a(int, float, type(None)),
            attrs.validators.optional(at_least(0, "use 0 to raise at the first failure")),
        ],
    )
    """The same limit for the time before the first successful read, in seconds; None, the default, means
    `max_outage_seconds`. With 0, which is the default of `follow`, a mistake in the connection is raised as
    soon as the first read fails; with `math.inf`, the iterator waits for a service that starts later."""
    checkpoint_store: CheckpointStore | None = attrs.field(
        default=None,
        kw_only=True,
        converter=to_store,
        validator=has_methods("load", "save", advice='pass a store: FileCheckpointStore("checkpoints")'),
    )
    """Where to save the position: a store, its URL (`open_checkpoint_store`), or None to save nothing."""
    checkpoint_name: str | None = attrs.field(
        default=None, kw_only=True, validator=[is_a(str, type(None)), not_blank("name the checkpoint")]
    )
    """The name of the checkpoint in the store; needed with a store, and refused without one."""
    checkpoint_interval_seconds: float = attrs.field(
        default=0.0, kw_only=True, validator=[is_a(int, float), at_least(0, "use 0 to save after each page")]
    )
    """The shortest time between two saves after empty pages, in seconds; with 0, the default, each empty page
    is followed by a save. A page with events or notices is always followed by one."""
    on_poison: Literal["raise", "skip"] = attrs.field(
        default="raise", kw_only=True, validator=one_of("raise", "skip")
    )
    """What to do about a record that cannot be decoded. `"raise"`, the default, ends the iteration with
    `PROVIDER_ERROR`. `"skip"` continues after the record, with a page that has only a `RecordSkipped`
    notice."""
    set_aside: str | os.PathLike[str] | None = attrs.field(
        default=None, kw_only=True, validator=is_a(str, os.PathLike, type(None))
    )
    """A folder for the events whose handling fails (`handling`), or None. It belongs to one handler; the
    readers of its partitions may share it. With `on_poison="skip"`, what cannot be decoded goes there too."""
    set_aside_documents: bool = attrs.field(default=False, kw_only=True, validator=is_a(bool))
    """True to keep the documents, and the messages of exceptions, in that folder too."""
    max_set_aside: int = attrs.field(
        default=100, kw_only=True, validator=[is_a(int), at_least(1, "leave out set_aside to allow none")]
    )
    """How many events of a collection may be set aside; the next one ends the iteration with
    `PERMANENT_FAILURE`."""

    _feed: FeedLoop = attrs.field(
        default=attrs.Factory(lambda self: FeedLoop(self), takes_self=True), init=False, repr=False
    )
    _stepping: Generator[ChangeEvent, None, None] | None = attrs.field(default=None, init=False, repr=False)
    _loop: ref[Generator[ChangeEvent, None, None]] | None = attrs.field(default=None, init=False, repr=False)
    _driven: Generator[ChangeFeedPage, None, None] | None = attrs.field(default=None, init=False, repr=False)
    _handling: Handling | None = attrs.field(default=None, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if (self.checkpoint_store is None) != (self.checkpoint_name is None):
            missing = "checkpoint_name" if self.checkpoint_name is None else "checkpoint_store"
            raise invalid_request(f"ChangeFeedIterator.{missing}", "is missing", "pass both or neither")
        if self.set_aside is not None:
            from multiclouddb_api.handling import Handling  # few programs need it

            self._handling = Handling(
                self.set_aside, self.max_set_aside, self.request.address, documents=self.set_aside_documents
            )

    @property
    def continuation_token(self) -> str | None:
        """The token after the last page that is done; None if there is no token yet."""
        position = self._feed.position or self.request.start_position
        return position.token if isinstance(position, FromContinuationToken) else None

    def pages(self) -> Iterator[ChangeFeedPage]:
        """Iterate over pages, the empty and idle ones too, starting after the last page that is done.

        Raises:
            MulticloudDbError: A read has failed, as `ChangeFeedIterator` describes, or the checkpoint store
                has. `INVALID_REQUEST` with `set_aside`, which is for single events.
        """
        self._feed.check_pages()
        return self._pages()

    def handling(self, event: ChangeEvent, *errors: type[Exception]) -> AbstractContextManager[ChangeEvent]:
        """Return a block in which an event is handled; if the handling fails, the event is set aside.

        The event is then in the folder `set_aside` with its position, key and exception, on the disk, and the
        iteration goes on. Until it was retried (`multiclouddb set-aside retry`), the loop does not get the
        later events of its key: they are set aside behind it, in their order.

        Args:
            event: An event of this iteration.
            *errors: The exceptions that are about the event; every `Exception` by default. Another one, such
                as that of a database that is down, ends the loop, and the page comes again.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` without `set_aside`. At the end of the block
                `PERMANENT_FAILURE`, if more than `max_set_aside` would be set aside, or the folder cannot be
                written.

        Examples:
            >>> with follow(url, "orders", start=Beginning(), set_aside="aside") as changes:
            ...     for event in changes:
            ...         with changes.handling(event):
            ...             handle(event)
        """
        from multiclouddb_api.handling import Handled

        return Handled(self._handling, event, errors)

    def __iter__(self) -> Iterator[ChangeEvent]:
        # A loop goes on after the events that next() returned.
        stepping, self._stepping = self._stepping, None
        if stepping is None or getgeneratorstate(stepping) == GEN_CLOSED:
            stepping = self._checked_events()
        self._loop = ref(stepping)
        return stepping

    def __next__(self) -> ChangeEvent:
        if self._stepping is None:
            # Within a loop, next() goes on after the loop's event; after the loop, nobody holds it.
            loop = None if self._loop is None else self._loop()
            if loop is None or getgeneratorstate(loop) == GEN_CLOSED:
                loop = self._checked_events()
            self._stepping = loop
        try:
            return next(self._stepping)
        except StopIteration:
            raise
        except BaseException:
            self._stepping = None  # it is over, and the next call has to read again
            raise

    def _checked_events(self) -> Generator[ChangeEvent, None, None]:
        self._feed.check_events()
        return self._events()

    def _events(self) -> Generator[ChangeEvent, None, None]:
        handling = self._handling
        if handling is not None:
            handling.begin()
        with closing(self._pages()) as pages:
            for page in pages:
                if handling is not None:
                    handling.skipped(page)
                for event in page.events:
                    if self._feed.timer.stopped:
                        self._finish(self._feed.end())
                        return
                    if handling is None or handling.is_free(event) or not handling.holds(event):
                        yield event

    def stop(self) -> None:
        """End the iteration permanently; any thread or signal handler may call this method.

        The iterator stops within 0.1 seconds between two reads, and within a second during one, whose page is
        then not delivered. Events that were already returned are still yours to handle.
        """
        self._feed.timer.stop()

    def close(self) -> None:
        """Stop the iteration, and save the position after the last page that is done.

        Call it only from the thread that iterates; `stop` is for the others. In a signal handler that has
        interrupted a read or a save, it only stops, and the loop then saves and ends.
        """
        if self._driven is not None and getgeneratorstate(self._driven) == GEN_RUNNING:
            # What this thread was doing may hold a lock that saving or closing needs.
            self.stop()
            return
        self._finish(self._feed.close(save=True))

    def __enter__(self) -> ChangeFeedIterator:
        try:
            self._finish(self._feed.start_now())
        except BaseException:  # whatever ends it: nobody else closes the connection of `follow`
            if self._feed.at_close is not None:
                self._finish(self._feed.close(save=False))
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an exception nothing is saved, so the next run may read pages without events again.
        self._finish(self._feed.close(save=error is None))

    def __aiter__(self) -> NoReturn:
        raise invalid_request(
            "ChangeFeedIterator", "blocks its thread", "write for, or connect with multiclouddb.aio.connect"
        )

    def _pages(self) -> Generator[ChangeFeedPage, None, None]:
        return self._drive(self._feed.steps())

    def _finish(self, steps: Steps[None]) -> None:
        for _ in self._drive(steps):
            raise AssertionError("only the loop over a feed returns pages")

    def _drive(self, steps: Steps[None]) -> Generator[ChangeFeedPage, None, None]:
        self._driven = driven = pages_of(steps, self._feed.timer.wait)
        return driven


class FeedLoop:
    """The loop over the pages of one feed, as steps, which say what to read and save, and when.

    When the driver asks for the next page, the current page counts as done, and its token is saved.

    Args:
        settings: The iterator; the loop uses its client, its request and its settings.

    Attributes:
        timer: The clock, which can also stop the loop.
        position: The position after the last page that is done; None before the first step.
        closed: True after `close`.
        at_close: A function that is called when the iteration ends or is closed.
    """

    def __init__(self, settings: ChangeFeedIterator) -> None:
        self.timer = Timer()
        self.position: StartPosition | None = None
        self.closed = False
        self.at_close: Callable[[], Any] | None = None
        self._settings = settings
        self._home = Home(self, "ChangeFeedIterator", "iterate there with a checkpoint of its own")
        self._checkpointer: Checkpointer | None = None
        self._stored: FromContinuationToken | None = None
        self._skip_to: FromContinuationToken | None = None
        self._unrepeatable: ChangeFeedPage | None = None
        self._round = 0
        self._has_read = False
        self._outage: Outage | None = None

    def check_events(self) -> None:
        """Raise `INVALID_REQUEST` if the request must be read by pages."""
        if isinstance(self._settings.request.on_expired, Resnapshot):
            raise invalid_request(
                "ChangeFeedRequest.on_expired",
                "is Resnapshot(), and a loop over single events would not see its notices",
                "iterate with .pages() and handle SnapshotStarted and BackfillDone",
            )

    def check_pages(self) -> None:
        """Raise `INVALID_REQUEST` if the feed must be read by events."""
        if self._settings.set_aside is not None:
            raise invalid_request(
                "ChangeFeedIterator.set_aside",
                "is given, and a page has the events that must wait too",
                "iterate over events: for event in changes",
            )

    def steps(self) -> Steps[None]:
        """Return the steps of one iteration, which starts after the last page that is done."""
        schedule = yield from self._begin()
        settings, mine = self._settings, self._round
        self._watch_outages()
        while (page := (yield from self._next(schedule))) is not None:
            over = page.partition_retired or any(isinstance(notice, FeedEnded) for notice in page.notices)
            matters = bool(page.events or page.notices or over)
            stuck = schedule.stuck
            if not matters:
                yield from self._done(page, at_once=False)
            yield Give(page)
            if self._round != mine:
                raise invalid_request("ChangeFeedIterator", "is iterated twice", "iterate in one loop")
            if matters:
                yield from self._done(page, at_once=True)
            if stuck is not None:
                raise stuck
            if over or (settings.until_idle and schedule.idle):
                break
        yield from self.end()

    def start_now(self) -> Steps[None]:
        """Return the steps that fix and save the start of a feed that starts at `Now()`.

        A `with` block has begun to follow, so what is written in it, also before its first read, must come.
        """
        if self.closed or self._unrepeatable or not isinstance(self._settings.request.start_position, Now):
            return
        schedule = yield from self._begin()
        if isinstance(self.position, Now):
            self._watch_outages()
            page = yield from self._next(schedule)
            if page is not None and page is not self._unrepeatable:
                yield from self._done(page, at_once=True)

    def _watch_outages(self) -> None:
        settings = self._settings
        observer = getattr(settings.client, "observer", None)
        listener = observer if isinstance(observer, Observer) else None
        self._outage = Outage(settings.request.address, listener, self.timer.now, lambda: self.timer.stopped)

    def end(self) -> Steps[None]:
        """Return the steps after the last page."""
        yield from self._save()
        if self.at_close is not None:
            yield from self.close(save=True)

    def close(self, *, save: bool) -> Steps[None]:
        """Return the steps that stop the loop for ever.

        Args:
            save: False to leave the position of pages without events unsaved.
        """
        self.timer.stop()
        self.closed = True
        failure: BaseException | None = None
        try:
            if save:
                yield from self._save()
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised when the client is closed
            failure = error
        if self.at_close is not None:
            yield Call(self.at_close)
        if failure is not None:
            raise failure

    def _begin(self) -> Steps[PollSchedule]:
        if self.closed:
            raise invalid_request("ChangeFeedIterator", "is closed", "call client.iterate_changes again")
        self._round += 1
        settings = self._settings
        if self.position is None:
            store, name = settings.checkpoint_store, settings.checkpoint_name or ""
            checkpointer = Checkpointer(store, name, settings.checkpoint_interval_seconds, self.timer.now)
            stored = yield from checkpointer.load()
            self._stored = None if stored is None else FromContinuationToken(stored)
            self.position, self._checkpointer = self._stored or settings.request.start_position, checkpointer
        return PollSchedule(
            self.timer,
            settings.idle_backoff_seconds,
            settings.max_idle_backoff_seconds,
            settings.max_outage_seconds,
            None if self._has_read else settings.max_start_seconds,
        )

    def _next(self, schedule: PollSchedule) -> Steps[ChangeFeedPage | None]:
        """Return the next page, or None if the iterator was stopped."""
        while not self.timer.stopped:
            if (yield from self._wait_until(schedule.due)):
                page = yield from self._read(schedule)
                if page is not None and not self.timer.stopped:
                    return page
        return None

    def _wait_until(self, due: float) -> Steps[bool]:
        """Wait, and report an outage that lasts during the wait; return False if `stop` was called."""
        assert self._outage is not None
        while (step := self._outage.until_next()) < due - self.timer.now():
            # A wait may end a moment too early, and the rest may be too short for the clock to notice.
            if not (yield Wait(max(step, 0.001))):
                return False
            self._outage.pauses()
        seconds = due - self.timer.now()
        return (yield Wait(seconds)) if seconds > 0 else not self.timer.stopped

    def _read(self, schedule: PollSchedule) -> Steps[ChangeFeedPage | None]:
        """Return one page, or None after a failure that is tolerated."""
        if self._unrepeatable is not None:
            return self._unrepeatable
        settings, began = self._settings, self.timer.now()
        position = self._skip_to or self.position or settings.request.start_position
        request = attrs.evolve(settings.request, start_position=position)
        starts = isinstance(position, Now)
        wait = 0.0 if starts else settings.wait_seconds
        assert self._outage is not None
        try:
            # A run that dies in a first page with events would begin later at its next start, without them.
            options = OperationOptions(
                settings.timeout_seconds, wait, settings.until_idle, start_only=starts, progress=self._outage
            )
            self._outage.begin(wait)
            page: ChangeFeedPage = yield Call(settings.client.read_changes, request, options)
        except MulticloudDbError as error:
            if position == self._stored and error.detail.reason in _FOREIGN:
                raise self._foreign(error) from error
            if self._outage.has_stopped or self._step_over(position, error):
                return None
            if not (error.retryable and schedule.failed(error.detail.retry_after_seconds)):
                raise
            self._outage.failed(error.message)
            return None
        self._outage.ended()
        self._has_read = True
        schedule.succeeded(page, min(wait, self.timer.now() - began))
        if isinstance(position, Now | Snapshot) and (page.events or page.notices):
            # Another read would begin another snapshot. At `Now`, a client of the application's own may not
            # pass the options on and may have read events, and another read would begin after them.
            self._unrepeatable = page
        return page

    def _foreign(self, error: MulticloudDbError) -> MulticloudDbError:
        settings = self._settings
        return MulticloudDbError(
            f"checkpoint_name: {settings.checkpoint_name!r} in {settings.checkpoint_store!r} is the position "
            f"of another reading ({error.message}); give each reading a checkpoint of its own",
            error.detail,
        )

    def _step_over(self, position: StartPosition, error: MulticloudDbError) -> bool:
        after = error.detail.skip_token
        if self._settings.on_poison == "raise" or after is None or position == FromContinuationToken(after):
            return False
        self._skip_to = FromContinuationToken(after)
        return True

    def _done(self, page: ChangeFeedPage, *, at_once: bool) -> Steps[None]:
        self._home.check()
        # First: at `Now`, an interrupt between the two would otherwise lose what was written since.
        self.position = FromContinuationToken(page.continuation_token)
        self._unrepeatable = self._skip_to = None
        if self._checkpointer is not None:
            yield from self._checkpointer.done(page.continuation_token, at_once=at_once)

    def _save(self) -> Steps[None]:
        # A forked child that leaves the block of its parent has no position of its own.
        if self._checkpointer is not None and self._home.is_here:
            yield from self._checkpointer.flush()
