"""The shards of a stream, as the service lists them."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import attrs
from botocore.exceptions import ClientError, ParamValidationError

from multiclouddb_dynamo.calls import Calls
from multiclouddb_dynamo.errors import GONE, REJECTED, code_of
from multiclouddb_spi import Deadline

__all__ = ["Listing", "Shard", "ShardMap"]

T = TypeVar("T")
_STALE_GROWTH: Final = 2
_LISTINGS: Final = 3
_FULL_LOOK_SECONDS: Final = 60.0
# One open child may be half of a split whose other half is listed a little later. It is believed when it has
# been alone for this long, or when its parent has had no record for this long.
_ALONE_SECONDS: Final = 1.0
_QUIET_SECONDS: Final = 60
_NAP_SECONDS: Final = 0.05


@attrs.frozen
class Shard:
    """One shard as the service lists it.

    Attributes:
        shard_id: Its id.
        parent: The shard that it came from, listed or not, or None.
        last: The sequence number that it ended with; None while it is open.
        first: The sequence number that it begins with.
        seen: When it was listed, in seconds since 1970; None where the service does not tell.
    """

    shard_id: str
    parent: str | None
    last: str | None
    first: str
    seen: int | None


@attrs.define
class Listing:
    """A listing on its way: what has failed goes on behind the last page that was read.

    Pages are of different moments: of a split between two of them one child may be left out.

    Attributes:
        shards: What its pages have so far.
        pages: How many there were.
        behind: The shard that the next page goes on behind; None in front of the first and behind the last.
        number: Higher for one that began later.
        closed: The shards that were known to have ended when it began: it has all their children.
    """

    shards: dict[str, Shard] = attrs.field(factory=dict)
    pages: int = 0
    behind: str | None = None
    number: int = 0
    closed: frozenset[str] = frozenset()

    @property
    def is_whole(self) -> bool:
        """True when its last page was read."""
        return self.pages > 0 and self.behind is None


class ShardMap:
    """The shards of one stream: listed in full once, then by what is asked for; for several threads.

    Args:
        calls: Makes the calls.
        arn: The stream.
    """

    def __init__(self, calls: Calls, arn: str) -> None:
        self._calls, self._arn = calls, arn
        self._lock = threading.Lock()
        self._shards: dict[str, Shard] = {}
        self._children: dict[str, tuple[Shard, ...]] = {}
        self._listed: dict[str, Shard] = {}
        self._read_at = -math.inf
        self._alone: dict[str, tuple[float, float]] = {}  # shard → first and last look at its only child
        self._sure: frozenset[str] = frozenset()
        self._begun = self._number = 0
        self._filters = self._enabled = True
        self.pages = 0

    def read(self, deadline: Deadline, listing: Listing | None = None) -> Listing:
        """Every shard that the service lists; a parent may come on a later page than its child.

        Args:
            deadline: When it has to be over.
            listing: What an earlier try of the same call has read of it, changed in place; by default all
                is asked now.
        """
        listing = listing or Listing()
        if listing.is_whole:
            return listing
        for attempt in range(1, _LISTINGS + 1):
            try:
                self._go_on(listing, deadline)
                break
            except ClientError as error:
                # The shard that a page goes on behind may be gone by then.
                if code_of(error) not in GONE or attempt == _LISTINGS or listing.behind is None:
                    raise
                listing.pages = 0
        self._remember(listing)
        return listing

    def _go_on(self, listing: Listing, deadline: Deadline) -> None:
        if listing.pages == 0:
            with self._lock:
                self._begun += 1
                listing.shards, listing.behind, listing.number = {}, None, self._begun
                listing.closed = frozenset(
                    name for name, shard in self._shards.items() if shard.last is not None
                )
        series = _Series(self._calls)
        while not listing.is_whole:
            page = series.make(partial(self._page, deadline, behind=listing.behind))
            listing.shards |= {shard.shard_id: shard for shard in self._shards_on(page)}
            listing.behind, listing.pages = page.get("LastEvaluatedShardId"), listing.pages + 1

    def _remember(self, listing: Listing) -> None:
        with self._lock:
            if listing.number < self._number:
                return  # one that began later knows more
            self._number, self._sure = listing.number, listing.closed
            self._alone = {name: looks for name, looks in self._alone.items() if name in listing.shards}
            self._shards, self._listed = dict(listing.shards), listing.shards
            self._children = _by_parent(listing.shards.values())
            self.pages, self._read_at = listing.pages, time.monotonic()

    def _page(self, deadline: Deadline, **asked: str | None) -> dict[str, Any]:
        page = self._calls.describe_stream(self._arn, deadline, **asked)
        self._enabled = page["StreamStatus"] != "DISABLED"
        return page

    def _shards_on(self, page: Mapping[str, Any]) -> list[Shard]:
        now = self._calls.now()
        seen = None if now is None else int(now.timestamp())
        return [
            Shard(
                shard_id=listed["ShardId"],
                parent=listed.get("ParentShardId"),
                last=listed["SequenceNumberRange"].get("EndingSequenceNumber"),
                first=listed["SequenceNumberRange"]["StartingSequenceNumber"],
                seen=seen,
            )
            for listed in page["Shards"]
        ]

    def age(self) -> float:
        """Seconds since the last whole listing."""
        return time.monotonic() - self._read_at

    def listed(self) -> Mapping[str, Shard]:
        """What the last whole listing had."""
        return self._listed

    def enabled(self) -> bool:
        """Whether the stream takes records, as of the last look."""
        return self._enabled

    def find(self, shard_id: str) -> Shard | None:
        """A shard, from memory."""
        with self._lock:
            return self._shards.get(shard_id)

    def children(self, shard_id: str) -> tuple[Shard, ...]:
        """The children of a drained shard, from memory; empty where it may know half of a split.

        A parent that was listed open says nothing of its children.
        """
        with self._lock:
            parent = self._shards.get(shard_id)
            found = self._children.get(shard_id, ())
            known = parent is not None and parent.last is not None
            return found if known and self._is_whole(shard_id, found) else ()

    def _is_whole(self, shard_id: str, found: tuple[Shard, ...]) -> bool:
        """Whether these are all children: one that is open may be the half of a split.

        Pages of a listing are of different moments, so the other half may be left out of the one that is the
        first to show the parent's end.
        """
        return len(found) != 1 or found[0].last is not None or shard_id in self._sure

    def discover(
        self, shard_ids: Mapping[str, int | None], deadline: Deadline
    ) -> dict[str, tuple[Shard, ...] | None]:
        """The children of drained shards, asked now.

        One call a shard, or the whole list where that is fewer calls or the list is old.

        Args:
            shard_ids: The shards, and when the last record of each was written, in seconds since 1970.
            deadline: When it has to be over.

        Returns:
            For each id its children, empty while they are not all listed; None when the shard itself is not
            listed any more, which is looked after once a minute.
        """
        asked = [name for name in shard_ids if not self._waits(name)]
        if not asked:
            time.sleep(min(_NAP_SECONDS, deadline.remaining()))  # a feed of nothing else would spin
            return dict.fromkeys(shard_ids, ())
        with self._lock:
            stale = len(self._shards) > _STALE_GROWTH * max(len(self._listed), 100)
            few = self._filters and len(asked) <= self.pages and not stale
        whole = not (few and self._ask(asked, deadline))
        if whole:
            self.read(deadline)
        childless = not all(self._children_of(name) for name in asked)
        # Of a disabled stream it is asked twice: no children are its end.
        late = time.monotonic() - self._read_at >= _FULL_LOOK_SECONDS
        if childless and (not self._enabled or (late and not whole)):
            whole = True
            self.read(deadline)
        found: dict[str, tuple[Shard, ...] | None] = dict.fromkeys(shard_ids, ())
        for name in asked:
            found[name] = self._complete(name, shard_ids[name])
            if not found[name] and whole and self._is_gone(name):
                found[name] = None
        return found

    def _waits(self, shard_id: str) -> bool:
        """Whether the only child of a shard was seen too short a time ago to ask again."""
        with self._lock:
            looks = self._alone.get(shard_id)
        return looks is not None and time.monotonic() - looks[1] < _ALONE_SECONDS / 2

    def _is_gone(self, shard_id: str) -> bool:
        return shard_id not in self._listed and not self._children_of(shard_id)

    def _complete(self, shard_id: str, written: int | None) -> tuple[Shard, ...]:
        """The children of a shard; none while there may be one more."""
        found, now = self._children_of(shard_id), time.monotonic()
        with self._lock:
            if self._is_whole(shard_id, found):
                return found
            seen = found[0].seen
            quiet = written is not None and seen is not None and seen - written > _QUIET_SECONDS
            first, _ = self._alone.get(shard_id, (now, now))
            self._alone[shard_id] = (first, now)
            return found if quiet or (first < now and now - first >= _ALONE_SECONDS) else ()

    def _children_of(self, shard_id: str) -> tuple[Shard, ...]:
        with self._lock:
            return self._children.get(shard_id, ())

    def _ask(self, shard_ids: Iterable[str], deadline: Deadline) -> bool:
        """Ask for the children of each; False when the service does not know how, or not the shard."""
        series = _Series(self._calls)
        for name in shard_ids:
            behind, first = None, True
            while first or behind is not None:
                try:
                    page = series.make(partial(self._page, deadline, behind=behind, parent=name))
                except (ClientError, ParamValidationError) as error:
                    code = code_of(error)
                    if code not in REJECTED | GONE:
                        raise
                    self._filters = self._filters and code in GONE
                    return False
                shards = self._shards_on(page)
                if any(shard.parent != name for shard in shards):
                    self._filters = False  # it was ignored: one listing answers for all
                    return False
                self._add(shards)
                behind, first = page.get("LastEvaluatedShardId"), False
        return True

    def _add(self, shards: Iterable[Shard]) -> None:
        added = {shard.shard_id: shard for shard in shards}
        with self._lock:
            self._shards |= added
            for parent in {shard.parent for shard in added.values() if shard.parent is not None}:
                known = {shard.shard_id: shard for shard in self._children.get(parent, ())}
                known |= {name: shard for name, shard in added.items() if shard.parent == parent}
                self._children[parent] = tuple(known.values())


class _Series:
    """Calls one after another, where a throttled one does not fail them all.

    It is made again at once if the one in front of it has worked. To wait and to try on is the engine's: of a
    service that throttles everything, no more is asked than without this.

    Args:
        calls: Says which failures pass.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls, self._moved = calls, False

    def make(self, call: Callable[[], T]) -> T:
        """Make the next one."""
        try:
            found = call()
        except Exception as error:
            if not self._moved or not self._calls.is_passing(error, at_once=True):
                raise
            self._moved = False
            found = call()
        self._moved = True
        return found


def _by_parent(shards: Iterable[Shard]) -> dict[str, tuple[Shard, ...]]:
    found: defaultdict[str, list[Shard]] = defaultdict(list)
    for shard in shards:
        if shard.parent is not None:
            found[shard.parent].append(shard)
    return {parent: tuple(children) for parent, children in found.items()}
