"""What one iterator reads: a single feed, or a partition and all that descends from it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs
import orjson

from multiclouddb_api.errors import MulticloudDbError, invalid_request
from multiclouddb_api.page import ChangeFeedPage
from multiclouddb_api.position import FromContinuationToken, StartPosition
from multiclouddb_api.text import rfc3339

__all__ = ["Branch", "Lane", "Waiting"]

_VERSION: Final = 1
_LATE: Final = datetime.max.replace(tzinfo=UTC)


@attrs.define(eq=False)
class Lane:
    """One feed that is read.

    Attributes:
        partition_id: The partition; empty when the request's own scope is read.
        position: The caller is done with everything up to here.
        named: None while it is read. Once it has ended: the children that it has named; its token is read
            again as long as the service may name more of them.
    """

    partition_id: str
    position: StartPosition
    named: frozenset[str] | None = None

    @property
    def token(self) -> str | None:
        """The position as a token; None before the first page."""
        return self.position.token if isinstance(self.position, FromContinuationToken) else None


@attrs.frozen
class Waiting:
    """A child that is not read yet.

    A parent that is not followed here may be somebody else's, or a descendant of a partition that
    is read here and has not come to its end. The second kind is recognized by this: it existed
    before the child was made, so the partition that it descends from had ended by then. One that is
    read past that time, or is idle, without coming to an end is settled: it has no part in it.

    Attributes:
        partition_id: The child.
        token: Where it starts, as the parent said that was drained first.
        parents: Its parents that are not drained here.
        unsettled: The partitions followed here that the unknown ones of them may descend from.
        made_at: About when the child was made: up to where the parent that named it was read. None
            where the service does not tell.
        named_at: The service's time when the child was named; None where it does not tell.
    """

    partition_id: str
    token: str
    parents: frozenset[str]
    unsettled: frozenset[str]
    made_at: datetime | None
    named_at: datetime | None

    def waits_for(self) -> frozenset[str]:
        """Ids that keep it from starting as long as they are followed here."""
        return self.parents | self.unsettled if self.parents else frozenset()

    def without(self, parent: str, heirs: frozenset[str]) -> Waiting:
        """The same when a partition has been drained and others, or its watch, have taken its place."""
        unsettled = self.unsettled
        if parent in unsettled:
            unsettled = (unsettled - {parent} | heirs) - {self.partition_id}
        return attrs.evolve(self, parents=self.parents - {parent}, unsettled=unsettled)

    def after(self, partition_id: str, page: ChangeFeedPage) -> Waiting:
        """The same when a page of a partition, which has not ended with it, is done."""
        watermark = page.diagnostics.watermark
        passed = self.named_at is not None and watermark is not None and watermark > self.named_at
        if not (page.idle or passed):
            return self
        return attrs.evolve(self, unsettled=self.unsettled - {partition_id})


class Branch:
    """A partition and its descendants, in the order in which they get their turn.

    Args:
        root: The partition that the request names; empty when children are not followed.
        lanes: What is read.
        waiting: What will be read.
        watches: What has ended and may name more children.
        done: What has ended, as long as somebody may name one of them again.
    """

    def __init__(
        self,
        root: str,
        lanes: Iterable[Lane],
        waiting: Iterable[Waiting] = (),
        watches: Iterable[Lane] = (),
        done: Iterable[str] = (),
    ) -> None:
        self.root = root
        self.lanes = list(lanes)
        self.watches = list(watches)
        self._waiting = {child.partition_id: child for child in waiting}
        self._done = set(done)

    @classmethod
    def from_text(cls, root: str, text: str) -> Branch:
        """The inverse of `token` with children.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` for one that is another partition's, damaged or newer.
        """
        try:
            fields = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise _damaged(f"is damaged ({error})") from error
        match fields:
            case {"followed": int() as version} if version > _VERSION:
                raise _damaged(f"is of version {version}, newer than {_VERSION}")
            case {
                "followed": 1,
                "root": str() as found,
                "reading": list() as lanes,
                "waiting": list() as waiting,
                "watching": list() as watching,
                "done": list() as done,
            } if all(isinstance(name, str) for name in done):
                if found != root:
                    raise _damaged(f"follows the partition {found!r}, not {root!r}")
                watches = map(_watch_in, watching)
                branch = cls(root, map(_lane_in, lanes), map(_waiting_in, waiting), watches, done)
            case _:
                raise _damaged("is damaged")
        if len(branch._ids() | branch._watched()) < len(lanes) + len(waiting) + len(watching):
            raise _damaged("names a partition twice")
        return branch

    @staticmethod
    def is_text(token: str) -> bool:
        """True for what `token` gives with children; a service's token never looks like it."""
        return token.startswith("{")

    @property
    def token(self) -> str | None:
        """What resumes here: the one feed's token, or with children a text of all positions."""
        tokens = [lane.token for lane in self.lanes]
        if None in tokens:
            return None
        if not self.root:
            return tokens[0]
        fields = {
            "followed": _VERSION,
            "root": self.root,
            "reading": [[lane.partition_id, lane.token] for lane in self.lanes],
            "waiting": [_waiting_out(child) for child in self._waiting.values()],
            "watching": [[lane.partition_id, lane.token, sorted(lane.named or ())] for lane in self.watches],
            "done": sorted(self._done),
        }
        return orjson.dumps(fields).decode()

    def is_settled(self) -> bool:
        """False when a child waits only until it is seen whether its parents descend from here."""
        reading = {lane.partition_id for lane in self.lanes}
        return all(reading.isdisjoint(child.unsettled) for child in self._waiting.values())

    def says_something(self, lane: Lane, page: ChangeFeedPage) -> bool:
        """False for a page of a watch that names no child which was not known."""
        return lane.named is None or bool(_named_on(page) - lane.named)

    def advance(self, lane: Lane, page: ChangeFeedPage, *, over: bool) -> None:
        """The caller is done with a page.

        Args:
            lane: Where it is from; goes to the back of the queue.
            page: The page.
            over: True when the lane has ended with it.
        """
        lane.position = FromContinuationToken(page.continuation_token)
        if not self.root:
            return
        (self.lanes if lane.named is None else self.watches).remove(lane)
        if over:
            self._retire(lane, page)
        else:
            self.lanes.append(lane)
            self._waiting = {
                name: child.after(lane.partition_id, page) for name, child in self._waiting.items()
            }
        self._start()
        if not self.watches and not self._waiting:
            self._done.clear()

    def _ids(self) -> set[str]:
        return {lane.partition_id for lane in self.lanes} | self._waiting.keys()

    def turns(self) -> list[Lane]:
        """Everything whose token is read: what is read, and what has ended and may name more children."""
        return self.watches + self.lanes

    def is_watched(self, partition_id: str) -> bool:
        """Whether a partition has ended and may name more children."""
        return partition_id in self._watched()

    def _watched(self) -> set[str]:
        return {lane.partition_id for lane in self.watches}

    def _retire(self, lane: Lane, page: ChangeFeedPage) -> None:
        parent, before = lane.partition_id, lane.named or frozenset()
        others = frozenset(self._ids())
        known = others | before | self._done
        named = _named_on(page)
        self._done.add(parent)
        watched = bool(page.diagnostics.open_watches)
        heirs = (named - self._done) | ({parent} if watched else set())
        self._waiting = {name: child.without(parent, heirs) for name, child in self._waiting.items()}
        if watched:
            self.watches.append(Lane(parent, lane.position, before | named))
        for child in page.child_partitions:
            if child.partition_id not in known:
                self._waiting[child.partition_id] = Waiting(
                    child.partition_id,
                    child.continuation_token,
                    frozenset(child.parents) - self._done,
                    others | self._watched(),
                    page.diagnostics.watermark,
                    _service_time(page),
                )

    def _start(self) -> None:
        while ready := self._ready():
            child = min(ready, key=self._rank)
            del self._waiting[child.partition_id]
            self.lanes.append(Lane(child.partition_id, FromContinuationToken(child.token)))

    def _rank(self, child: Waiting) -> tuple[int, bool, datetime]:
        """Of those that wait for each other, a known parent goes first, then the one made first.

        Where the service does not tell the time it is the one named first: which of two children
        with unknown parents is the older one is not known then, and none must wait for ever.
        """
        known_parents = len(child.parents & self._waiting.keys())
        waits = not child.waits_for().isdisjoint(self._waiting)
        return known_parents, waits, child.made_at or _LATE

    def _ready(self) -> list[Waiting]:
        """Children that wait for nothing that is read: for nothing at all, or for each other only."""
        blocked = {lane.partition_id for lane in self.turns()}
        left = list(self._waiting.values())
        while hit := [child for child in left if not blocked.isdisjoint(child.waits_for())]:
            blocked.update(child.partition_id for child in hit)
            left = [child for child in left if child.partition_id not in blocked]
        return left


def _named_on(page: ChangeFeedPage) -> frozenset[str]:
    return frozenset(child.partition_id for child in page.child_partitions)


def _service_time(page: ChangeFeedPage) -> datetime | None:
    """The service's now; a lag of 0 also stands for "idle", so it tells nothing."""
    watermark, lag = page.diagnostics.watermark, page.diagnostics.lag_seconds
    return watermark + timedelta(seconds=lag) if watermark and lag else None


def _waiting_out(child: Waiting) -> list[Any]:
    moments = [None if moment is None else rfc3339(moment) for moment in (child.made_at, child.named_at)]
    return [child.partition_id, child.token, sorted(child.parents), sorted(child.unsettled), *moments]


def _lane_in(item: Any) -> Lane:
    match item:
        case [str() as partition_id, str() as token] if partition_id and token:
            return Lane(partition_id, FromContinuationToken(token))
    raise _damaged("has a partition of an unknown form")


def _watch_in(item: Any) -> Lane:
    match item:
        case [str() as partition_id, str() as token, list() as named] if (
            partition_id and token and all(isinstance(name, str) for name in named)
        ):
            return Lane(partition_id, FromContinuationToken(token), frozenset(named))
    raise _damaged("has an ended partition of an unknown form")


def _waiting_in(item: Any) -> Waiting:
    match item:
        case [str() as partition_id, str() as token, list() as parents, list() as unsettled, made, named] if (
            partition_id and token and all(isinstance(name, str) for name in [*parents, *unsettled])
        ):
            return Waiting(
                partition_id,
                token,
                frozenset(parents),
                frozenset(unsettled),
                _moment_in(made),
                _moment_in(named),
            )
    raise _damaged("has a waiting child of an unknown form")


def _moment_in(text: Any) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except (ValueError, TypeError) as error:
        raise _damaged(f"has a damaged time ({error})") from error
    if moment.utcoffset() is None:
        raise _damaged("has a time without a zone")
    return moment


def _damaged(problem: str) -> MulticloudDbError:
    return invalid_request(
        "continuation token of follow_children", problem, "use what this iterator's continuation_token gave"
    )
