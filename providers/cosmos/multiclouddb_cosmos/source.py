"""Holds the objects that the readers of one feed share."""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import UTC, datetime
from itertools import product
from weakref import WeakSet

import attrs
from attrs import define
from azure.core.exceptions import AzureError
from azure.cosmos.exceptions import CosmosHttpResponseError

from multiclouddb_api import ErrorCategory, ErrorReason, LogicalPartition, MulticloudDbKey, invalid_request
from multiclouddb_cosmos.client import LARGEST_PAGE, LATE_SECONDS, Calls, Definition, RangePage
from multiclouddb_cosmos.config import names_in
from multiclouddb_cosmos.errors import BAD_REQUEST, asks_for_less, classify, is_disabled, recreated
from multiclouddb_cosmos.hashing import effective_key
from multiclouddb_cosmos.options import CosmosOptions
from multiclouddb_cosmos.position import LEAST, MOST, KeyRange, RangeMap
from multiclouddb_cosmos.records import UPSERT, CosmosView, given, is_of, lsn_of, seconds_of, spellings
from multiclouddb_cosmos.transport import ALL_VERSIONS, BEGINNING, LATEST, NOW, is_own
from multiclouddb_spi import Deadline, FeedSpec, ProviderFault, Reader, expired, unsupported

_WHOLE = KeyRange(LEAST, MOST)
# Longer than a request for the present position takes, which has the time before the request.
_SLACK_SECONDS = LATE_SECONDS
_RENEW_SECONDS = 300.0
LAG_SECONDS = 10
# In less time, a container cannot be deleted and restored; a restore takes many minutes.
_UNSEEN_SECONDS = 60.0


def _clocks() -> tuple[float, float]:
    """Return two times in seconds; the first one stands still while the machine sleeps."""
    return time.monotonic(), time.time()


