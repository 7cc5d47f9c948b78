"""A polling loop over `read_changes`: backs off, retries, follows children, keeps a checkpoint."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from types import TracebackType
from typing import Literal, Protocol, TypedDict

import attrs

from multiclouddb_api.check import at_least, is_a, not_blank, one_of
from multiclouddb_api.checkpoint import CheckpointStore
from multiclouddb_api.errors import MulticloudDbError, invalid_request
from multiclouddb_api.event import ChangeEvent
from multiclouddb_api.follow import Branch, Lane
from multiclouddb_api.handoff import Handoff
from multiclouddb_api.notice import FeedEnded
from multiclouddb_api.options import OperationOptions
from multiclouddb_api.pacing import Pace, Timer
from multiclouddb_api.page import ChangeFeedPage
from multiclouddb_api.position import FromContinuationToken, Now, StartPosition
from multiclouddb_api.request import ChangeFeedRequest
from multiclouddb_api.scope import PhysicalPartition

__all__ = ["ChangeFeedIterator", "IteratorSettings", "ReadsChanges"]


class ReadsChanges(Protocol):
    """What an iterator needs of a client."""

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
    follow_children: bool
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

    Iterate events (`for event in it`) or pages (`for page in it.pages()`), in one thread. A page is
    done when the caller comes back for what is behind it (at once, when nothing is on it); only then
    `continuation_token` moves and the checkpoint is saved. So a crash, an exception or a `break` in
    the body of the loop delivers the page again and never skips it: the next `for` over the same
    iterator, or a new iterator with the same checkpoint, begins behind the last page that is done.
    The error of a read leaves the iterator at that place too.

    Retryable failures are retried with growing, jittered waits. `CONFLICT` means that somebody else
    has saved the checkpoint since.

    With `follow_children` the children of a partition are read when it has ended, several in turn,
    and a child of a merge once, when all its parents that are followed here are drained. Where the
    other parents are followed by other workers, each of them is named the child too and reads it, and
    none knows when the others have drained theirs: where partitions merge, order across a merge and
    reading once need one follower of all parents, such as the scope `EntireCollection`.
    `continuation_token` is then a text that only an iterator with `follow_children` on the same
    partition understands.

    Attributes:
        client: Reads the pages. It stays open when the iterator is closed.
        request: What to read. A stored checkpoint goes before its `start_position`.
        timeout_seconds: Limit of each read; 30 by default.
        wait_seconds: How long a read may wait at the service for a first event (long poll); 0 by
            default. A `stop` has to wait for it: keep it as short as stopping may take.
        until_idle: True for a bounded run: end after the first idle page. With several followed
            partitions: when each of them is idle.
        idle_backoff_seconds: Wait after the first idle page; 0.1 by default. The bound of the wait
            doubles with each further one and begins again with the first event.
        max_idle_backoff_seconds: Longest wait after an idle page; 5 by default.
        max_outage_seconds: How long to go on through retryable failures without a success in
            between, and through pages that name the same partition in `partition_errors`; 300 by
            default. Then the last error is raised, for a partition `TRANSIENT_FAILURE`.
        checkpoint_store: Where to keep the position, or None.
        checkpoint_name: Which checkpoint of the store.
        checkpoint_interval_seconds: The position behind pages with nothing on them is saved at most
            this often; 0 by default, after each of them. Behind events it is always saved.
        follow_children: With the scope `PhysicalPartition`: go on with its children when it ends.
        on_poison: `"raise"`, the default, or `"skip"`: go on behind a record that cannot be decoded;
            the next page has a `RecordSkipped` notice and no events.

    Raises:
        MulticloudDbError: When it is built: `INVALID_REQUEST` that names the setting.

    Examples:
        >>> with client.iterate_changes(request, until_idle=True) as changes:
        ...     for event in changes:
        ...         print(event.type, event.key)

    Portability:
        The same everywhere. `follow_children` has an effect where partitions split or merge: not on
        MongoDB, which has one partition. Warning 11 in docs/configuration.md.
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
        default=0.1,
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
    follow_children: bool = attrs.field(default=False, kw_only=True, validator=is_a(bool))
    on_poison: Literal["raise", "skip"] = attrs.field(
        default="raise", kw_only=True, validator=one_of("raise", "skip")
    )

    _timer: Timer = attrs.field(factory=Timer, init=False, repr=False)
    _branch: Branch | None = attrs.field(default=None, init=False, repr=False)
    _handoff: Handoff | None = attrs.field(default=None, init=False, repr=False)
    _paces: dict[str, Pace] = attrs.field(factory=dict, init=False, repr=False)
    _skipped_to: dict[str, FromContinuationToken] = attrs.field(factory=dict, init=False, repr=False)
    _unrepeatable: ChangeFeedPage | None = attrs.field(default=None, init=False, repr=False)
    _round: int = attrs.field(default=0, init=False, repr=False)
    _closed: bool = attrs.field(default=False, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if (self.checkpoint_store is None) != (self.checkpoint_name is None):
            missing = "checkpoint_name" if self.checkpoint_name is None else "checkpoint_store"
            raise invalid_request(f"ChangeFeedIterator.{missing}", "is missing", "pass both or neither")
        if self.follow_children and not isinstance(self.request.scope, PhysicalPartition):
            raise invalid_request(
                "ChangeFeedIterator.follow_children",
                f"needs the scope PhysicalPartition, not {type(self.request.scope).__name__}",
                "leave it out: wider scopes follow splits and merges by themselves",
            )

    @property
    def continuation_token(self) -> str | None:
        """Behind the last page that is done; None as long as there is no token to start from."""
        if self._branch is not None:
            return self._branch.token
        start = self.request.start_position
        return start.token if isinstance(start, FromContinuationToken) else None

    def pages(self) -> Iterator[ChangeFeedPage]:
        """Pages, empty and idle ones included, from behind the last page that is done.

        Raises:
            MulticloudDbError: Of the reads and of the checkpoint store, see the class.
        """
        return self._pages()

    def __iter__(self) -> Iterator[ChangeEvent]:
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
        whose page is not delivered. Events that were handed out stay the caller's to finish.
        """
        self._timer.stop()

    def close(self) -> None:
        """Stop, and save the position behind the last page that is done; in the thread that iterates."""
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
        else:  # Nothing is lost unsaved but the way over pages without events.
            self.stop()
            self._closed = True

    def _pages(self) -> Generator[ChangeFeedPage, None, None]:
        branch = self._begin()
        mine = self._round
        while (turn := self._next(branch)) is not None:
            lane, page = turn
            over = page.partition_retired or any(isinstance(notice, FeedEnded) for notice in page.notices)
            new = branch.says_something(lane, page)
            matters = new and bool(page.events or page.notices or over)
            stuck = self._pace(lane).stuck
            if not matters:
                self._done(branch, lane, page, over=over, at_once=False)
            if new:
                yield page
            if self._round != mine:
                raise invalid_request("ChangeFeedIterator", "is iterated twice", "iterate in one loop")
            if matters:
                self._done(branch, lane, page, over=over, at_once=True)
            if stuck is not None:
                raise stuck
            if (over and not branch.root) or (self.until_idle and self._all_idle(branch)):
                break
        self._save()

    def _begin(self) -> Branch:
        if self._closed:
            raise invalid_request("ChangeFeedIterator", "is closed", "call client.iterate_changes again")
        self._round += 1
        self._paces.clear()
        if self._branch is None:
            handoff = Handoff(
                self.checkpoint_store,
                self.checkpoint_name or "",
                self.checkpoint_interval_seconds,
                self._timer,
            )
            stored = handoff.load()
            start = self.request.start_position if stored is None else FromContinuationToken(stored)
            self._branch, self._handoff = self._branch_at(start), handoff
        return self._branch

    def _branch_at(self, start: StartPosition) -> Branch:
        root = ""
        if self.follow_children and isinstance(self.request.scope, PhysicalPartition):
            root = self.request.scope.partition_id
        if isinstance(start, FromContinuationToken) and Branch.is_text(start.token):
            if not root:
                raise invalid_request(
                    "continuation token", "is of follow_children", "iterate with follow_children=True"
                )
            return Branch.from_text(root, start.token)
        return Branch(root, [Lane(root, start)])

    def _next(self, branch: Branch) -> tuple[Lane, ChangeFeedPage] | None:
        """The next page and where it is from; None when stopped or when nothing is left to read."""
        while (lanes := branch.turns()) and not self._timer.stopped:
            lane = min(lanes, key=lambda each: self._pace(each).due)
            if self._timer.wait(self._pace(lane).due - self._timer.now()):
                page = self._read(branch, lane)
                if page is not None and not self._timer.stopped:
                    return lane, page
        return None

    def _read(self, branch: Branch, lane: Lane) -> ChangeFeedPage | None:
        """One page, or None after a failure that is tolerated."""
        if self._unrepeatable is not None:
            return self._unrepeatable
        pace = self._pace(lane)
        began = self._timer.now()
        position = self._skipped_to.get(lane.partition_id, lane.position)
        scope = PhysicalPartition(lane.partition_id) if branch.root else self.request.scope
        request = attrs.evolve(self.request, scope=scope, start_position=position)
        wait = 0.0 if isinstance(position, Now) else self._longest_poll(branch, lane)
        try:
            page = self.client.read_changes(request, OperationOptions(self.timeout_seconds, wait))
        except MulticloudDbError as error:
            if not (self._step_over(lane, position, error) or (error.retryable and pace.failed())):
                raise
            return None
        pace.succeeded(page, min(wait, self._timer.now() - began))
        if isinstance(position, Now) and page.events:
            # A second read at Now would begin later: this page must not depend on it.
            self._unrepeatable = page
        return page

    def _longest_poll(self, branch: Branch, lane: Lane) -> float:
        """A long poll keeps no other partition waiting."""
        if lane.named is not None:
            return 0.0
        turns = branch.turns()
        others = [self._pace(other).due - self._timer.now() for other in turns if other is not lane]
        return max(0.0, min([self.wait_seconds, *others]))

    def _step_over(self, lane: Lane, position: StartPosition, error: MulticloudDbError) -> bool:
        behind = error.detail.skip_token
        if self.on_poison == "raise" or behind is None or position == FromContinuationToken(behind):
            return False
        self._skipped_to[lane.partition_id] = FromContinuationToken(behind)
        return True

    def _done(self, branch: Branch, lane: Lane, page: ChangeFeedPage, *, over: bool, at_once: bool) -> None:
        self._unrepeatable = None
        self._skipped_to.pop(lane.partition_id, None)
        branch.advance(lane, page, over=over)
        if over and branch.is_watched(lane.partition_id):
            self._pace(lane).rest(first=lane.named is None)
        elif over:
            del self._paces[lane.partition_id]
        token = branch.token
        if self._handoff is not None and token is not None:
            self._handoff.done(token, at_once=at_once)

    def _pace(self, lane: Lane) -> Pace:
        pace = self._paces.get(lane.partition_id)
        if pace is None:
            pace = Pace(
                self._timer, self.idle_backoff_seconds, self.max_idle_backoff_seconds, self.max_outage_seconds
            )
            self._paces[lane.partition_id] = pace
        return pace

    def _all_idle(self, branch: Branch) -> bool:
        return branch.is_settled() and all(self._pace(lane).idle for lane in branch.turns())

    def _save(self) -> None:
        if self._handoff is not None:
            self._handoff.flush()
