"""A service in memory with one database, whose collections share one log; it is small enough to be copied.

There are two kinds of it. `LOG` is like MongoDB: one partition, an id for each collection, a notice when one
is dropped, and a position of a collection that is not as exact as that of the database. `PARTS` is like
Spanner: two partitions, tables that are told apart by their key alone, and no word of one that was dropped.
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from threading import RLock

import attrs

import multiclouddb_api as api
import multiclouddb_spi as spi
from multiclouddb_api import Capability, CapabilityNote, ErrorCategory, ErrorReason, ResourceAddress, Support
from multiclouddb_conformance.open_client import open_client
from multiclouddb_spi.abilities import CollectionPart

DATABASE = "shop"
LOG, PARTS = "log", "parts"
EPOCH = datetime(2020, 1, 1, tzinfo=UTC)


def time_of(tick):
    return EPOCH + timedelta(seconds=tick)


@attrs.frozen
class Change:
    """One change, or with no key the end of a collection."""

    tick: int
    number: int
    collection: str
    incarnation: str
    field: str
    key: str | None
    document: dict | None = attrs.field(eq=lambda document: document is None)

    @property
    def place(self):
        return (self.tick, self.number)

    @property
    def order(self):
        return f"{self.tick:06d}.{self.number:03d}"


@attrs.define
class Collection:
    incarnation: str
    field: str
    """The name of its key."""
    number: int
    """Which collection of the service it is; no other one has it."""
    rows: dict = attrs.field(factory=dict)


class Service:
    """The service.

    Attributes:
        meanwhile: Called once, after some fetches of a feed.
        disturbed: The collection of this feed, or "database", and after how many fetches.
        sources: What the documents of each collection that ever was say of it, by its number.
    """

    def __init__(self, kind):
        self.kind, self.tick, self.kept_from, self.made = kind, 0, 0, 0
        self.log, self.collections, self.sources = [], {}, {}
        self.meanwhile, self.disturbed = None, None
        self.lock = RLock()

    @property
    def partitions(self):
        return ("p0", "p1") if self.kind == PARTS else ("p0",)

    def copy(self):
        made = copy.copy(self)
        made.log, made.sources = list(self.log), dict(self.sources)
        made.collections = {
            name: attrs.evolve(each, rows=dict(each.rows)) for name, each in self.collections.items()
        }
        return made

    def state(self):
        """Return all that decides what happens from now on."""
        rows = tuple(
            (name, each.incarnation, tuple(sorted((k, v["v"]) for k, v in each.rows.items())))
            for name, each in sorted(self.collections.items())
        )
        return self.kind, self.kept_from, tuple(self.log), rows

    def create(self, name, field="id"):
        self.made += 1
        self.collections[name] = Collection(f"c{self.made}" if self.kind == LOG else field, field, self.made)
        self.sources[self.made] = self.made_of(name)

    def drop(self, name):
        gone = self.collections.pop(name)
        if self.kind == LOG:
            self._commit([(name, gone, None, None)])

    def write(self, *writes):
        """Commit writes `(collection, key, True to put and False to delete)` in one transaction."""
        changes = []
        for name, key, puts in writes:
            there = self.collections[name]
            # Each document names its collection and its change.
            document = {"of": name, "in": self.made_of(name), "v": f"{self.tick + 1}.{len(changes)}"}
            changes.append((name, there, key, document if puts else None))
            if puts:
                there.rows[key] = document
            else:
                del there.rows[key]
        self._commit(changes)

    def made_of(self, name):
        there = self.collections[name]
        return f"{there.incarnation}/{there.field}"

    def _commit(self, changes):
        self.tick += 1
        for number, (name, there, key, document) in enumerate(changes):
            self.log.append(Change(self.tick, number, name, there.incarnation, there.field, key, document))

    def trim(self):
        """Forget every change so far."""
        self.kept_from = self.tick + 1

    def disturb(self, kind):
        """Let something happen, after a fetch of a collection's feed, or of that of the database."""
        if self.meanwhile is None or self.disturbed[0] != kind:
            return
        self.disturbed = (kind, self.disturbed[1] - 1)
        if not self.disturbed[1]:
            self.meanwhile(self)
            self.meanwhile = None

    def connect(self):
        return open_client(Plugin(self), api.ClientConfig("memory"))


def partition_of(key):
    """Return the partition of a key, in a service that has two."""
    return f"p{int(key[-1]) % 2}"


def place_of(cursor):
    match cursor:
        case [int() as tick, int() as number]:
            return tick, number
    raise spi.InvalidCursor("it is no position of this service")


