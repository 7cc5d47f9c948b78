"""Implements one opened change stream: its start, its readers and its end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Final
from weakref import WeakSet

import attrs
from pymongo.errors import OperationFailure, PyMongoError

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeEvent,
    EntireCluster,
    ErrorCategory,
    ErrorReason,
    LookupAnswer,
    MulticloudDbKey,
    Notice,
    NotKnown,
    Now,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_mongo.catalog import FoundResource, collections_after, find
from multiclouddb_mongo.database_scan import cut_database, plan_database
from multiclouddb_mongo.driver import place_to_ask, retried
from multiclouddb_mongo.errors import PROVIDER_ID, TIME_LIMIT
from multiclouddb_mongo.look_up import look_up_documents
from multiclouddb_mongo.mapping import MongoView
from multiclouddb_mongo.members import AHEAD_SECONDS
from multiclouddb_mongo.oplog import Log, LogBeginning
from multiclouddb_mongo.position import (
    After,
    At,
    Place,
    compare,
    cursor_of,
    describe,
    place_of,
    rest_of,
    seconds_at,
    start_of,
    ticks_at,
    token_text,
)
from multiclouddb_mongo.reader import MongoReader
from multiclouddb_mongo.snapshots import (
    ScanSource,
    SegmentReader,
    check_snapshot,
    cut,
    plan_scan,
    time_in,
)
from multiclouddb_mongo.source import ReaderContext
from multiclouddb_mongo.values import CODEC
from multiclouddb_spi import (
    Batch,
    CollectionPart,
    Continue,
    Cursor,
    Deadline,
    Feed,
    FeedIdentity,
    FeedStart,
    Follows,
    Head,
    InvalidCursor,
    Partition,
    PartitionState,
    Position,
    ProviderFault,
    Scan,
    ScanPlan,
    Seed,
    Segment,
    Survey,
)
from multiclouddb_spi.faults import START_AGAIN, START_ANEW

_log: Final = logging.getLogger("multiclouddb.mongo")
_LOG_SECONDS: Final = 30.0
_AHEAD_SECONDS: Final = 60
_PEEK_BYTES: Final = 1
_PARTITION_ID: Final = "0"  # a deployment has only one change stream, with all changes in one order
_FOLLOW: Final = (
    'pass MongoOptions(after_invalidate="follow") to continue with the next collection of this name'
)
# A batch of inserts takes its places in the order first, and its timestamp after the server has written the
# documents and their index entries, so its timestamp may be later than its place by as long as that takes.
# AtTime begins earlier by the first number if the log reaches back so far, else by the second: a log may
# begin within those ten seconds, and its own first time is no error.
_STAMPED_LATER_SECONDS: Final = (10.0, 0.1)
_UNSHOWN: Final = NotKnown("no primary has proven which writes were acknowledged, and a member may lack some")


class MongoFeed(Feed):
    """The change stream of a collection, a database or a cluster."""

    waits_at_service = True

    def __init__(
        self,
        source: ReaderContext,
        found: FoundResource,
        readers: WeakSet[MongoReader | SegmentReader],
        deployment: str | None = None,
    ) -> None:
        self.spec = source.spec
        self._source, self._found, self._readers = source, found, readers
        self._options = source.options
        # Another collection may be renamed over one that is followed. Only reading shows that.
        follows = self._options.after_invalidate == "follow" and source.address.collection is None
        self._endless = follows or isinstance(self.spec.scope, EntireCluster)
        self._bound = self._options.after_invalidate == "end" and not self._options.allow_missing
        self._uuid = found.uuid if self._bound else None
        # Positions are only times, so they mean nothing in another deployment. A copy of the data files has
        # the same collections with the same UUIDs.
        self._deployment, self._is_warned = deployment, False
        self._is_wide = source.address.collection is None
        incarnation = deployment if self._is_wide else self._incarnation(self._uuid)
        self.identity = FeedIdentity(PROVIDER_ID, self.spec.address, incarnation)
        self._scan = ScanSource(source)
        self._log = Log(source)
        self._oldest: tuple[float, LogBeginning | None] = (-_LOG_SECONDS, None)
        self._lock = threading.Lock()

    def _incarnation(self, uuid: str | None) -> str | None:
        return uuid if self._deployment is None else f"{uuid or ''}@{self._deployment}"

    def resumes(self, incarnation: str | None) -> bool:
        """Return True if this feed can resume a token of this collection, or of this deployment."""
        if self._is_wide:
            self._check_deployment(incarnation)
            return True
        uuid, _, deployment = (incarnation or "").partition("@")
        self._check_deployment(deployment or None)
        # The log still contains the last changes of a dropped collection, and the drop itself. Therefore a
        # token is refused only if it is from another collection with the same name.
        return not uuid or not self._bound or not self._found.there or uuid == self._found.uuid

    def _check_deployment(self, other: str | None) -> None:
        own = self._deployment
        if other == own:
            return
        if None not in (other, own):
            raise ProviderFault.of(
                ErrorCategory.INVALID_REQUEST,
                "continuation_token: is of another replica set or cluster, so its position means nothing "
                "here; connect to the deployment that it came from; if this one was restored from it, start "
                "again at Now() or Beginning(), and read each collection with a Snapshot()",
            )
        if not self._is_warned:
            self._is_warned = True
            _log.warning(
                "%s: it is not known whether a token is of this deployment; grant the role clusterMonitor to "
                "each user that reads its changes",
                self.spec.address,
            )

    def visible_after(self) -> None:
        """Return None, because a change becomes visible only when a majority of the servers has it."""

    def clock(self, deadline: Deadline) -> datetime:
        """Return the current time of the server that answers."""
        client = self._source.client
        answer = retried(
            client,
            lambda: client.admin.command("hello", read_preference=place_to_ask(client), codec_options=CODEC),
        )
        self._source.clock.told(answer)
        moment: datetime = answer["localTime"]
        return moment

    def start(self, position: FeedStart, partition_id: str | None, deadline: Deadline) -> list[Seed]:
        """Resolve a start. All starts are durable positions in the log."""
        if partition_id not in (None, _PARTITION_ID):
            return []
        self._source.reach(deadline)
        if not self._options.allow_missing:
            # A feed may have been open for a long time. If its resource was recreated, the engine opens
            # another feed, unless the feed follows its name.
            found = find(self._source.client, self._source.address)
            if not found.there or (self._bound and found.uuid != self._found.uuid):
                raise _missing(self._source.address)
            self._source.images = found.images
        return [Seed(_PARTITION_ID, (), self._resolved(position))]

    def survey(
        self,
        asked: Mapping[str, Cursor],
        deadline: Deadline,
        *,
        expired: Collection[str] = frozenset(),
        since: datetime | None = None,
        whole: bool = True,
    ) -> Survey:
        """Return the only partition, which never goes away."""
        # If the log contains a drop before the start of the feed, an earlier collection with the same name
        # was dropped.
        if expired:
            oldest = cursor_of(self._log.oldest(), ticks_at(self._source.now()))
            return Survey((Partition(_PARTITION_ID, (), PartitionState.OPEN, oldest),))
        if not self._found.there and not self._options.allow_missing:
            raise _missing(self._source.address)
        return Survey((Partition(_PARTITION_ID, (), PartitionState.OPEN),))

    def open(self, partition_id: str, cursor: Cursor, until: Cursor | None = None) -> MongoReader:
        return self._reader(partition_id, cursor, until, self._options.batch_size)

    def open_segment(self, segment: Segment) -> SegmentReader:
        view = self._view(segment.segment_id)
        if bool(segment.collection) != self._is_wide:
            raise InvalidCursor("it is a segment of another scope")
        if segment.collection:
            own = attrs.evolve(self._source.address, collection=segment.collection)
            view = attrs.evolve(view, address=own)
        scan = self._scan.of(segment.collection)
        reader = SegmentReader(scan, view, segment, self._look_at_log)
        self._readers.add(reader)
        return reader

    def snapshot(self, segments: int | None, deadline: Deadline) -> ScanPlan:
        """Plan a scan whose stream starts at the current end of the log."""
        began = self.clock(deadline)  # the cluster time may be ahead of the time of the next changes
        seeds = self.start(Now(), None, deadline)
        # The collection is checked after the start of the stream, because from this start on the stream shows
        # each drop and recreation.
        found = find(self._source.client, self._source.address)
        encrypted = self._source.client.options.auto_encryption_opts is not None
        check_snapshot(self.spec, self._source.address, found, encrypted=encrypted)
        self._look_at_log()
        if self._is_wide:
            return plan_database(self._scan, seeds, segments, began)
        return plan_scan(self._scan, self.spec, found, seeds, segments, began)

    def segments(
        self, scan: Scan, rest: Cursor, count: int, deadline: Deadline
    ) -> tuple[list[Segment], Cursor | None]:
        """Return segments with about the same number of rows."""
        if self._is_wide:
            self._source.reach(deadline)
            return cut_database(self._scan, scan, rest, count, deadline)
        left = rest_of(scan, rest)
        self._source.reach(deadline)
        return cut(self._scan, left, count, deadline)

    def lookup(
        self, keys: Sequence[MulticloudDbKey], deadline: Deadline
    ) -> dict[MulticloudDbKey, LookupAnswer]:
        """Return the rows of at most 200 keys, with every write that was acknowledged before the call."""
        source = self._source
        source.reach(deadline)
        found = find(source.client, source.address)
        if not (found.there or self._options.allow_missing):
            raise _missing(source.address)
        told = source.clock.now()
        began = self.clock(deadline) if told is None else datetime.fromtimestamp(told, UTC)
        now, written = source.acknowledged(deadline)
        # The member that answers may lag, and the end of its log is only what a majority has, as far as it
        # knows. It waits until it has everything before the time that it is given.
        time = max(time_in(now), f"{written or 0:016X}")
        view = attrs.evolve(self._view(_PARTITION_ID), partition_id="")
        try:
            answers = look_up_documents(
                self._scan, view, time, keys, began, deadline,
                collated=found.collated, clustered=found.clustered,
            )  # fmt: skip
        except OperationFailure as error:
            if error.code != TIME_LIMIT:
                raise
            source.majority.check(source.client)
            raise ProviderFault.of(
                ErrorCategory.TRANSIENT_FAILURE,
                "the member that was asked has not yet taken every acknowledged write, or needs more time to "
                "find the rows; try again with a longer timeout",
                retryable=True,
                vendor_retried=True,
            ) from error
        if written is not None:
            return answers
        return {key: _UNSHOWN if answer is None else answer for key, answer in answers.items()}

    def heads(
        self, cursors: Mapping[str, Cursor], max_records: int | None, deadline: Deadline
    ) -> dict[str, Head]:
        """Return the end of the log as the head, if the stream has a change before the log's end."""
        # To check whether the stream has a change, the method reads one change. A head must be found by
        # reading if a limit is given, or if the stream may end before the head. The server does not show
        # whether a database, or a collection that need not exist, was dropped and recreated. The id of a
        # collection that must exist shows whether it was recreated.
        if max_records is not None or not (self._endless or self._uuid is not None):
            return {}
        heads = {name: self._head(name, cursor, deadline) for name, cursor in cursors.items()}
        return {name: head for name, head in heads.items() if head is not None}

    def parts(self, deadline: Deadline) -> dict[str, CollectionPart]:
        """Return the collections; one with images is left out, because this feed does not ask for them."""
        self._source.reach(deadline)
        database = self._source.address.database
        if not (self._bound and database):
            return {}
        found = collections_after(self._source.client, database, "")
        return {
            name: CollectionPart(self._incarnation(each.uuid))
            for name, each in found.items()
            if not each.images
        }

    def narrowed(self, cursor: Cursor, last: ChangeEvent | None) -> Cursor:
        """Return the cluster time, because the stream of a collection refuses the events of another one."""
        place = place_of(cursor)
        if (ticks := ticks_at(place)) is None or (isinstance(place, After) and place.kind not in "eh"):
            raise InvalidCursor("it is not a position among changes")
        if last is not None and compare(After("e", last.order_key), place) == 0:
            return cursor_of(place)  # from the time on, this event would come again
        return cursor_of(At.of(ticks))

    def reaches(self, place: Sequence[Cursor], other: Sequence[Cursor]) -> bool:
        return compare(place_of(place[0]), place_of(other[0])) in (0, 1)

    def is_before(self, place: Sequence[Cursor]) -> Callable[[ChangeEvent], bool]:
        last = place_of(place[0])
        return lambda event: compare(After("e", event.order_key), last) in (-1, 0)

    def compare(self, a: Cursor, b: Cursor) -> int | None:
        """Compare the texts of the tokens. The texts sort in the order of the changes."""
        return compare(place_of(a), place_of(b))

    def describe(self, cursor: Cursor) -> Position:
        place = place_of(cursor)
        position, seconds = describe(place), seconds_at(place)
        if position.time is None or seconds is None or self._source.clock.is_behind(seconds):
            return attrs.evolve(position, time=None)  # the changes after it are older than its cluster time
        return attrs.evolve(position, time=position.time - timedelta(seconds=AHEAD_SECONDS))

    def headroom(self, cursor: Cursor, now: datetime) -> float | None:
        """Return the seconds from the last known beginning of the log to a position."""
        return self._seconds_kept(place_of(cursor))

    def _reader(
        self, partition_id: str, cursor: Cursor, until: Cursor | None, batch_size: int | None
    ) -> MongoReader:
        reader = MongoReader(
            self._source,
            self._view(partition_id, start_of(cursor)),
            place_of(cursor),
            None if until is None else _bound(place_of(cursor), place_of(until)),
            self._goes_on,
            self._headroom,
            self._check,
            batch_size,
        )
        self._readers.add(reader)
        return reader

    def _view(self, partition_id: str, start: int | None = None) -> MongoView:
        spec = self.spec
        return MongoView(
            spec.address,
            self.public_id(partition_id),
            with_new=spec.with_new,
            with_old=spec.with_old,
            native=spec.include_native,
            start=start,
        )

    def _head(self, name: str, cursor: Cursor, deadline: Deadline) -> Head | None:
        """Return the head (end position) of a partition; None if the head must be found by reading."""
        first = self._peek(name, cursor, deadline)
        at_end = first.cursor_after(len(first))
        if not isinstance(first.outcome, Continue):
            return Head(at_end, len(first), first.outcome, Follows.END, notices=first.notices)
        if first.notices:
            return None
        if not len(first):
            return None if first.caught_up is False else Head(at_end, 0, Continue(), Follows.END)
        now = self._source.head()
        if now is None:
            return None
        order = compare(place_of(at_end), now)
        if order in (0, 1):
            return Head(at_end, len(first), Continue(), Follows.END)
        if order is None or not _is_far(place_of(cursor), now):
            return None
        if not self._endless:
            # The watched resource may have been dropped or renamed.
            found = find(self._source.client, self._source.address)
            if found.uuid != self._uuid:
                return None
        return Head(cursor_of(now, start_of(cursor)), None, Continue(), Follows.END)

    def _peek(self, name: str, cursor: Cursor, deadline: Deadline) -> Batch:
        """Request and return at most one change: the first change after a position."""
        notices: tuple[Notice, ...] = ()
        with closing(self._reader(name, cursor, None, batch_size=1)) as reader:
            while True:
                batch = reader.fetch(1, _PEEK_BYTES, 0.0, deadline)
                notices += batch.notices
                found = len(batch) or not isinstance(batch.outcome, Continue)
                if found or batch.caught_up is not False or deadline.passed():
                    return batch if notices == batch.notices else attrs.evolve(batch, notices=notices)

    def _resolved(self, position: FeedStart) -> Cursor:
        native = self._options.start()
        if native is not None and not isinstance(position, Now):
            raise invalid_request(
                f"MongoOptions.{native}",
                f"is given together with {type(position).__name__}()",
                "pass Now() as start_position, because a native start replaces only Now()",
            )
        now, present = self._source.present()
        match position:
            case Now():
                return cursor_of(self._native_start(now) or present, ticks_at(now))
            case Beginning():
                return cursor_of(self._log.oldest(), ticks_at(now))
            case AtTime(utc):
                for seconds in _STAMPED_LATER_SECONDS:
                    place = At(max(0, int(utc.timestamp() - seconds)))
                    if self._source.reaches(place):
                        return cursor_of(place, ticks_at(now))
                raise ProviderFault.of(
                    ErrorCategory.CHECKPOINT_EXPIRED,
                    f"AtTime({utc:%Y-%m-%dT%H:%M:%SZ}) is older than the operation log; {START_AGAIN}",
                    reason=ErrorReason.TRIMMED,
                )

    def _native_start(self, now: After) -> Place | None:
        options = self._options
        if options.start_at_operation_time is not None:
            stamp = options.start_at_operation_time
            if stamp.time > (seconds_at(now) or stamp.time) + _AHEAD_SECONDS:
                raise invalid_request(
                    "MongoOptions.start_at_operation_time",
                    "is more than 60 s ahead of the cluster's time",
                    "pass a time in the past",
                )
            return At(stamp.time, stamp.inc)
        if options.start_after is not None:
            return After("i", token_text(options.start_after))
        if options.resume_after is not None:
            return After("r", token_text(options.resume_after))
        return None

    def _goes_on(self) -> bool:
        if self._options.after_invalidate != "follow":
            return False
        self._source.images = find(self._source.client, self._source.address).images
        return True

    def _check(self) -> None:
        """At the end of the log, refuse a missing collection, because it gets no more changes."""
        if self._found.there or not self._bound:
            return
        self._found = find(self._source.client, self._source.address)
        if not self._found.there:
            raise _missing(self._source.address, f", or {_FOLLOW}")
        if self._found.uuid is None:  # a database has no incarnation; it is enough that it exists now
            return
        raise ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            "the collection of this token is gone, and another one has its name now; "
            f"{START_ANEW}; or {_FOLLOW}",
        )

    def _headroom(self, place: Place) -> float | None:
        """Return how many seconds this position is after the beginning of the oplog."""
        # Return None if no entry was removed from the log yet. The oplog's beginning is read twice a minute.
        self._look_at_log()
        return self._seconds_kept(place)

    def _look_at_log(self) -> None:
        with self._lock:
            asked, oldest = self._oldest
            client = self._source.client
            there = client.topology_description.has_readable_server(client.read_preference)
            if there and time.monotonic() - asked >= _LOG_SECONDS:
                try:
                    oldest = self._log.first_entry()
                except PyMongoError:
                    oldest = None  # the page is then returned without a headroom
                self._oldest = (time.monotonic(), oldest)

    def _seconds_kept(self, place: Place) -> float | None:
        seconds, oldest = seconds_at(place), self._oldest[1]
        if seconds is None or oldest is None or oldest.whole:
            return None
        clock = self._source.clock
        if clock.is_behind(oldest.place.seconds):
            return None  # the whole log is from after cluster time went ahead, and says nothing of its age
        now = clock.now()
        if now is not None and clock.is_behind(seconds):
            seconds = int(now)
        return max(0.0, float(seconds - oldest.place.seconds))


def _is_far(start: Place, mark: Place) -> bool:
    """Return True if `mark` is more than one operation after `start` (see `is_reached`)."""
    begin, end = ticks_at(start), ticks_at(mark)
    return begin is not None and end is not None and end - begin > 1


def _bound(start: Place, until: Place) -> Place:
    # If the bound is a high-water mark, the reader stops as soon as the server has no more changes before the
    # mark. A lagging member of the replica set may return no changes after the start although changes exist.
    # Therefore, if the mark directly follows the start, the reader stops only when the server itself has
    # passed the mark.
    if isinstance(until, After) and until.kind == "h" and not _is_far(start, until):
        return After("r", until.data)
    return until


def _missing(address: ResourceAddress, more: str = "") -> ProviderFault:
    what = "database" if address.collection is None else "collection"
    name = address.database if address.collection is None else f"{address.database}.{address.collection}"
    return ProviderFault.of(
        ErrorCategory.NOT_FOUND,
        f"there is no {what} {name!r}; create it, check the name, or pass MongoOptions(allow_missing=True) "
        f"to wait for it{more}",
    )
