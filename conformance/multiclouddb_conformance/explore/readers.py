"""Reads a feed in steps: one answer of one partition at a time, whole pages, or planned batches."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from typing import Any, Final, cast

from multiclouddb_api import (
    ChangeEvent,
    ChangeFeedRequest,
    ClientConfig,
    EntireCollection,
    ErrorCategory,
    Fail,
    FromContinuationToken,
    Gap,
    MulticloudDbError,
    Notice,
    OnExpired,
    OperationOptions,
    PartitionFoundLate,
    PhysicalPartition,
    SkipToOldest,
)
from multiclouddb_conformance.explore.service import At, Got, moment_of
from multiclouddb_conformance.explore.world import BrokenError, ListingKind, World, ancestors, hides
from multiclouddb_spi import Batch, Continue, Deadline, Engine, Feed, FeedSpec, Provider
from multiclouddb_spi.continuation.entry import Entry, Stage
from multiclouddb_spi.continuation.follow import Follow, Found, Looks, apply_end
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.token import decode_token
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.errors import fault_of
from multiclouddb_spi.faults import ProviderFault
from multiclouddb_spi.fetching.consumer import Consumer
from multiclouddb_spi.fetching.consumers import Consumers
from multiclouddb_spi.fetching.fetcher import Fetcher, InlineExecutor, ReadContext
from multiclouddb_spi.fetching.stream import Budget
from multiclouddb_spi.interrupts import End
from multiclouddb_spi.observing import Observing
from multiclouddb_spi.partition import decode_partition_id
from multiclouddb_spi.planning.planner import Planner
from multiclouddb_spi.planning.ranges import Range, read_range
from multiclouddb_spi.planning.target import Target
from multiclouddb_spi.reading.filling import Filling
from multiclouddb_spi.retry import ATTEMPTS, directly

__all__ = ["REFUSED", "Answers", "Pages", "Planned", "Polls", "Reader", "audit_of", "engine_of"]

_SECONDS: Final = 20.0
_BYTES: Final = 1 << 20
_ALL: Final = 1000
_NEVER: Final = 1e9
REFUSED: Final = "refused by the explorer"
"""The code of a fault that a step of the explorer has caused."""


class Reader(ABC):
    """Reads a feed; a token is all that it keeps from step to step."""

    rules: Feed

    def open(self, at: At) -> str:
        """Start a feed; return its token."""
        provider = at.service.provider()
        self.rules = provider.open_feed(FeedSpec(at.service.address), _deadline())
        return self.begin(at)

    @abstractmethod
    def begin(self, at: At) -> str:
        """Start a feed; return its token."""

    @abstractmethod
    def steps(self, at: At) -> list[str]:
        """Return the steps that a consumer can make."""

    @abstractmethod
    def rest(self, at: At, world: World) -> list[str]:
        """Return the steps that read everything; one that changes nothing is not made again."""

    @abstractmethod
    def step(self, at: At, name: str) -> tuple[str, Got]:
        """Make a step; return the token after it, and what the consumer was told."""

    @abstractmethod
    def state(self, token: str) -> Any:
        """Return the lineage in a token as JSON."""

    def mark(self, at: At) -> Hashable:
        """Return what a token decides."""
        return tuple(marked(at, self.rules, self._lineage(at, self.rules)))

    def kept(self, at: At, token: str) -> Collection[str]:
        """Return the partitions that are read, and that stand after a step where they stood before."""
        before = {each.partition_id: each.cursor for each in self._lineage(at, self.rules).active()}
        value = self.state(token)
        after = Lineage.from_json(value, self.rules).active() if "p" in value else []
        return [one.partition_id for one in after if before.get(one.partition_id, _NEVER) == one.cursor]

    def check_quiet(self, at: At) -> None:
        """Check that a feed of which everything was read waits for nothing."""
        lineage = self._lineage(at, self.rules)
        if waiting := lineage.waiting():
            raise BrokenError(f"waits for ever: {[(each.partition_id, each.waits) for each in waiting]}")
        if not lineage.is_quiet({each.partition_id for each in lineage.active()}):
            raise BrokenError("never idle")
        if len(lineage) > len(at.node.names):
            raise BrokenError(f"a token of {len(lineage)} entries for {len(at.node.names)} partitions")

    def _lineage(self, at: At, feed: Feed) -> Lineage:
        value = self.state(at.token)
        lineage = Lineage.from_json(value, feed)
        lineage.root = at.root
        if Lineage.from_json(lineage.to_json(), feed).to_json() != value:
            raise BrokenError("a token is read as something else")
        return lineage


class Answers(Reader):
    """One answer of one partition at a time, in any order."""

    def begin(self, at: At) -> str:
        with opened(at) as (provider, feed):
            lineage = Planner(provider, feed).start(at.service.position, _deadline())
            if at.root is not None:
                lineage = Lineage([each for each in lineage if each.partition_id == at.root], feed)
            return json.dumps(lineage.to_json())

    def state(self, token: str) -> Any:
        return json.loads(token)

    def steps(self, at: At) -> list[str]:
        found, late = list[str](), False
        for item in self.state(at.token)["p"]:
            if len(item) == 2:
                i = at.index(item[0])
                found += [f"read {i}", f"read one of {i}"]
            late = late or item[2:3] == [1]
        found += ["look"] if late else []
        return [*found, "search"] if "a" in self.state(at.token) else found

    def rest(self, at: At, world: World) -> list[str]:
        steps = [name for name in self.steps(at) if not name.startswith("read one")]
        return [*steps, "start"]

    def step(self, at: At, name: str) -> tuple[str, Got]:
        with opened(at) as (provider, feed):
            lineage = self._lineage(at, feed)
            follow = Follow(feed, lineage, directly, _deadline(), _policy(at), Looks(), 600.0)
            if lineage.waiting():
                lineage.start_passed()
            stood = {each.partition_id: each.cursor for each in lineage.active()}
            try:
                match name.split():
                    case ["read", "one", "of", i]:
                        got = self._read(at, provider, feed, lineage, follow, int(i), 1)
                    case ["read", i]:
                        got = self._read(at, provider, feed, lineage, follow, int(i), _ALL)
                    case ["look"]:
                        got = _found(at, follow.look(lineage.ends()))
                    case ["search"]:
                        got = _found(at, follow.search(_deadline()))
                    case _:
                        got = Got()
            except Exception as error:
                if not _may_end(at, _category(provider, error)):
                    raise
                return at.token, Got(over=True)
            for each in lineage.active():
                name, was = each.partition_id, stood.get(each.partition_id)
                if was is not None and feed.compare(was, each.cursor) == -1 and not _tells_of(at, got, name):
                    raise BrokenError(f"{name} moves forward without a notice of its own")
            return json.dumps(lineage.to_json()), got

    def _read(
        self, at: At, provider: Provider, feed: Feed, lineage: Lineage, follow: Follow, i: int, most: int
    ) -> Got:
        name = at.node.names[i]
        if lineage.reading(name) is None:
            return Got()
        with closing(feed.open(name, lineage.cursor(name))) as reader:
            try:
                for _ in range(at.service.empty_answers + 1):
                    batch = reader.fetch(most, _BYTES, 0.0, _deadline())
                    lineage.took(name, batch.cursor_after(len(batch)))
                    if len(batch) or batch.caught_up is not False or not isinstance(batch.outcome, Continue):
                        break
            except Exception as error:
                if at.bounds.fails or _category(provider, error) != ErrorCategory.CHECKPOINT_EXPIRED:
                    raise
                return _found(at, Found(gaps=follow.told(follow.lost((name,)))))
            events = [moment_of(event) for event in batch.events(0, len(batch))]
            apply_end(lineage, name, batch.outcome, names_late=feed.names_late)
            return Got(events=events, read=i)


class Pages(Reader):
    """Whole pages, each read by another process."""

    def begin(self, at: At) -> str:
        with closing(engine_of(at.service.provider())) as engine:
            request = ChangeFeedRequest(at.service.address, at.service.position, scope=self._scope(at))
            return str(engine.read_changes(request, _options()).continuation_token)

    def _scope(self, at: At) -> EntireCollection | PhysicalPartition:
        if at.root is None:
            return EntireCollection()
        return PhysicalPartition(self.rules.public_id(at.root), with_descendants=True)

    def state(self, token: str) -> Any:
        return decode_token(token).state

    def steps(self, at: At) -> list[str]:
        late = ["page and search"] if "a" in self.state(at.token) else []
        return ["page", "page of one", *late]

    def rest(self, at: At, world: World) -> list[str]:
        return self.steps(at)[::-1]

    def step(self, at: At, name: str) -> tuple[str, Got]:
        with closing(engine_of(at.service.provider(), audit=audit_of(name))) as engine:
            return self._page(at, engine, self._request(at, at.token, name))

    def _request(self, at: At, token: str, name: str) -> ChangeFeedRequest:
        return ChangeFeedRequest(
            at.service.address,
            FromContinuationToken(token),
            scope=self._scope(at),
            on_expired=_policy(at),
            max_page_size=1 if name == "page of one" else 0,
            include_native=name == "page of another",
        )

    def _page(
        self, at: At, engine: Engine, request: ChangeFeedRequest, *, may_fail: bool = False
    ) -> tuple[str, Got]:
        """Read a page; with `may_fail`, partitions may not answer, and the call may end with an error."""
        assert isinstance(request.start_position, FromContinuationToken)
        token = request.start_position.token
        try:
            page = engine.read_changes(request, _options())
        except MulticloudDbError as error:
            if error.retryable and (may_fail or (at.root is not None and hides(at.node.world))):
                return token, Got()  # what follows a lost partition may be listed soon
            if not _may_end(at, error.category):
                raise BrokenError(f"a page fails: {error}") from error
            return token, Got(over=True)
        if any((event.native is not None) != request.include_native for event in page.events):
            raise BrokenError("a page has what another request asks for")
        told = _told(at, self.state(at.token), page.notices, page.events, idle=page.idle)
        is_told = page.events or page.notices or page.idle or hides(at.node.world) or may_fail
        if at.root is None and not is_told:
            raise BrokenError("a page has nothing, and is not idle")
        return page.continuation_token, told


class Polls(Answers):
    """What one call reads, which may leave out partitions; which of them is the explorer's choice."""

    def steps(self, at: At) -> list[str]:
        state = self.state(at.token)
        active = [at.index(item[0]) for item in state["p"] if len(item) == 2]
        without = [f"poll without {i}" for i in active]
        late = ["poll and search"] if "a" in state else []
        return ["poll", "poll of one", *without, *(["poll without all"] if len(active) > 1 else []), *late]

    def rest(self, at: At, world: World) -> list[str]:
        return [name for name in self.steps(at)[::-1] if "without" not in name]

    def step(self, at: At, name: str) -> tuple[str, Got]:
        with opened(at) as (provider, feed):
            lineage = self._lineage(at, feed)
            if lineage.waiting():
                lineage.start_passed()
            context = _context(provider, audit=audit_of(name))
            consumer, left_out = Consumer(feed, lineage, "", ""), set[str]()
            if leaves_out := "without" in name:
                choice = name.split()[-1]
                for each in lineage.active():
                    if choice == "all" or at.index(each.partition_id) == int(choice):
                        stream = consumer.at(
                            each.partition_id, each.cursor, context.budget, context.observing
                        )
                        stream.due_at = _NEVER
                        left_out.add(each.partition_id)
            limit = 1 if name == "poll of one" else _ALL
            try:
                result = Filling(
                    context, consumer, limit, _ALL << 20, Batch.events, _deadline(), wait=0.0,
                    on_expired=_policy(at), single=False, now=lambda: None, leaves_out=leaves_out,
                ).run()  # fmt: skip
            finally:
                consumer.discard()
            stuck = result.failure
            if stuck is not None and not result.count:
                category = _category(provider, stuck[1])
                if (
                    category == ErrorCategory.TRANSIENT_FAILURE
                    and at.root is not None
                    and hides(at.node.world)
                ):
                    return at.token, Got()  # what follows a lost partition may be listed soon
                if not _may_end(at, category):
                    raise BrokenError(f"a call fails: {stuck[1]}") from stuck[1]
                return at.token, Got(over=True)
        events = chain.from_iterable(result.values)
        told = _told(
            at, self.state(at.token), result.notices, events, idle=result.idle, noticed=result.noticed
        )
        found = result.count or result.notices
        if leaves_out:
            if result.idle:
                raise BrokenError("idle, although partitions were left out")
            asked = {each.partition_id for each in lineage.active()} - left_out
            asks = asked or lineage.ends() or lineage.audited is not None
            due_at = result.due_at or 0.0
            if not found and (due_at >= _NEVER if asks else due_at < _NEVER):
                raise BrokenError(f"a call has nothing, and the next one has at {due_at}")
            if not (found or lineage.ends()) and due_at <= time.monotonic():
                raise BrokenError("a call has nothing, and a loop would not wait")
        return json.dumps(lineage.to_json()), told


