"""Orders the shards of a stream, and checks the required settings of the table."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Final

from botocore.exceptions import ClientError

from multiclouddb_api import (
    Beginning,
    ErrorCategory,
    FeedEnded,
    NewItemStateMode,
    Notice,
    Now,
    OldItemStateMode,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_dynamo.client import Calls, Table
from multiclouddb_dynamo.errors import GONE, code_of
from multiclouddb_dynamo.position import (
    EARLY_SECONDS,
    Horizon,
    Latest,
    Place,
    Start,
    cursor_of,
    place_of,
    seconds_at,
)
from multiclouddb_dynamo.shards import Listing, Shard, ShardMap, by_parent
from multiclouddb_dynamo.source import MOST_ITERATORS, Source
from multiclouddb_spi import (
    Awaiting,
    Child,
    Cursor,
    Deadline,
    Drained,
    FeedSpec,
    FeedStart,
    Outcome,
    Partition,
    PartitionState,
    ProviderFault,
    Seed,
    Survey,
    unsupported,
)
from multiclouddb_spi.faults import START_ANEW

_WITH_NEW: Final = frozenset({"NEW_IMAGE", "NEW_AND_OLD_IMAGES"})
_WITH_OLD: Final = frozenset({"OLD_IMAGE", "NEW_AND_OLD_IMAGES"})
_ENABLE: Final = (
    "enable it: aws dynamodb update-table --table-name {table} "
    "--stream-specification StreamEnabled=true,StreamViewType=NEW_AND_OLD_IMAGES"
)
LIFE_SECONDS: Final = 6 * 3600
"""A shard is closed after about four hours, so all records of an open shard are younger than this."""

_RETENTION_SECONDS: Final = 24 * 3600


def end_of(children: Iterable[Shard], place: Place) -> Outcome:
    """Return the outcome for a shard that was read to its end."""
    found = tuple(
        Child(shard.shard_id, (shard.parent,), cursor_of(start_of(shard, place)))
        for shard in children
        if shard.parent is not None
    )
    return Drained(found, complete=False) if found else Awaiting()


def start_of(shard: Shard, place: Place) -> Place:
    """Return the start of a shard: nothing in it is older than the parent's position or a shard's life."""
    least = None if shard.last is not None or shard.seen is None else max(0, shard.seen - LIFE_SECONDS)
    ages = [seconds for seconds in (seconds_at(place), least) if seconds is not None]
    if isinstance(place, Horizon) and not ages:
        # If the parent is at `Beginning` and has no record, no time is known. Its iterator cannot be used for
        # the child.
        return Horizon(place.since)
    if isinstance(place, Latest) and place.since is not None and max(ages) == seconds_at(place):
        # The parent may have ended earlier, but records before `Now` are not wanted.
        return Latest(place.since)
    return Start(max(ages, default=None))


def seeds_at_oldest(
    shards: Mapping[str, Shard], since: int | None, unlisted: Collection[str] = ()
) -> list[Seed]:
    """Return a start position at the oldest record of every shard, with parents first."""
    present = shards.keys() | set(unlisted)
    return [Seed(name, (), cursor_of(Horizon(since))) for name in unlisted] + [
        Seed(
            shard.shard_id,
            (shard.parent,) if shard.parent in present and shard.parent is not None else (),
            cursor_of(start_of(shard, Horizon(since))),
        )
        for shard in shards.values()
    ]


def seed_at_end(shard: Shard, since: int | None, *, ended: bool = False) -> Seed:
    """Return a seed (start position) after the last record of an ended shard."""
    assert shard.last is not None
    return Seed(shard.shard_id, (), cursor_of(Latest(since, None, shard.last)), ended)


def with_children(shards: Mapping[str, Shard], most: int) -> list[str]:
    """Return ended shards with a listed child; those with the fewest generations below them come first."""
    heights, pending = dict.fromkeys(shards, 0), list(shards)
    while pending:
        name = pending.pop()
        parent = shards[name].parent
        if parent in heights and heights[parent] <= heights[name]:
            heights[parent] = heights[name] + 1
            pending.append(parent)
    ended = [name for name, shard in shards.items() if shard.last is not None and heights[name]]
    return sorted(ended, key=lambda name: heights[name])[:most]


def seeds_of_late(shards: Mapping[str, Shard], later: Mapping[str, Shard], since: int | None) -> list[Seed]:
    """Return seeds (start positions) for children of shards that split between two listings."""

    def is_reached(shard: Shard) -> bool:  # from a seed of one of the two listings
        parent = shards.get(shard.parent or "")
        return shard.parent in later if parent is None else parent.last is None

    return [
        Seed(shard.shard_id, (), cursor_of(Latest(since)))
        for shard in later.values()
        if shard.shard_id not in shards and not is_reached(shard)
    ]


def headroom(place: Place, now: datetime) -> float | None:
    """Return the seconds until a position expires; None if the position has no time."""
    seconds = seconds_at(place)
    return None if seconds is None else max(0.0, _RETENTION_SECONDS - max(0.0, now.timestamp() - seconds))


def find_table(calls: Calls, address: ResourceAddress) -> tuple[Table, str]:
    """Return the table of an address, and its stream."""
    if address.database is not None:
        raise invalid_request(
            "address.database", f"is {address.database!r}", "leave it out, because DynamoDB has no databases"
        )
    name = address.collection
    assert name is not None  # `spec_of` has already checked the name
    try:
        table = calls.describe_table(name)
    except ClientError as error:
        if code_of(error) != "ResourceNotFoundException":
            raise
        raise ProviderFault.of(
            ErrorCategory.NOT_FOUND,
            f"address.collection: there is no table {name!r} in this region and account; check its name, the "
            "region and the credentials",
        ) from error
    if table.arn is None:
        raise ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            f"table {name!r} has no stream (StreamSpecification is missing); {_ENABLE.format(table=name)}",
        )
    return table, table.arn


def check_table(table: Table, spec: FeedSpec) -> None:
    """Refuse a request for item images that the stream's records do not contain."""
    kind = table.view_type
    if kind is None:
        return  # the stream is disabled; its remaining records are read as they are
    way_out = (
        "DynamoDB cannot change the type of a stream: disable the stream, read it to its end, and then "
        "enable a new one with NEW_AND_OLD_IMAGES"
    )
    if spec.new_item_state_mode is NewItemStateMode.REQUIRE and kind not in _WITH_NEW:
        raise unsupported(
            f"new_item_state_mode=REQUIRE: StreamViewType is {kind}, without new items", way_out
        )
    if spec.old_item_state_mode is OldItemStateMode.REQUIRE and kind not in _WITH_OLD:
        raise unsupported(
            f"old_item_state_mode=REQUIRE: StreamViewType is {kind}, without old items", way_out
        )


