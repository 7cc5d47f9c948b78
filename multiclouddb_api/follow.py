"""The feeds that one iterator reads: a single one, or a partition and all that descends from it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

import attrs
import orjson

from multiclouddb_api.errors import MulticloudDbError, invalid_request
from multiclouddb_api.page import ChangeFeedPage, ChildPartition
from multiclouddb_api.position import FromContinuationToken, StartPosition
from multiclouddb_api.text import rfc3339

__all__ = ["Branch", "Lane", "Waiting"]

_VERSION: Final = 1


@attrs.define(eq=False)
class Lane:
    """One feed that is read.

    Attributes:
        partition_id: The partition; empty when the request's own scope is read.
        position: Everything up to here is done with.
    """

    partition_id: str
    position: StartPosition

    @property
    def token(self) -> str | None:
        """The position as a token; None before the first page."""
        return self.position.token if isinstance(self.position, FromContinuationToken) else None


@attrs.frozen
class Waiting:
    """A child that is not read yet.

    Attributes:
        partition_id: The child.
        token: Where it starts, as the last drained parent said.
        parents: Parents that have not been drained here. They may be followed by somebody else,
            or be descendants of a partition here that are not known yet.
        unsettled: Partitions here that the unknown ones of these may still descend from: a
            partition is settled when it is idle or read past `named_at` without having ended,
            since what ended before the child was made has no parent of it among its descendants.
        named_at: The service's time when the child was named, None where it does not tell.
    """

    partition_id: str
    token: str
    parents: frozenset[str]
    unsettled: frozenset[str]
    named_at: datetime | None


class Branch:
    """A partition and its descendants, in the order in which they get their turn.

    Args:
        root: The partition that the request names; empty when children are not followed.
        lanes: What is read.
        waiting: What will be read.
    """

    def __init__(self, root: str, lanes: Iterable[Lane], waiting: Iterable[Waiting] = ()) -> None:
        self.root = root
        self.lanes = list(lanes)
        self._waiting = {child.partition_id: child for child in waiting}

    def __contains__(self, partition_id: str) -> bool:
        return partition_id in self._waiting or any(lane.partition_id == partition_id for lane in self.lanes)

    @property
    def token(self) -> str | None:
        """What resumes here: the one lane's token, or with children the text of all of it."""
        if not self.root:
            return self.lanes[0].token if self.lanes else None
        if any(lane.token is None for lane in self.lanes):
            return None
        return self._to_text()

    def advance(self, lane: Lane, page: ChangeFeedPage, *, over: bool) -> None:
        """The caller is done with a page of this lane.

        Args:
            lane: Where the page is from; to the back of the queue.
            page: The page.
            over: True when the lane has ended with it.
        """
        lane.position = FromContinuationToken(page.continuation_token)
        if not self.root:
            return
        self.lanes.remove(lane)
        if over:
            self._retire(lane.partition_id, page)
        else:
            self.lanes.append(lane)
            self._settle(lane.partition_id, page)
        self._start_ready()

    def _retire(self, parent: str, page: ChangeFeedPage) -> None:
        fresh = [child for child in page.child_partitions if child.partition_id not in self]
        named = frozenset(child.partition_id for child in page.child_partitions)
        others = frozenset([*(lane.partition_id for lane in self.lanes), *self._waiting])
        for child in self._waiting.values():
            unsettled = child.unsettled
            if parent in unsettled:
                unsettled = (unsettled - {parent}) | (named - {child.partition_id})
            self._waiting[child.partition_id] = attrs.evolve(
                child, parents=child.parents - {parent}, unsettled=unsettled
            )
        for name in page.child_partitions:
            known = self._waiting.get(name.partition_id)
            if known is not None:
                self._waiting[name.partition_id] = attrs.evolve(known, token=name.continuation_token)
        for name in fresh:
            self._waiting[name.partition_id] = _waiting(name, parent, others, _service_time(page))

    def _settle(self, partition_id: str, page: ChangeFeedPage) -> None:
        for child in self._waiting.values():
            passed = (
                child.named_at and page.diagnostics.watermark and page.diagnostics.watermark > child.named_at
            )
            if partition_id in child.unsettled and (page.idle or passed):
                self._waiting[child.partition_id] = attrs.evolve(
                    child, unsettled=child.unsettled - {partition_id}
                )

    def _start_ready(self) -> None:
        while ready := self._unblocked():
            child = min(ready, key=lambda child: len(self._drained_first(child)))
            del self._waiting[child.partition_id]
            self.lanes.append(Lane(child.partition_id, FromContinuationToken(child.token)))

    def _unblocked(self) -> list[Waiting]:
        """Children that wait for nothing that is read: for nothing at all, or for each other only."""
        reading = {lane.partition_id for lane in self.lanes}
        blocked: set[str] = set()
        grown = True
        while grown:
            more = {
                child.partition_id
                for child in self._waiting.values()
                if child.partition_id not in blocked
                and not self._blockers(child).isdisjoint(reading | blocked)
            }
            blocked |= more
            grown = bool(more)
        return [child for child in self._waiting.values() if child.partition_id not in blocked]

    def _blockers(self, child: Waiting) -> frozenset[str]:
        if not child.parents:
            return frozenset()
        return child.parents | child.unsettled

    def _drained_first(self, child: Waiting) -> list[str]:
        """What the child may have to wait for, among the other waiting ones."""
        return [name for name in self._blockers(child) if name in self._waiting]

    def _to_text(self) -> str:
        return orjson.dumps(
            {
                "followed": _VERSION,
                "root": self.root,
                "reading": [[lane.partition_id, lane.token] for lane in self.lanes],
                "waiting": [
                    [
                        child.partition_id,
                        child.token,
                        sorted(child.parents),
                        sorted(child.unsettled),
                        None if child.named_at is None else rfc3339(child.named_at),
                    ]
                    for child in self._waiting.values()
                ],
            }
        ).decode()

    @staticmethod
    def is_text(token: str) -> bool:
        """True for what `token` gives with children; a service's token is never like it."""
        return token.startswith("{")

    @classmethod
    def from_text(cls, root: str, text: str) -> Branch:
        """The inverse of `token` with children.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` for another partition's, a damaged or a newer one.
        """
        try:
            fields = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise _damaged(f"is damaged ({error})") from error
        match fields:
            case {"followed": int() as version} if version > _VERSION:
                raise _damaged(f"is of version {version}, newer than {_VERSION}")
            case {
                "followed": int(),
                "root": str() as found,
                "reading": list() as reading,
                "waiting": list() as waiting,
            }:
                if found != root:
                    raise _damaged(f"follows the partition {found!r}, not {root!r}")
                branch = cls(root, map(_lane_in, reading), map(_waiting_in, waiting))
            case _:
                raise _damaged("is damaged")
        if len({lane.partition_id for lane in branch.lanes} | branch._waiting.keys()) < len(reading) + len(
            waiting
        ):
            raise _damaged("names a partition twice")
        return branch