class Planned(Reader):
    """Batches of the planner; each can be read again, and has the same rows."""

    def begin(self, at: At) -> str:
        return json.dumps([json.loads(Answers().begin(at)), []])

    def state(self, token: str) -> Any:
        return json.loads(token)[0]

    def mark(self, at: At) -> Hashable:
        place = at.service.place
        batch = [(one[0], *(place(self.rules, each) for each in one[1:3])) for one in json.loads(at.token)[1]]
        return tuple(batch), tuple(marked(at, self.rules, self._lineage(at, self.rules)))

    def steps(self, at: At) -> list[str]:
        state = self.state(at.token)
        again = ["again"] if json.loads(at.token)[1] else []
        late = ["plan and search"] if "a" in state else []
        active = [at.index(item[0]) for item in state["p"] if len(item) == 2]
        some = [f"plan {which} {i}" for which in ("only", "without") for i in active]
        return [*(some if len(active) > 1 else []), "plan", "plan one", *late, *again]

    def rest(self, at: At, world: World) -> list[str]:
        steps = ["plan", "plan and search", "again"]
        return [name for name in self.steps(at)[::-1] if name in steps]

    def step(self, at: At, name: str) -> tuple[str, Got]:
        state, batch = json.loads(at.token)
        with opened(at) as (provider, feed):
            if name == "again":
                self._repeat(at, provider, feed, batch)
                return at.token, Got()
            context = _context(provider, audit=audit_of(name))
            asked = feed
            if name.startswith("plan without"):
                asked = cast(Feed, _Refusing(feed, at.node.names[int(name.split()[-1])]))
            planner = Planner(provider, asked, _policy(at), context=context)
            try:
                step = planner.advance(
                    planner.restore(state),
                    1 if name == "plan one" else None,
                    _deadline(),
                    _only(at, planner.restore(state), name),
                    allow_empty=True,
                )
            except Exception as error:
                if asked is not feed and fault_of(provider, error).code == REFUSED:
                    return at.token, Got()  # nothing else has records
                if not _may_end(at, _category(provider, error)):
                    raise
                return at.token, Got(over=True)
            finally:
                context.consumers.close()
            parts = [(each, self._rows(at, provider, feed, each)) for each in step.ranges()]
            rows = [row for _, found in parts for row in found]
            gap, again = _gaps(at, [place.split(" after ")[0] for place in step.skipped])
            batch = [[each.partition_id, each.start, each.until, found] for each, found in parts]
            told = Got(
                gap,
                [_native(at, late.partition_id) for late in step.found_late],
                again=again,
                events=rows,
                together={i for i, _ in rows},
            )
            return json.dumps([step.after.to_json(), batch]), told

    def _rows(self, at: At, provider: Provider, feed: Feed, part: Range) -> list[tuple[int, int]]:
        if part.until is not None and feed.compare(part.start, part.until) == 1:
            raise BrokenError(f"a range of {part.partition_id} ends before it begins")
        found = list[tuple[int, int]]()
        for batch in read_range(provider, feed, part, _policy(at)):
            found += map(moment_of, batch.events(0, len(batch)))
        return found

    def _repeat(self, at: At, provider: Provider, feed: Feed, batch: Sequence[Any]) -> None:
        world = at.node.world
        for name, start, until, rows in batch:
            wanted = [tuple(row) for row in rows]
            try:
                found = self._rows(at, provider, feed, Range(name, start, until))
            except MulticloudDbError as error:
                if world.kept and _may_end(at, error.category):
                    continue
                raise BrokenError(f"a batch cannot be read again: {error}") from error
            kept = [row for row in wanted if row[1] > world.kept]
            if found not in (wanted, kept):
                raise BrokenError(f"a batch of {name} had {wanted}, and has {found} now")