def replaced(calls: Calls, address: ResourceAddress, arn: str) -> ProviderFault | None:
    """Return the reason why a stream no longer belongs to its table."""
    try:
        table = calls.describe_table(str(address.collection))
    except ClientError as error:
        if code_of(error) not in GONE:
            raise
        return ProviderFault.of(
            ErrorCategory.NOT_FOUND,
            f"table {address.collection!r} was deleted; a table created later under the same name is "
            f"another table; {START_ANEW}",
        )
    if table.arn != arn:
        return ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            f"the stream of table {address.collection!r} was replaced: the table was recreated, or its "
            f"stream disabled and enabled again, and the old stream's changes are gone; {START_ANEW}",
        )
    return None


_LATEST_AT_ONCE: Final = 16


class Resolution:
    """Resolves one start; an attempt of the engine reuses the results of the attempts before it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._first, self._second = Listing(), Listing()
        self._begun = False
        self._since: int | None = None
        self._iterators: dict[str, str] = {}

    def seeds(self, position: FeedStart, partition_id: str | None, deadline: Deadline) -> list[Seed]:
        """Return the seeds; for `Now` also ended shards that may have unlisted children."""
        known, alone = self._source.shards, partition_id is not None
        known.read(deadline, self._first)
        shards: Mapping[str, Shard] = self._first.shards
        if not self._begun:
            # The time of `Now` is taken after the listing. Records written to a shard after this time count
            # as later than `Now`.
            self._begun, self._since = True, self._source.seconds()
        if alone:
            shards = {name: shard for name, shard in shards.items() if name == partition_id}
        match position:
            case Beginning():
                self._source.note_start()
                # A parent that exists may be missing from the listing.
                parents = {shard.parent for shard in shards.values() if shard.parent is not None}
                absent = set() if alone else parents - shards.keys()
                return seeds_at_oldest(shards, self._since, sorted(absent - known.gone(absent, deadline)))
            case Now():
                late = list[Seed]()
                if not alone and self._first.pages > 1:  # pages of one listing may leave out shards
                    known.read(deadline, self._second)
                    late = seeds_of_late(shards, self._second.shards, self._since)
                return self._at_end(shards, self._since, deadline, alone=alone) + late
            case _:
                raise unsupported(
                    "AtTime(…) is not supported on dynamo", "start at Beginning(), at Now() or at a token"
                )

    def _at_end(
        self, shards: Mapping[str, Shard], since: int | None, deadline: Deadline, *, alone: bool
    ) -> list[Seed]:
        parents = {shard.parent for shard in shards.values()}
        live = [shard for shard in shards.values() if shard.last is None]
        ended = [
            shard
            for shard in shards.values()
            if shard.last is not None and (alone or shard.shard_id not in parents)
        ]
        watched = with_children(shards, MOST_ITERATORS) if len(live) <= MOST_ITERATORS else []
        self._ask([shard for shard in live if shard.shard_id not in self._iterators], deadline)
        iterators = {shard.shard_id: self._iterators[shard.shard_id] for shard in live}
        # If the service gives no time, nothing else shows where a shard has ended.
        if len(live) > MOST_ITERATORS and since is not None:
            since = self._source.kept.name_start(since)
            for name, iterator in iterators.items():
                self._source.kept.put(name, since, iterator)
            iterators = {}
        seeds = [
            Seed(
                shard.shard_id,
                (shard.parent,) if shard.parent is not None and shard.parent in watched else (),
                cursor_of(Latest(since, iterators.get(shard.shard_id))),
            )
            for shard in live
        ]
        watches = [seed_at_end(shards[name], since, ended=True) for name in watched]
        return [seed_at_end(shard, since) for shard in ended] + seeds + watches

    def _ask(self, shards: Sequence[Shard], deadline: Deadline) -> None:
        """Request an iterator at the end of each shard, with several concurrent calls."""
        failures: list[Exception] = []
        stop = threading.Event()
        arn, calls = self._source.arn, self._source.calls

        def ask(shard: Shard) -> None:
            if stop.is_set():
                return
            try:
                self._iterators[shard.shard_id] = calls.iterator(arn, shard.shard_id, "LATEST")
            except Exception as error:  # noqa: BLE001 - raised below
                failures.append(error)
                enough = len(failures) > _LATEST_AT_ONCE + len(self._iterators)
                if enough or not calls.is_passing(error):
                    stop.set()

        pool = ThreadPoolExecutor(_LATEST_AT_ONCE, "multiclouddb-latest")
        try:
            for _ in pool.map(ask, shards, timeout=deadline.remaining()):
                if stop.is_set():
                    break
        except TimeoutError:
            if not failures:
                raise
        finally:
            stop.set()
            pool.shutdown(wait=False)
        if failures:
            raise next((error for error in failures if not calls.is_passing(error)), failures[-1])


# Every available record is younger than a day. An hour is subtracted, because a reader needs time to start.
_KEPT_SECONDS: Final = 23 * 3600
_ENDED: Final = "the stream was disabled or its table deleted; all its records have been read"


def survey_of_listing(
    source: Source,
    shards: Mapping[str, Shard],
    asked: Mapping[str, Cursor],
    expired: Collection[str],
    since: int | None,
    deadline: Deadline,
) -> Survey:
    """State what a listing shows; a shard is gone only if the service refuses it."""
    now = source.seconds()
    lost: dict[str, Shard] = {}
    if now is None:
        # Only the age of a position shows that an unread shard was trimmed, if the shard is still listed.
        lost = _refused(source.shards, shards, expired, deadline)
    gone = source.shards.gone((name for name in asked if name not in shards), deadline)
    hidden = [name for name in expired if name not in shards and name not in gone]
    starts = dict.fromkeys(hidden, cursor_of(Horizon(now)))
    starts |= {name: cursor_of(start_of(shards[name], Horizon(now))) for name in asked if name in shards}
    if asked and (gone or lost or not expired):
        there = {name: shard for name, shard in shards.items() if name not in lost}
        heights = _uncovered(there, asked.keys() - gone - lost.keys())
        gone |= source.shards.gone((name for name in heights if name not in shards), deadline)
        starts |= _oldest(source.shards, there, heights, gone | lost.keys(), since, deadline)
    present = [_partition(shard, starts.get(name)) for name, shard in shards.items() if name not in lost]
    for name in hidden:  # these shards exist although the listing lacks them
        shard = source.shards.find(name)
        unknown = Partition(name, (), PartitionState.CLOSED, starts[name])
        present.append(unknown if shard is None else _partition(shard, starts[name]))
    told = {name: _parents(shard) for name, shard in lost.items()}
    return Survey(tuple(present), dict.fromkeys(gone) | told)


def survey_of_children(source: Source, asked: Mapping[str, Cursor], deadline: Deadline) -> Survey:
    """State the children of ended shards, if the rate limit of the stream currently allows the calls."""
    found = source.shards.discover(asked, deadline)
    listed, horizon = source.shards.listed(), Horizon(source.seconds())
    present: dict[str, Partition] = {}
    for name, children in found.items():
        place = horizon if asked[name] is None else place_of(asked[name])
        present |= {each.shard_id: _partition(each, cursor_of(start_of(each, place))) for each in children}
    childless = [name for name, children in found.items() if not children]
    gone = source.shards.gone((name for name in childless if name not in listed), deadline)
    final: dict[str, Notice | None] = {}
    if source.shards.has_settled():
        final = {name: FeedEnded(_ENDED) for name in childless if name not in gone}
    return Survey(tuple(present.values()), dict.fromkeys(gone), final=final, answered=found.keys())


def _uncovered(shards: Mapping[str, Shard], held: Collection[str]) -> dict[str, int]:
    """Walk up from each open shard that descends from no held one; count the generations below."""
    read = set[str]()
    for name in held:
        above = _parent(shards, name)
        while above is not None and above not in read and above not in held:
            read.add(above)
            above = _parent(shards, above)
    heights: dict[str, int] = {}
    for shard in shards.values():
        way, above = list[str](), shard.shard_id if shard.last is None else None
        while above is not None and above not in held and above not in read:
            way.append(above)
            above = _parent(shards, above)
        if above is None or above in read:
            for height, name in enumerate(way):
                heights[name] = min(height, heights.get(name, height))
    return heights


def _parent(shards: Mapping[str, Shard], name: str) -> str | None:
    return shards[name].parent if name in shards else None


def _oldest(
    known: ShardMap,
    shards: Mapping[str, Shard],
    heights: Mapping[str, int],
    gone: Collection[str],
    since: int | None,
    deadline: Deadline,
) -> dict[str, Cursor]:
    """Return the positions before the oldest records of shards that nobody has read.

    The service is asked whether the oldest records of a shard are trimmed only if they may be a day old, and
    if no parent shows it: with a parent that is gone, the loss is known; a parent that exists is read first.
    """
    found, old = dict[str, Place](), list[Shard]()
    for name, height in heights.items():
        shard = shards.get(name)
        if shard is None:
            continue
        if shard.seen is None:  # the service gives no time, so the age of the shard is not known
            found[name] = Start(None)
            continue
        # A shard ends before its child begins, so each generation adds at most the life of one shard.
        oldest, kept = shard.seen - LIFE_SECONDS * (height + 1), shard.seen - _KEPT_SECONDS
        if since is not None and since - EARLY_SECONDS > max(oldest, kept):
            found[name] = Latest(since)
        elif oldest >= kept:
            found[name] = Start(max(0, oldest))
        elif shard.parent in gone:
            found[name] = Horizon(shard.seen)
        else:
            found[name] = Start(max(0, kept))
            if shard.parent not in heights:
                old.append(shard)
    found |= dict.fromkeys(known.trimmed(old, deadline), Start(0))
    return {name: cursor_of(place) for name, place in found.items()}


def _refused(
    known: ShardMap, shards: Mapping[str, Shard], names: Iterable[str], deadline: Deadline
) -> dict[str, Shard]:
    """Return the closed shards, and their closed descendants, that are listed but cannot be read."""
    children = by_parent(shards.values())
    lost = {name: shard for name, shard in shards.items() if name in known.lost}
    pending = [shards[name] for name in names if name in shards]
    while pending:
        pending = [shard for shard in pending if shard.last is not None]
        refused = known.unreadable([shard.shard_id for shard in pending], deadline)
        lost |= {name: shards[name] for name in refused}
        pending = [child for name in refused for child in children.get(name, ())]
    for shard in list(lost.values()):
        above = shard.parent
        while above is not None and above in shards and above not in lost:  # its ancestors are gone too (C2)
            lost[above] = shards[above]
            above = shards[above].parent
    return lost


def _partition(shard: Shard, oldest: Cursor) -> Partition:
    state = PartitionState.OPEN if shard.last is None else PartitionState.CLOSED
    return Partition(shard.shard_id, _parents(shard), state, oldest)


def _parents(shard: Shard) -> tuple[str, ...]:
    return () if shard.parent is None else (shard.parent,)