class Mapper(spi.Mapper):
    def __init__(self, feed, partition):
        self._feed, self._partition = feed, partition

    def cursor_after(self, records, count):
        tick, number = records[count - 1].place
        return [tick, number + 1]

    def events(self, records, start, stop):
        return [self._event(each) for each in records[start:stop]]

    def _event(self, each):
        kind = api.ChangeType.DELETE if each.document is None else api.ChangeType.UPDATE
        return api.ChangeEvent(
            event_id=each.order, key=api.MulticloudDbKey({each.field: each.key}), type=kind,
            timestamp=time_of(each.tick), new_item_state=each.document, old_item_state=None,
            order_key=each.order, by_expiry=False, backfilled=False,
            address=ResourceAddress(DATABASE, each.collection),
            partition_id=self._feed.public_id(self._partition), native=None,
        )  # fmt: skip


@attrs.frozen(eq=False)
class RowMapper(spi.RowMapper):
    view: spi.View
    segment: spi.Segment
    field: str

    def rows(self, records, start, stop, *, texts):
        taken = records[start:stop]
        keys = [api.MulticloudDbKey({self.field: key}) for key, _ in taken]
        documents = [document for _, document in taken]
        return None if texts else spi.Rows(keys, documents, natives=[None] * len(taken))

    def place_after(self, records, count):
        return records[count - 1][0]


class Reader(spi.Reader):
    def __init__(self, feed, partition, place):
        self._feed, self._partition, self._place = feed, partition, place
        self._mapper, self._end = Mapper(feed, partition), spi.Continue()

    def fetch(self, max_records, max_bytes, wait, deadline):
        return self.fetch_at_once(max_records, max_bytes)

    def fetch_at_once(self, max_records, max_bytes):
        with self._feed.service.lock:
            return self._read(max_records)

    def _read(self, max_records):
        feed, begin, records, notices = self._feed, self._place, [], ()
        service = feed.service
        feed.check(begin)
        if service.kind == PARTS and feed.name is not None:
            feed.check_still()
        # One record at a time, so that what happens meanwhile has a place.
        for change in service.log:
            if change.place < begin or self._end != spi.Continue():
                continue
            if change.key is None:
                if feed.name is None:
                    self._place, notices = (change.tick, change.number + 1), (_dropped(change),)
                    break
                if change.incarnation == feed.identity.incarnation:
                    self._end = spi.Ended(_dropped(change))
                    break
            elif feed.has(change) and (service.kind == LOG or partition_of(change.key) == self._partition):
                records.append(change)
                self._place = (change.tick, change.number + 1)
                break
        else:
            if self._end == spi.Continue():
                self._place = max(begin, (service.tick + 1, 0))
        is_end = not any(change.place >= self._place for change in service.log)
        tick = self._place[0]
        batch = spi.Batch(
            records, self._mapper, list(begin), list(self._place), self._end, 50 * len(records),
            caught_up=is_end, watermark=time_of(tick), notices=notices,
        )  # fmt: skip
        service.disturb("database" if feed.name is None else feed.name)
        return batch

    def cancel(self):
        pass

    def close(self):
        pass


def _dropped(change):
    return api.Dropped(f"{DATABASE}/{change.collection}")


class SegmentReader(spi.Reader):
    def __init__(self, feed, segment):
        self._feed, self._segment = feed, segment

    def fetch(self, max_records, max_bytes, wait, deadline):
        return self.fetch_at_once(max_records, max_bytes)

    def fetch_at_once(self, max_records, max_bytes):
        with self._feed.service.lock:
            return self._read(max_records)

    def _read(self, max_records):
        feed, begin = self._feed, self._segment.cursor
        feed.check((feed.service.kept_from, 0))
        there = feed.service.collections[feed.name]
        left = sorted((k, v) for k, v in there.rows.items() if k > self._segment.after)
        taken = left[:max_records]
        if taken:
            self._segment = self._segment.at(taken[-1][0])
        view = spi.View(
            feed.spec.address, feed.public_id(self._segment.segment_id), with_new=True, native=False
        )
        is_end = len(taken) == len(left)
        batch = spi.Batch(
            taken, RowMapper(view, self._segment, there.field), begin, self._segment.cursor,
            spi.Scanned() if is_end else spi.Continue(), 50 * len(taken), caught_up=is_end,
        )  # fmt: skip
        feed.service.disturb(feed.name)
        return batch

    def cancel(self):
        pass

    def close(self):
        pass