@contextmanager
def opened(at: At) -> Iterator[tuple[Provider, Feed]]:
    """Open the feed in a new process."""
    with closing(at.service.provider()) as provider:
        yield provider, provider.open_feed(FeedSpec(at.service.address), _deadline())


def marked(at: At, feed: Feed, lineage: Lineage) -> Iterator[Hashable]:
    """Yield what decides of each entry."""
    for each in lineage:
        if isinstance(each, Entry):
            end = each.stage is Stage.END
            said = () if end else tuple(at.service.place(feed, cursor) for cursor in each.said)
            yield each.partition_id, each.stage.name, said, each.waits, frozenset(each.children)


class _Refusing:
    """A feed without cheap heads, one partition of which does not answer."""

    def __init__(self, feed: Feed, name: str) -> None:
        self._feed, self._name = feed, name

    def __getattr__(self, name: str) -> Any:
        if name == "heads":
            raise AttributeError(name)
        return getattr(self._feed, name)

    def open(self, partition_id: str, cursor: Cursor, until: Cursor = None) -> Any:
        reader = self._feed.open(partition_id, cursor, until)
        if partition_id == self._name:
            cast(Any, reader).fetch = _refuse
        return reader


def _refuse(*_: object) -> Batch:
    raise ProviderFault.of(ErrorCategory.TRANSIENT_FAILURE, "no answer", REFUSED, retryable=True)


