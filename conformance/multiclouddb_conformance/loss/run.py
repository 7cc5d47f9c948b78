"""Runs a script once, and kills the consumers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeAlias, TypeVar, assert_never

import attrs

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeFeedRequest,
    FromContinuationToken,
    MulticloudDbError,
    Now,
)
from multiclouddb_api import Snapshot as AtSnapshot
from multiclouddb_conformance.loss.consumer import (
    Consumer,
    ConsumerStep,
    Delivered,
    Failed,
    Pause,
    ReadsChanges,
    Received,
    Stored,
    page_consumer,
)
from multiclouddb_conformance.loss.life import Act, Read, ReadUntilIdle, Step, WrittenChange
from multiclouddb_conformance.loss.report import RunReport
from multiclouddb_conformance.loss.verdict import Idle, Marker, Reading, Record, marker_in

__all__ = ["Kill", "Run", "Scenario", "Snapshot"]

W = TypeVar("W")


@attrs.frozen(kw_only=True)
class Scenario(Generic[W]):
    """Everything that the runs of an oracle share.

    The main parts are a world, its script, and the application that reads the changes.

    Attributes:
        world: A function that makes a new world and removes it after the run.
        client: A function that makes a client for a given world. The client may be any object that
            has `read_changes`. The client is closed after the run if it has a `close` method.
        request: The consumer's request, or a function that makes the request at the first read.
        life: The script; after it, the consumer reads until the feed is idle.
        consumer: The application; `page_consumer` by default.
        marker: A function that returns an event's marker; by default, the field `n` of its document.
        lineage: A function that gets a world, and returns the parents of every partition that the
            world ever had. The result maps each partition id to the ids of the parents. The ids
            have the form that events contain. Use None if the lineage is unknown. Without the
            lineage, only the order of a key's changes can show that a child was read too early.
        written_before: The number of changes that the script writes before the start position. Set
            this number if the feed starts at `AtTime` or at a token. Omit this number for `Now` and
            `Beginning`.
        idle_pages: The number of consecutive idle pages after which a consumer stops; more than 1 if the
            service shows writes late.
        key_order: False for a service whose keys may move to unrelated partitions. If the value is
            False, the changes of a key need to be in order only within a partition, but their order
            keys must still match the order of writing.
        latest: True for a feed that contains only the newest version of each document. Then only the last
            change of each key has to be delivered, and only if it is no delete. A version that is older than
            one that was delivered must not be delivered again without a restart.
        max_pages: The maximum number of pages in one read.
        max_failures: The maximum number of consecutive retryable failures.
    """

    world: Callable[[], AbstractContextManager[W]]
    client: Callable[[W], ReadsChanges]
    request: ChangeFeedRequest | Callable[[W], ChangeFeedRequest]
    life: Sequence[Step[W]] = attrs.field(converter=tuple)
    consumer: Consumer = page_consumer
    marker: Marker = attrs.field(factory=lambda: marker_in("n"))
    lineage: Callable[[W], Mapping[str, tuple[str, ...]]] | None = None
    written_before: int | None = None
    idle_pages: int = 1
    key_order: bool = True
    latest: bool = False
    max_pages: int = 100_000
    max_failures: int = 1000


@attrs.frozen
class Snapshot:
    """The state of the run at the time when a token was stored."""

    step: int
    token: str = attrs.field(repr=False)
    delivered: int
    required_from: int


@attrs.define
class _Process:
    """One consumer, from its start until it is killed, with its results."""

    steps: Iterator[ConsumerStep]
    client: ReadsChanges
    reading: Reading
    first_token: str | None
    events: int = 0


class Run(Generic[W]):
    """Runs a script once."""

    def __init__(self, scenario: Scenario[W], world: W, kill: Kill | None, *, forget: bool) -> None:
        """Prepare a run."""
        self._scenario = scenario
        self._world = world
        self._kill = kill
        self._forget = forget
        self._record = Record()
        self._alive: _Process | None = None
        self._request: ChangeFeedRequest | None = None
        self._token: str | None = None
        self._where = "life step 0"
        self._failures = 0
        self.steps_done: list[str] = []
        self.snapshots: list[Snapshot] = []

    @property
    def token_moved(self) -> bool:
        """Return True if the current consumer has stored a token other than its first token."""
        return self._alive is not None and self._token != self._alive.first_token

    @property
    def lived(self) -> bool:
        """Return True if the current consumer has processed at least one event."""
        return self._alive is not None and self._alive.events > 0

    def play(self) -> None:
        """Run the script, then let the consumer read until the feed is idle."""
        with _Ending(self):
            for number, step in enumerate(self._scenario.life, 1):
                self._where = f"life step {number}"
                match step:
                    case Act():
                        self._act(step)
                    case Read(pages):
                        self._read(pages)
                    case ReadUntilIdle():
                        self._read_until_idle()
            self._where = "the end of the script"
            self._read_until_idle()

    def go_on_from(self, first: Run[W], snapshot: Snapshot) -> None:
        """Resume from a token that another run has stored, and read until the feed is idle."""
        with _Ending(self):
            self._request, self._token = first._request, snapshot.token
            before = first._record
            self._record = Record(
                truth=before.truth,
                labels=before.labels,
                delivered=before.delivered[: snapshot.delivered],
                required_from=snapshot.required_from,
                allowed_from=before.allowed_from,
                kills=1,
            )
            self._read_until_idle()

    # -- The world

    def _act(self, act: Act[W]) -> None:
        if act.forgets:
            if not self._forget:
                return
            self._read_until_idle()
        truth, labels = self._record.truth, self._record.labels
        for change in act.run(self._world) or ():
            labels.append(f"{_named(change)} (change {len(truth) + 1}, {self._where}: {act.name})")
            truth.append(change)

    # -- The consumer

    def _read(self, pages: int) -> None:
        while pages and (step := self._advance()) is not None:
            pages -= isinstance(step, Pause)

    def _read_until_idle(self) -> None:
        in_row = pages = 0
        while in_row < self._scenario.idle_pages:
            step = self._advance()
            if step is None:
                return
            if not isinstance(step, Pause):
                continue
            # The idle page of a consumer that was just killed does not count.
            in_row = in_row + 1 if step.idle and self._alive is not None else 0
            pages += 1
            if pages > self._scenario.max_pages:
                raise _HopelessError(f"not idle after {pages} pages")

    def _advance(self) -> ConsumerStep | None:
        process = self._alive or self._start()
        step = next(process.steps, None)
        if step is None:
            return None
        self._note(process, step)
        self.steps_done.append(f"{_described(step)}, in {self._where}")
        if self._kill is not None and self._kill(self, step):
            self.discard()
            self._record.kills += 1
        return step

    def _start(self) -> _Process:
        scenario, record = self._scenario, self._record
        if self._request is None:
            made = scenario.request
            self._request = made if isinstance(made, ChangeFeedRequest) else made(self._world)
        if self._token is None:
            record.required_from = self._starts_at(self._request)
            if record.allowed_from is None:
                record.allowed_from = record.required_from
        client = scenario.client(self._world)
        steps = scenario.consumer(client, self._request, self._token)
        record.readings.append(Reading(len(record.delivered)))
        self._alive = _Process(steps, client, record.readings[-1], self._token)
        return self._alive

    def _starts_at(self, request: ChangeFeedRequest) -> int:
        before = self._scenario.written_before
        match request.start_position:
            case Beginning():
                return before or 0
            case Now() | AtSnapshot():
                return len(self._record.truth) if before is None else before
            case AtTime() | FromContinuationToken():
                if before is None:
                    raise ValueError("set written_before to the number of changes before the start")
                return before
            case _:
                assert_never(request.start_position)

    def _note(self, process: _Process, step: ConsumerStep) -> None:
        self._failures = self._failures + 1 if isinstance(step, Failed) else 0
        record = self._record
        required_from = record.required_from or 0
        match step:
            case Received(page):
                process.reading.pages.append(page)
            case Delivered(event):
                process.events += 1
                record.delivered.append(event)
            case Stored(token):
                self._token = token
                number = len(self.steps_done) + 1
                self.snapshots.append(Snapshot(number, token, len(record.delivered), required_from))
            case Pause(idle):
                if idle:
                    record.idle.append(Idle(len(record.truth), len(record.delivered), required_from))
            case Failed(error):
                if self._failures > self._scenario.max_failures:
                    raise error
            case _:
                assert_never(step)

    def discard(self) -> None:
        """Discard the current consumer and its client."""
        process, self._alive = self._alive, None
        if process is None:
            return
        if isinstance(process.steps, Generator):
            process.steps.close()
        close = getattr(process.client, "close", None)
        if close is not None:
            close()

    def failed(self, error: Exception) -> None:
        """Record why the run cannot continue."""
        self._record.error = f"{error} (in {self._where})"

    def report(self, plan: str, name: str) -> RunReport:
        """Return all findings about the delivered events."""
        tree = self._scenario.lineage
        lineage = None if tree is None else tree(self._world)
        scenario = self._scenario
        return self._record.report(
            plan, name, scenario.marker, lineage, key_order=scenario.key_order, latest=scenario.latest
        )


Kill: TypeAlias = Callable[[Run[Any], ConsumerStep], bool]
"""A function that returns True if the consumer must be killed directly after this step."""


class _HopelessError(Exception):
    """Raised if the consumer makes no progress."""


class _Ending:
    """Makes sure that a run ends, and records the errors that a user's code would see."""

    def __init__(self, run: Run[Any]) -> None:
        self._run = run

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self._run.discard()
        if isinstance(error, MulticloudDbError | _HopelessError):
            self._run.failed(error)
            return True
        return False


def _named(change: WrittenChange) -> str:
    return f"delete of {change.key}" if change.marker is None else f"{change.key}={change.marker}"


def _described(step: ConsumerStep) -> str:
    match step:
        case Received(page):
            return f"received a page of {len(page.events)} events"
        case Delivered(event):
            return f"done with {event.type.value} of {event.key}"
        case Stored():
            return "stored a token"
        case Failed(error):
            return f"failed: {error}"
        case Pause(idle):
            return "idle" if idle else "done with a page"
        case _:
            assert_never(step)
