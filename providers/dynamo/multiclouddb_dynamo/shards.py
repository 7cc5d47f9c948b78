"""Keeps the list of a stream's shards in memory."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, Final

import attrs
from attrs import define, frozen
from botocore.exceptions import ClientError, ParamValidationError

from multiclouddb_api import ErrorCategory
from multiclouddb_dynamo.client import Calls, Series, whole
from multiclouddb_dynamo.errors import GONE, ITS_OPERATOR, MISSING, REJECTED, code_of
from multiclouddb_spi import Deadline, ProviderFault

_LISTINGS: Final = 3
# The maximum number of calls per second that look for children, on average, and the maximum number of such
# calls at once after a pause. The service allows ten calls per second for a stream, for all clients together.
_LOOKS_A_SECOND: Final = 0.4
_LOOKS_AT_ONCE: Final = 6.0
_FIRST_PAUSE: Final = 0.1
_MOST_PAUSE: Final = 10.0
_MOST_LOOKED: Final = 16384
_MOST_GONE: Final = 65536
_ASKED_AT_ONCE: Final = 16
_LISTING_SECONDS: Final = 5.0
_JUST_NOW_SECONDS: Final = 1.0
_OLD_SECONDS: Final = 300.0
# A shard of a disabled stream has no children if two listings that are this many seconds apart show none.
_SETTLED_SECONDS: Final = 5.0


@frozen
class Shard:
    """One shard of a stream, as the service lists it."""

    shard_id: str
    parent: str | None
    last: str | None
    first: str | None
    seen: int | None

    @property
    def parents(self) -> tuple[str, ...]:
        """The parent, if the shard has one."""
        return () if self.parent is None else (self.parent,)


@define
class Listing:
    """A listing that may be unfinished; after a failure, it continues after the last page that was read."""

    shards: dict[str, Shard] = attrs.field(factory=dict)
    pages: int = 0
    after: str | None = None
    number: int = 0
    began: float = 0.0
    enabled: bool = True
    ends: set[str] = attrs.field(factory=set)

    @property
    def is_old(self) -> bool:
        """Return True if too much may have changed since the first page."""
        return self.pages > 0 and time.monotonic() - self.began > _OLD_SECONDS

    @property
    def is_whole(self) -> bool:
        return self.pages > 0 and self.after is None


class Looks:
    """Chooses the ended shards whose children are requested now, within the rate limit of the stream."""

    def __init__(self) -> None:
        # The time of the last request for each shard, in order.
        self._asked: OrderedDict[str, float] = OrderedDict()
        # Since when each shard waits for an answer.
        self._waiting: OrderedDict[str, float] = OrderedDict()
        self.credit, self._filled = _LOOKS_AT_ONCE, time.monotonic()
        self._pause, self._next = 0.0, 0.0

    def left(self, shard_ids: Iterable[str], listed_at: float) -> list[str]:
        """Return the shards about which a complete listing that began at this time does not say enough.

        A shard that waited then needs no call of its own, whatever the listing was made for. Otherwise, the
        listings of a large stream would use up the calls, and most shards would wait for ever.
        """
        now = time.monotonic()
        left = [name for name in shard_ids if self._waiting.setdefault(name, now) > listed_at]
        while len(self._waiting) > _MOST_LOOKED:
            self._waiting.popitem(last=False)
        return left

    def owes(self) -> bool:
        """Return True if more calls were made than the rate limit allows by now."""
        return self._credit_at(time.monotonic()) < 0

    def _credit_at(self, now: float) -> float:
        return min(_LOOKS_AT_ONCE, self.credit + (now - self._filled) * _LOOKS_A_SECOND)

    def choose(self, shard_ids: Sequence[str], childless: Iterable[str]) -> list[str]:
        now = time.monotonic()
        self.credit, self._filled = self._credit_at(now), now
        waiting = set(childless)
        fresh = [name for name in shard_ids if name in waiting and name not in self._asked]
        if fresh:
            self._pause = self._next = 0.0
        again = set(shard_ids).difference(waiting if now < self._next else fresh)
        # A reader has just asked for the children of the shard that it has read to its end.
        just_now = now - _JUST_NOW_SECONDS
        again = {name for name in again if name in waiting or self._asked.get(name, just_now) <= just_now}
        if not again or self.credit < 1:
            return fresh
        order = [name for name in shard_ids if name in again and name not in self._asked]
        order += [name for name in self._asked if name in again]
        return fresh + order[: int(self.credit)]

    def note(self, shard_ids: Iterable[str], childless: Iterable[str]) -> None:
        for name in shard_ids:
            self._waiting.pop(name, None)
            self._asked[name] = time.monotonic()
            self._asked.move_to_end(name)
        while len(self._asked) > _MOST_LOOKED:
            self._asked.popitem(last=False)
        if any(True for _ in childless):
            self._pause = min(_MOST_PAUSE, max(_FIRST_PAUSE, 2 * self._pause))
            self._next = time.monotonic() + self._pause


class ShardMap:
    """The shards of one stream. The object lists all shards once, and later lists only what it needs.

    `settled` is True if the last complete listing shows that no more children will be listed.

    Args:
        calls: Makes the calls.
        arn: The stream.
        check: Raises an error if the service may say of an existing shard that it does not exist.
    """

    def __init__(self, calls: Calls, arn: str, check: Callable[[], None] = lambda: None) -> None:
        self._calls, self._arn, self._check = calls, arn, check
        self._lock = threading.Lock()
        self._shards: dict[str, Shard] = {}
        self._children: dict[str, tuple[Shard, ...]] = {}
        self.listed: dict[str, Shard] = {}
        self._listed_at = self._read_at = -math.inf
        self._begun = self._number = self._filtered = 0
        self._filters = True
        self._disabled_at: float | None = None
        self.settled = False
        self._looks, self._looking = Looks(), threading.Lock()
        self._unread: Listing | None = None
        self._gone: set[str] = set()
        self.lost: set[str] = set()
        self.pages = 0

    def read(self, deadline: Deadline, listing: Listing | None = None) -> Listing:
        """Return every shard that the service lists; a parent may be on a later page than its child."""
        listing = listing or Listing()
        if not listing.is_whole:
            self._go_on(listing, deadline)
        return listing

    def read_again(
        self, deadline: Deadline, listing: Listing | None = None, seconds: float | None = None
    ) -> Listing:
        """Read as `read` does; the listing also answers looks for children, and counts as that many looks."""
        listing = listing or Listing()
        if not listing.is_whole:
            before = listing.pages
            try:
                self._go_on(listing, deadline, seconds)
            finally:
                self._looks.credit -= max(1, listing.pages - before)
        return listing

    def can_list_early(self) -> bool:
        """Return True if a listing may begin that could also be made later.

        Its pages may exceed the rate limit: then no other begins until they are paid for. A look needs a
        credit of one call, so looks leave enough for a listing, which answers all of them that are due.
        """
        return not self._looks.owes()

    def _go_on(self, listing: Listing, deadline: Deadline, seconds: float | None = None) -> None:
        """Read the remaining pages, and then store the listing."""
        until = None if seconds is None else time.monotonic() + seconds
        for attempt in range(1, _LISTINGS + 1):
            try:
                self._read_pages(listing, deadline, until)
                break
            except ClientError as error:
                # The shard after which the page begins may no longer exist.
                if code_of(error) not in GONE or listing.after is None:
                    raise
                listing.pages = 0
                if attempt == _LISTINGS:
                    raise ProviderFault.of(
                        ErrorCategory.TRANSIENT_FAILURE,
                        "DescribeStream: the service does not know the shard after which the next page of "
                        "the listing begins; it lags behind its earlier answer: try again",
                        code_of(error),
                        retryable=True,
                    ) from error
        if listing.is_whole:
            try:
                _check_parents(listing.shards)
            except ProviderFault:
                listing.pages = 0  # read again, and never used as it is
                raise
            self._remember(listing)

    def _read_pages(self, listing: Listing, deadline: Deadline, until: float | None) -> None:
        if listing.pages == 0:
            with self._lock:
                self._begun += 1
                listing.shards, listing.after, listing.number = {}, None, self._begun
                listing.began, listing.ends = time.monotonic(), set()
        series = Series(self._calls)
        while not listing.is_whole and (until is None or time.monotonic() < until):
            page = series.make(partial(self._page, deadline, after=listing.after))
            if listing.pages == 0:
                listing.enabled = page.get("StreamStatus") != "DISABLED"
            listing.shards |= {shard.shard_id: shard for shard in self._shards_on(page)}
            try:
                listing.after = _next_page(page, listing.ends)
            except ProviderFault:
                listing.pages = 0
                raise
            listing.pages += 1

    def _remember(self, listing: Listing) -> None:
        with self._lock:
            if listing.number < self._number:
                return  # a listing that began later is newer
            self._number, self._filtered = listing.number, 0
            self._shards, self.listed = dict(listing.shards), listing.shards
            self._children = by_parent(listing.shards.values())
            self.pages, self._listed_at, self._read_at = listing.pages, listing.began, time.monotonic()
            if listing.enabled:
                self._disabled_at, self.settled = None, False
            elif self._disabled_at is None:
                self._disabled_at = listing.began
            else:
                self.settled = listing.began - self._disabled_at >= _SETTLED_SECONDS

    def _page(self, deadline: Deadline, **asked: str | None) -> dict[str, Any]:
        return self._calls.describe_stream(self._arn, deadline, **asked)

    def _shards_on(self, page: Mapping[str, Any]) -> list[Shard]:
        now = self._calls.now()
        seen = None if now is None else int(now.timestamp())
        found = []
        for listed in whole(page, "Shards"):
            numbers = listed.get("SequenceNumberRange") or {}
            found.append(
                Shard(
                    shard_id=whole(listed, "ShardId"),
                    parent=listed.get("ParentShardId") or None,
                    last=numbers.get("EndingSequenceNumber") or None,
                    first=numbers.get("StartingSequenceNumber") or None,
                    seen=seen,
                )
            )
        return found

    def age(self) -> float:
        return time.monotonic() - self._read_at

    def find(self, shard_id: str) -> Shard | None:
        with self._lock:
            return self._shards.get(shard_id)

    def children(self, shard_id: str) -> tuple[Shard, ...]:
        """Return the known children of a shard from the memory of this process."""
        with self._lock:
            return self._children.get(shard_id, ())

    def gone(self, shard_ids: Iterable[str], deadline: Deadline) -> set[str]:
        """Return those of the shards that the service refuses, because they no longer exist."""
        names = set(shard_ids)
        if len(self._gone) > _MOST_GONE:
            self._gone = set()  # it only saves calls
        gone = self._gone

        def ask(name: str) -> None:
            self._calls.iterator(self._arn, name, "TRIM_HORIZON")

        self._ask_each(sorted(names - gone), ask, gone, deadline)
        return names & gone

    def unreadable(self, shard_ids: Iterable[str], deadline: Deadline) -> set[str]:
        """Return those of the listed shards that cannot be read; DynamoDB Local lists them for ever."""
        names = set(shard_ids)

        def read(name: str) -> None:
            self._calls.records(self._calls.iterator(self._arn, name, "TRIM_HORIZON"), 1, native=True)

        self._ask_each(sorted(names - self.lost), read, self.lost, deadline)
        return names & self.lost

    def trimmed(self, shards: Iterable[Shard], deadline: Deadline) -> set[str]:
        """Return those of the shards whose oldest records no longer exist.

        A shard that is listed without its first number is one of them, because nothing else can show it.
        """
        first = {shard.shard_id: shard.first for shard in shards}
        found = {name for name, number in first.items() if number is None}

        def ask(name: str) -> None:
            self._calls.iterator(self._arn, name, "AT_SEQUENCE_NUMBER", first[name])

        self._ask_each(sorted(first.keys() - found), ask, found, deadline)
        return found

    def _ask_each(
        self, names: Sequence[str], ask: Callable[[str], None], found: set[str], deadline: Deadline
    ) -> None:
        """Ask the service about each shard, with several concurrent calls."""
        check = cache(self._check)

        def note(name: str) -> None:
            try:
                ask(name)
            except ClientError as error:
                if code_of(error) not in GONE:
                    raise
                if code_of(error) == MISSING:
                    check()
                found.add(name)

        if len(names) <= 1:
            for name in names:
                note(name)
            return
        pool = ThreadPoolExecutor(_ASKED_AT_ONCE, "multiclouddb-shards")
        try:
            for _ in pool.map(note, names, timeout=deadline.remaining()):
                pass
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def discover(self, shard_ids: Iterable[str], deadline: Deadline) -> dict[str, tuple[Shard, ...]]:
        """Request the children of ended shards, within the rate limit; return all known children."""
        if not self._looking.acquire(blocking=False):
            return {}  # another thread is asking the service
        try:
            names = list(shard_ids)
            asked = self._look(self._looks.left(names, self._listed_at), deadline)
            left = set(self._looks.left(names, self._listed_at)).difference(asked)
            found = {name: self.children(name) for name in names if name not in left}
            self._looks.note(found, (name for name, children in found.items() if not children))
            return found
        finally:
            self._looking.release()

    def _look(self, names: Sequence[str], deadline: Deadline) -> Collection[str]:
        """Request children, or continue a listing. Return the shards that were asked about one by one."""
        asked = self._looks.choose(names, [name for name in names if not self.children(name)])
        if self._unread is None:
            if not asked:
                return ()
            few = self._filters and self._disabled_at is None and self._filtered + len(asked) <= self.pages
            if few and self._ask(asked, deadline):
                return asked
            self._unread = Listing()
        self.read_again(deadline, self._unread, min(_LISTING_SECONDS, deadline.remaining() / 2))
        if self._unread.is_whole:  # else it continues in a later call
            self._unread = None
        return ()

    def _ask(self, shard_ids: Iterable[str], deadline: Deadline) -> bool:
        """Request the children of each shard. Return False if a listing is needed instead."""
        series = Series(self._calls)
        for name in shard_ids:
            after, first, ends = None, True, set[str]()
            while first or after is not None:
                self._looks.credit -= 1
                self._filtered += 1
                try:
                    page = series.make(partial(self._page, deadline, after=after, parent=name))
                except (ClientError, ParamValidationError) as error:
                    code = code_of(error)
                    if code not in REJECTED | GONE:
                        raise
                    # The service does not know the filter or the shard.
                    self._filters = self._filters and code in GONE
                    return False
                if page.get("StreamStatus") == "DISABLED":
                    # Two complete listings show whether all children are known.
                    return False
                shards = self._shards_on(page)
                if any(shard.parent != name for shard in shards):
                    # The service ignored the filter, so one listing answers for all shards.
                    self._filters = False
                    return False
                self._add(shards)
                after, first = _next_page(page, ends), False
        return True

    def _add(self, shards: Iterable[Shard]) -> None:
        added = {shard.shard_id: shard for shard in shards}
        with self._lock:
            _check_parents(self._shards | added)
            self._shards |= added
            for parent in {shard.parent for shard in added.values() if shard.parent is not None}:
                known = {shard.shard_id: shard for shard in self._children.get(parent, ())}
                known |= {name: shard for name, shard in added.items() if shard.parent == parent}
                self._children[parent] = tuple(known.values())


def _next_page(page: Mapping[str, Any], ends: set[str]) -> str | None:
    """Return the last shard of a page if more pages follow; `ends` has those of the pages before it."""
    last = page.get("LastEvaluatedShardId") or None
    if last in ends:
        raise ProviderFault.of(
            ErrorCategory.PERMANENT_FAILURE,
            f"DescribeStream: two pages of one listing end with the shard {last}, so the listing never ends; "
            f"{ITS_OPERATOR}",
        )
    if last is not None:
        ends.add(last)
    return last


def _check_parents(shards: Mapping[str, Shard]) -> None:
    """Refuse shards that descend from themselves, because none of them can be read before its parent."""
    checked = set[str]()
    for shard in shards.values():
        way, name = list[str](), shard.shard_id
        while name in shards and name not in checked:
            checked.add(name)
            way.append(name)
            name = shards[name].parent or ""
        if name in way:
            cycle = way[way.index(name) :]
            raise ProviderFault.of(
                ErrorCategory.PERMANENT_FAILURE,
                f"DescribeStream: the shard {name} descends from itself, over {len(cycle)} shards, so they "
                f"have no order; {ITS_OPERATOR}",
            )


def by_parent(shards: Iterable[Shard]) -> dict[str, tuple[Shard, ...]]:
    """Map each parent to its children."""
    found: defaultdict[str, list[Shard]] = defaultdict(list)
    for shard in shards:
        if shard.parent is not None:
            found[shard.parent].append(shard)
    return {parent: tuple(children) for parent, children in found.items()}