@define(eq=False)
class ReaderContext:
    """The objects that the readers of one feed share."""

    calls: Calls  # the object that makes the calls
    spec: FeedSpec  # the specification of the feed
    definition: Definition  # the properties of the container
    scope: tuple[KeyRange, ...] = (_WHOLE,)  # the ranges of keys that the feed reads
    wanted: tuple[object, ...] = ()  # the partition key of the feed, or its first components
    readers: WeakSet[Reader] = attrs.field(factory=WeakSet)  # the readers that are currently in use
    behind: dict[KeyRange, int] = attrs.field(factory=dict)
    untimed: set[KeyRange] = attrs.field(factory=set)  # the ranges that the service does not read from a time
    item_bytes: int = 1024  # the memory size of one item, measured on the last page
    page: int = LARGEST_PAGE  # how many items may be requested, after the service has asked for less
    late: int = 0  # a change can get its LSN so many seconds after its time
    _renewed: float = attrs.field(factory=time.monotonic)
    _answered: tuple[float, float] = attrs.field(factory=_clocks)  # the times of the last page
    _map: RangeMap | None = None
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    @classmethod
    def opened(cls, calls: Calls, spec: FeedSpec, deadline: Deadline) -> ReaderContext:
        """Read the container's properties."""
        definition = calls.define(spec.address, deadline)
        source = cls(calls, spec, definition, late=calls.lateness(deadline))
        if not source.is_latest and len({path[-1] for path in definition.paths}) < len(definition.paths):
            # The service names the components of a deleted item's key by the last names of their paths.
            names = [f"/{'/'.join(path)}" for path in definition.paths]
            raise unsupported(
                f"the paths {names} of the container's partition key end in the same name, so that a delete "
                "does not tell its key",
                "copy the items into a container whose levels have different last names, and read that one",
            )
        if isinstance(spec.scope, LogicalPartition):
            source.wanted = _wanted(spec.scope.key, definition)
            source.scope = _ranges_of(source.wanted, definition)
        return source

    @property
    def options(self) -> CosmosOptions:
        """Return the options of the request."""
        options = self.spec.options
        return options if isinstance(options, CosmosOptions) else CosmosOptions()

    @property
    def is_latest(self) -> bool:
        """Return True if the feed contains only latest versions."""
        return self.options.is_latest

    def view(self, partition_id: str) -> CosmosView:
        """Return the properties that are the same for all events of a partition."""
        spec = self.spec
        return CosmosView(
            spec.address,
            partition_id,
            self.definition.paths,
            with_new=spec.with_new,
            native=spec.include_native,
            usual=UPSERT if self.is_latest else None,
            marker=names_in(self.options.delete_marker or ""),
        )

    def shown(self, span: KeyRange) -> KeyRange:
        """Return the range whose id appears in the events of `span`."""
        return self.ranges().holder(span) if self.wanted else span

    def renew(self, deadline: Deadline) -> None:
        """Ask from time to time whether the account has several write regions."""
        now = time.monotonic()
        if now - self._renewed >= _RENEW_SECONDS:
            self._renewed = now
            with contextlib.suppress(AzureError, ProviderFault):
                # Changes of a region that takes no more writes may still be on their way.
                self.late = max(self.late, self.calls.lateness(deadline))

    def seconds_before(self, asked: datetime | None) -> int | None:
        """Return a lower limit on the times of changes that a request at a given time did not return."""
        # The replica that has answered may lag behind.
        return None if asked is None else max(0, int(asked.timestamp()) - LAG_SECONDS)

    def since(self, seconds: int | None) -> datetime | None:
        """Return a lower limit on the times of the changes after a position with a given time."""
        return None if seconds is None else datetime.fromtimestamp(max(0, seconds - self.late), UTC)

    # -- Ranges

    def ranges(self) -> RangeMap:
        """Return the ranges of the physical partitions that this process has remembered."""
        found = self._map
        return found if found is not None else self.refreshed(None)

    def refreshed(self, seen: RangeMap | None) -> RangeMap:
        """Return ranges that are newer than `seen`."""
        # If another thread has listed the ranges since `seen`, return that thread's result. Otherwise list
        # the ranges of the physical partitions now.
        with self._lock:
            if self._map is None or self._map is seen:
                found = RangeMap(self.calls.ranges(self.spec.address))
                if not found.is_whole():  # a range that is not listed would look as if it had been read
                    raise ProviderFault.of(
                        ErrorCategory.TRANSIENT_FAILURE,
                        "the service's list of partitions does not contain all keys; try again",
                        retryable=True,
                    )
                self._map = found
            return self._map

    def current(self) -> RangeMap:
        """List the ranges again, and return them."""
        return self.refreshed(self._map)

    def current_pieces(self) -> list[KeyRange]:
        """List the ranges again, and return the parts of the feed's scope in them."""
        current = self.current()
        return [piece for span in self.scope for piece in current.cut(span)]

    # -- Pages

    def check_same(self, deadline: Deadline) -> Definition:
        """Return the container's properties; refuse one that has replaced a container with the same name."""
        found = self.calls.define(self.spec.address, deadline)
        if found.incarnation != self.definition.incarnation:
            raise ProviderFault.of(
                ErrorCategory.NOT_FOUND,
                f"container {self.spec.address.collection!r} was deleted and recreated",
            )
        return found

    def _is_same(self, deadline: Deadline) -> bool:
        return self.calls.define(self.spec.address, deadline).incarnation == self.definition.incarnation

    def limit(self, max_records: int, max_bytes: int) -> int:
        """Return how many items to request."""
        return min(max_records, max(1, max_bytes // self.item_bytes))

    def read(
        self, place: KeyRange, etag: int | None, limit: int, deadline: Deadline, past: int | None = None
    ) -> RangePage:
        """Return one page of the feed.

        If `etag` is None, reading begins at the current end.
        """
        if self.is_latest:
            since = past if past is not None and past > 0 else None
            if etag is None:
                return self._latest(place, etag, limit, deadline, start=NOW)
            answer = self.read_latest(place, etag, limit, since, deadline)
            if since is None:
                return answer
            times = [seconds_of(item, bare=True) for item in answer.items]
            kept = [
                item
                for item, seconds in zip(answer.items, times, strict=True)
                if seconds is None or seconds >= since
            ]
            return attrs.evolve(answer, items=kept)
        try:
            answer = self._asked(place, etag, limit, deadline)
        except CosmosHttpResponseError as error:
            if etag is None or not _may_be_expired(error):
                raise
            refusal = error
        else:
            return self._reached(place, etag, answer)
        # The service refuses an expired position each time, and however little is asked for.
        try:
            answer = self._asked(place, etag, 1, deadline)
        except CosmosHttpResponseError as error:
            if not _may_be_expired(error):  # it was not refused again: what it is, is not known
                raise
        else:
            return self._reached(place, etag, answer)
        self._asked(place, None, 1, deadline)
        raise expired(
            f"LSN {etag} is older than the account's continuous backup ({classify(refusal).message})"
        ) from refusal

    def read_latest(
        self, place: KeyRange, etag: int | None, limit: int, since: int | None, deadline: Deadline
    ) -> RangePage:
        """Return one page of the latest versions of all existing items.

        Some of the items may be older than `since`, which the caller leaves out.
        """
        if since is not None and place not in self.untimed:
            try:
                return self._latest(place, etag, limit, deadline, since=since)
            except CosmosHttpResponseError as error:
                if error.status_code != BAD_REQUEST or asks_for_less(error):
                    raise
            # The service refuses a time for merged partitions (Azure/azure-sdk-for-java issue 48752).
            answer = self._latest(place, etag, limit, deadline)
            self.untimed.add(place)
            return answer
        return self._latest(place, etag, limit, deadline)

    def _latest(
        self,
        place: KeyRange,
        etag: int | None,
        limit: int,
        deadline: Deadline,
        *,
        start: str = BEGINNING,
        since: int | None = None,
    ) -> RangePage:
        answer = self._asked(place, etag or None, limit, deadline, LATEST, start, since)
        return self._reached(place, etag, answer)

    def _asked(
        self,
        place: KeyRange,
        etag: int | None,
        limit: int,
        deadline: Deadline,
        mode: str = ALL_VERSIONS,
        start: str = NOW,
        since: int | None = None,
    ) -> RangePage:
        """Return one page, which is smaller if the service asks for less."""
        refused = 0
        # The service gives a restored container the resource id of the deleted one, and so answers its pages.
        unseen = max(now - then for now, then in zip(_clocks(), self._answered, strict=True))
        if unseen >= _UNSEEN_SECONDS and not self._is_same(deadline):
            raise recreated(self.spec.address)
        while True:
            limit = min(limit, self.page)
            try:
                answer = self.calls.read(
                    self.spec.address, self.definition.rid, place, etag, limit, deadline, mode, start, since
                )
            except CosmosHttpResponseError as error:
                if limit == 1 or not asks_for_less(error):
                    raise
                refused += 1
                self.page = limit // 2
            else:
                # Only the pages that reach the same transaction have to be so small.
                self.page = max(self.page, min(LARGEST_PAGE, 2 * limit))
                self._answered = _clocks()
                return attrs.evolve(answer, requests=answer.requests + refused) if refused else answer

    def _reached(self, span: KeyRange, etag: int | None, answer: RangePage) -> RangePage:
        """Return the answer, unless it comes from before the position at which the read began."""
        if answer.items:
            self.item_bytes = max(1, answer.nbytes // len(answer.items))
        newest = answer.etag if answer.newest is None else min(answer.etag, answer.newest)
        if etag is None or newest >= etag:
            return answer
        self.behind[span] = min(newest, self.behind.get(span, newest))
        raise ProviderFault.of(
            ErrorCategory.TRANSIENT_FAILURE,
            f"the newest change of range {span.partition_id} has LSN {newest}, and the position is after LSN "
            f"{etag}: the replica that answered lags behind, or a failover has lost changes that were read "
            "before; if this does not end, read the container again with Snapshot()",
            retryable=True,
        )

    def check_kept(self, span: KeyRange, etag: int, seconds: int | None, deadline: Deadline) -> None:
        """Refuse a position if the service has given its LSN again to a later change."""
        # This can happen only after a failover that has lost changes, and then the newest LSN was lower than
        # the position. If it never was lower, no request is sent.
        low = self.behind.get(span)
        if low is None:
            return
        for item in self.read(span, low, 1, deadline).items:
            lsn, written = lsn_of(item, bare=self.is_latest), seconds_of(item, bare=self.is_latest)
            if lsn is None or written is None or not is_of(item, self.view(""), self.wanted):
                continue
            if lsn <= etag and seconds is not None and written > seconds + _SLACK_SECONDS:
                raise expired(
                    f"after a failover, the service has given LSN {lsn} of range {span.partition_id} again, "
                    f"so that later changes have LSNs up to the position's LSN {etag}",
                    ErrorReason.ROLLED_BACK,
                )
        self.behind.pop(span, None)

    def check_unmasked(self, place: KeyRange, deadline: Deadline) -> None:
        """Read the feed of a range, which the service refuses to an identity for which it masks values."""
        self._latest(place, None, 1, deadline, start=NOW)

    def end(self, place: KeyRange, deadline: Deadline) -> int:
        """Return the LSN of the last change in a range."""
        return self.read(place, None, 1, deadline).etag


def _may_be_expired(error: CosmosHttpResponseError) -> bool:
    # The refusal of an expired position has no substatus of its own. A proxy has refusals of its own too.
    is_refusal = error.status_code == BAD_REQUEST and is_own(error.headers or {})
    return is_refusal and not is_disabled(error) and not asks_for_less(error)


def _wanted(key: MulticloudDbKey, definition: Definition) -> tuple[object, ...]:
    names = ["/".join(path) for path in definition.paths]
    named = [name for name in key.components if name in names]
    most = len(names) if definition.hierarchical else 1
    if not named or named != names[: len(named)] or len(named) > most:
        raise invalid_request(
            "LogicalPartition.key",
            f"has the components {list(key.components)}",
            f"give the partition key of the container, or its first components: {names}",
        )
    return tuple(given(name, key.components[name], "LogicalPartition.key") for name in named)


def _ranges_of(wanted: tuple[object, ...], definition: Definition) -> tuple[KeyRange, ...]:
    """Return the ranges of one partition key, or of all keys that begin with its first components."""
    is_whole = len(wanted) == len(definition.paths)
    found = []
    for values in product(*map(spellings, wanted)):
        try:
            low = effective_key(values, definition.version, hierarchical=definition.hierarchical)
        except ValueError as error:
            raise unsupported(
                "the place of this partition key is not certain",
                "read the whole container, or one PhysicalPartition, and filter in the application",
            ) from error
        # The next key, or the first one that does not begin so.
        found.append(KeyRange(low, f"{int(low, 16) + 1:0{len(low)}X}" if is_whole else f"{low}FF"))
    return tuple(sorted(found))