def _only(at: At, lineage: Lineage, step: str) -> Target | None:
    """Return a target at which every partition stands but the one that a step names."""
    if not step.startswith("plan only"):
        return None
    name = at.node.names[int(step.split()[-1])]
    stands = {each.partition_id: each.cursor for each in lineage.active() if each.partition_id != name}
    return Target(stands, frozenset({name}))


def _found(at: At, found: Found) -> Got:
    gap, again = _gaps(at, [each.partition_id for each, _ in found.gaps])
    left = [name for _, started in found.gaps for name in started]
    left += [_native(at, late.partition_id) for late in found.late]
    return Got(gap, left, again=again)


def _told(
    at: At,
    state: Any,
    notices: Collection[Notice],
    found: Iterable[ChangeEvent],
    *,
    idle: bool,
    noticed: Collection[str] = (),
) -> Got:
    """Return what a consumer was told by a page; check that no notice stands beside records after it.

    `noticed` are the partitions of the notices, and those at which reading goes on after a loss, which the
    notice has only as text.
    """
    before = {at.index(item[0]) for item in state.get("p", ()) if len(item) == 2}
    gap, again = _gaps(at, [each.partition_id for each in notices if isinstance(each, Gap)])
    left = [_native(at, each.partition_id) for each in notices if isinstance(each, PartitionFoundLate)]
    left += [one for one in noticed if one not in (*gap, *left)]
    events = [moment_of(event) for event in found]
    told = {at.index(name) for name in (*gap, *left)}
    # What retention has removed was fetched before, so it comes before the notice.
    for i in {i for i, moment in events if moment > at.node.world.kept}:
        # What was read before the call goes on beside the notice of a parent that had ended, with all that
        # descends from it: that notice tells of other children.
        if not told.isdisjoint({i, *ancestors(at.node.world, i, until=before)}):
            raise BrokenError(f"{i} is read on the page that has a notice of {sorted(told)}")
    return Got(gap, left, again=again, events=events, idle=idle)