class Feed(spi.Feed):
    """The feed of a collection, or of the database, in which `name` is None."""

    reads_at_once = True

    def __init__(self, service, spec):
        self.service, self.spec, self.name = service, spec, spec.address.collection
        there = None if self.name is None else self._there()
        self.identity = spi.FeedIdentity("memory", spec.address, None if there is None else there.incarnation)

    def _there(self):
        there = self.service.collections.get(self.name)
        if there is None:
            raise spi.ProviderFault.of(ErrorCategory.NOT_FOUND, f"there is no {self.name}; create it")
        return there

    def check(self, place):
        """Refuse a position that is not kept."""
        if place[0] < self.service.kept_from:
            raise spi.ProviderFault.of(
                ErrorCategory.CHECKPOINT_EXPIRED, "the changes are gone; read all", reason=ErrorReason.TRIMMED
            )

    def has(self, change):
        if self.name is None:
            return True
        if change.collection != self.name:
            return False
        if self.service.kind == LOG:
            return change.incarnation == self.identity.incarnation
        if change.incarnation != self.identity.incarnation:
            raise spi.ProviderFault.of(
                ErrorCategory.INVALID_REQUEST, "it is a change of an earlier table; copy the table again",
                reason=ErrorReason.RECREATED,
            )  # fmt: skip
        return True

    def visible_after(self):
        return 0.0

    def clock(self, deadline):
        return time_of(self.service.tick)

    def start(self, position, partition_id, deadline):
        if self.name is not None:
            self.check_still()
        match position:
            case api.Now():
                place = (self.service.tick + 1, 0)
            case api.AtTime(moment):
                place = ((moment - EPOCH) // timedelta(seconds=1), 0)
                self.check(place)
            case _:
                place = (self.service.kept_from, 0)
        return [spi.Seed(name, (), list(place)) for name in self.service.partitions]

    def check_still(self):
        if self._there().incarnation != self.identity.incarnation:
            raise spi.ProviderFault.of(ErrorCategory.NOT_FOUND, "it was made again; copy it")

    def open(self, partition_id, cursor, until=None):
        return Reader(self, partition_id, place_of(cursor))

    def survey(self, asked, deadline, *, expired=frozenset(), since=None, whole=True):
        oldest = [self.service.kept_from, 0]
        return spi.Survey(
            tuple(
                spi.Partition(name, (), spi.PartitionState.OPEN, oldest) for name in self.service.partitions
            )
        )

    def compare(self, a, b):
        one, other = place_of(a), place_of(b)
        return (one > other) - (one < other)

    def describe(self, cursor):
        return spi.Position(str(place_of(cursor)), time_of(place_of(cursor)[0]))

    def snapshot(self, segments, deadline):
        self.check_still()
        tick, number = self.service.tick, self._there().number
        seeds = tuple(self.start(api.Now(), None, deadline))
        return spi.ScanPlan(spi.Scan(f"{tick:06d}.~{number}", time_of(tick)), [0], seeds, 1)

    def segments(self, scan, rest, count, deadline):
        return [scan.segment("0")], None

    def open_segment(self, segment):
        return SegmentReader(self, segment)

    # -- SupportsParts

    def parts(self, deadline):
        def fits(name):
            field = self.service.collections[name].field
            if self.service.kind == LOG:
                return lambda event: True
            return lambda event: list(event.key.components) == [field]

        with self.service.lock:
            there = self.service.collections
            return {name: CollectionPart(each.incarnation, fits(name)) for name, each in there.items()}

    def narrowed(self, cursor, last):
        tick, number = place_of(cursor)
        is_after_last = last is not None and last.order_key == f"{tick:06d}.{number - 1:03d}"
        return [tick, number if self.service.kind != LOG or is_after_last else 0]

    def reaches(self, place, other):
        return min(map(place_of, place)) >= max(map(place_of, other))

    def is_before(self, place):
        first = min(map(place_of, place))
        if self.service.kind == LOG:
            return lambda event: event.order_key < f"{first[0]:06d}.{first[1]:03d}"
        return lambda event: event.timestamp < time_of(first[0])


_CAN = (
    Capability.CHANGE_FEED, Capability.CHANGE_FEED_BEGINNING, Capability.CHANGE_FEED_POINT_IN_TIME,
    Capability.CHANGE_FEED_SNAPSHOT, Capability.CHANGE_FEED_ALL_VERSIONS, Capability.CHANGE_FEED_DELETES,
    Capability.CHANGE_FEED_CHANGE_TYPES, Capability.CHANGE_FEED_DATABASE_SCOPE,
)  # fmt: skip
CAPABILITIES = api.CapabilitySet(
    {each: CapabilityNote(Support.NATIVE) for each in _CAN},
    api.ScanFacts(api.ScanFloor.HIGH, 0.0, "nothing"),
)


class Provider(spi.Provider):
    provider_id = "memory"

    def __init__(self, service):
        self._service = service

    def capabilities(self):
        return CAPABILITIES

    def open_feed(self, spec, deadline):
        return Feed(self._service, spec)

    def classify(self, error):
        return spi.Fault(ErrorCategory.PERMANENT_FAILURE, f"unexpected {error!r}; report this")

    def close(self):
        pass


class Plugin(spi.ProviderPlugin):
    provider_id = "memory"

    def __init__(self, service):
        self._service = service

    def capabilities(self):
        return CAPABILITIES

    def connect(self, config, native_client):
        return Provider(self._service)