def _waiting(
    child: ChildPartition, parent: str, others: frozenset[str], named_at: datetime | None
) -> Waiting:
    return Waiting(
        child.partition_id,
        child.continuation_token,
        frozenset(child.parents) - {parent},
        others - {child.partition_id},
        named_at,
    )


def _service_time(page: ChangeFeedPage) -> datetime | None:
    """The service's now; a lag of 0 also stands for "idle", so it tells nothing."""
    watermark, lag = page.diagnostics.watermark, page.diagnostics.lag_seconds
    return watermark + timedelta(seconds=lag) if watermark and lag else None


def _lane_in(item: Any) -> Lane:
    match item:
        case [str() as partition_id, str() as token] if partition_id:
            return Lane(partition_id, FromContinuationToken(token))
    raise _damaged("has a partition of an unknown form")


def _waiting_in(item: Any) -> Waiting:
    match item:
        case [
            str() as partition_id,
            str() as token,
            list() as parents,
            list() as unsettled,
            (str() | None) as moment,
        ] if partition_id and all(isinstance(name, str) for name in [*parents, *unsettled]):
            return Waiting(partition_id, token, frozenset(parents), frozenset(unsettled), _moment_in(moment))
    raise _damaged("has a waiting child of an unknown form")


def _moment_in(text: str | None) -> datetime | None:
    try:
        moment = None if text is None else datetime.fromisoformat(text)
    except ValueError as error:
        raise _damaged(f"has a damaged time ({error})") from error
    if moment is not None and moment.utcoffset() is None:
        raise _damaged("has a time without a zone")
    return moment


def _damaged(problem: str) -> MulticloudDbError:
    return invalid_request(
        "continuation token of follow_children", problem, "use what this iterator's continuation_token gave"
    )