def _gaps(at: At, told: Sequence[str]) -> tuple[list[str], bool]:
    """Return the partitions of which notices tell a loss, and whether one names the collection."""
    where = str(at.service.address)
    if len(set(told)) < len(told):
        raise BrokenError(f"a loss is told twice: {told}")
    return [_native(at, one) for one in told if one != where], where in told


def _tells_of(at: At, got: Got, name: str) -> bool:
    return name in got.gap or at.index(name) == got.read


def engine_of(provider: Provider, audit: float = _NEVER, attempts: int = ATTEMPTS) -> Engine:
    """Make a client that reads one partition after the other, without pauses."""
    config = ClientConfig("explored", {}, coverage_audit_seconds=audit)
    return Engine(provider, config, executor=InlineExecutor(), attempts=attempts, pause=lambda _: None)


def audit_of(step: str) -> float:
    """Return how often a client looks for uncovered partitions in a step."""
    return 0.0 if step.endswith("and search") else _NEVER


def _context(provider: Provider, audit: float) -> ReadContext:
    """Return what the calls of a client share that reads one partition after the other."""
    budget, observing, closed = Budget(_ALL * _BYTES), Observing(None), End()
    fetcher = Fetcher(provider, InlineExecutor(), observing, closed, pause=lambda _: None)
    return ReadContext(
        fetcher, Consumers(budget, _ALL), budget, observing, closed,
        width=1, page_records=_ALL, watch_seconds=600.0, audit_seconds=audit,
    )  # fmt: skip


def _policy(at: At) -> OnExpired:
    return Fail() if at.bounds.fails else SkipToOldest()


def _may_end(at: At, category: ErrorCategory) -> bool:
    """Return whether the feed may end with an error: not if it skips, and can prove what descends from it."""
    unclear = at.root is not None and at.service.kind is not ListingKind.LISTED
    return category == ErrorCategory.CHECKPOINT_EXPIRED and (at.bounds.fails or unclear)


def _category(provider: Provider, error: Exception) -> ErrorCategory:
    return fault_of(provider, error).category


def _native(at: At, public_id: str) -> str:
    return decode_partition_id(public_id, public_id.partition(":")[0], at.service.address).native


def _options() -> OperationOptions:
    return OperationOptions(timeout_seconds=_SECONDS)


def _deadline() -> Deadline:
    return Deadline.after(_SECONDS)
