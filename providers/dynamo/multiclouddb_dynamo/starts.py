"""Decides where the reading of a shard starts: at the beginning, at `Now`, at a time, or after its parent."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from botocore.exceptions import ClientError

from multiclouddb_api import AtTime, Beginning, Now
from multiclouddb_dynamo.capabilities import FROM_THE_OLDEST
from multiclouddb_dynamo.errors import GONE, REJECTED, code_of, expired_records
from multiclouddb_dynamo.position import (
    RETENTION_SECONDS,
    Horizon,
    Latest,
    Place,
    Since,
    Start,
    cursor_of,
    seconds_at,
)
from multiclouddb_dynamo.shards import Listing, Shard
from multiclouddb_dynamo.source import MOST_ITERATORS, ReaderContext
from multiclouddb_spi import (
    Awaiting,
    Child,
    Deadline,
    Drained,
    FeedStart,
    Outcome,
    Seed,
    unsupported,
)

LIFE_SECONDS: Final = 6 * 3600
"""A shard is closed after about four hours, so all records of an open shard are younger than this."""
CLOCK_SECONDS: Final = 5
"""By how much the clocks of the service's machines may differ, so that one refuses a time as the future."""
_LATEST_AT_ONCE: Final = 16


def end_of(children: Iterable[Shard], place: Place) -> Outcome:
    """Return the outcome for a shard that was read to its end."""
    found = tuple(
        Child(shard.shard_id, shard.parents, cursor_of(start_of(shard, place))) for shard in children
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
    if isinstance(place, Since) and max(ages) == place.time:
        # The parent may have ended earlier, so the child may have older records too.
        return Since(place.time)
    if isinstance(place, Latest) and place.since is not None and max(ages) == seconds_at(place):
        # The parent may have ended earlier, but records before `Now` are not wanted.
        return Latest(place.since)
    return Start(max(ages, default=None))


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


class Resolution:
    """Resolves one start; an attempt of the engine reuses the results of the attempts before it."""

    def __init__(self, source: ReaderContext) -> None:
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
                return self._from_the_roots(shards, Horizon(self._since), deadline, alone=alone)
            case AtTime(utc):
                # The times of records are in whole seconds, rounded down.
                place = Since(max(0, int(utc.timestamp() // 1)))
                self._check_time(place.time, self._first.shards.values())
                return self._from_the_roots(shards, place, deadline, alone=alone)
            case Now():
                late = list[Seed]()
                if not alone and self._first.pages > 1:  # pages of one listing may leave out shards
                    known.read(deadline, self._second)
                    late = seeds_of_late(shards, self._second.shards, self._since)
                return self._at_end(shards, self._since, deadline, alone=alone) + late

    def _from_the_roots(
        self, shards: Mapping[str, Shard], place: Horizon | Since, deadline: Deadline, *, alone: bool
    ) -> list[Seed]:
        """Return a seed for each shard, also for an ended one: only its records show when it ended."""
        # A parent that exists may be missing from the listing.
        parents = {shard.parent for shard in shards.values() if shard.parent is not None}
        absent = set() if alone else parents - shards.keys()
        hidden = sorted(absent - self._source.shards.gone(absent, deadline))
        seeds = [Seed(name, (), cursor_of(place)) for name in hidden]
        for name, shard in shards.items():
            above = tuple(parent for parent in shard.parents if parent in shards or parent in hidden)
            start = place if isinstance(place, Since) else start_of(shard, place)
            seeds.append(Seed(name, above, cursor_of(start)))
        return seeds

    def _check_time(self, time: int, shards: Iterable[Shard]) -> None:
        """Refuse a start at a time whose records may be gone, or of which the server knows nothing.

        The service starts at the oldest record if the time is older, and refuses a time in the future. A
        server that gives an iterator for such a time does not look at it, and may begin anywhere, also after
        the time: moto 5.2.5 gives one for every type.
        """
        now = self._source.seconds()
        if now is None:
            raise unsupported(
                "AtTime(…): the server sends no time (the header Date), so whether it still has the records "
                "since then is not known",
                FROM_THE_OLDEST,
            )
        if now - time > RETENTION_SECONDS:
            raise expired_records(f"AtTime.utc: is {now - time} s before the service's time")
        past, future = min(time, now - CLOCK_SECONDS), now + RETENTION_SECONDS
        for shard in sorted(shards, key=lambda each: each.last is not None):
            try:
                self._source.calls.iterator_at(self._source.arn, shard.shard_id, max(0, past))
            except ClientError as error:
                if code_of(error) in GONE:
                    continue
                if code_of(error) not in REJECTED:
                    raise
                if shard.last is not None:
                    continue  # what it answers if it ended before the time is not documented
                said = str(error.response.get("Error", {}).get("Message", ""))
                raise unsupported(
                    f"AtTime(…): the server does not know the ShardIteratorType AT_TIMESTAMP ({said})",
                    FROM_THE_OLDEST,
                ) from error
            try:
                self._source.calls.iterator_at(self._source.arn, shard.shard_id, future)
            except ClientError as error:
                if code_of(error) not in REJECTED:
                    raise
                return
            raise unsupported(
                "AtTime(…): the server ignores the time of an AT_TIMESTAMP: it takes one in the future",
                FROM_THE_OLDEST,
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
                tuple(parent for parent in shard.parents if parent in watched),
                cursor_of(Latest(since, iterators.get(shard.shard_id))),
            )
            for shard in live
        ]

        def at_end(shard: Shard, *, watch: bool) -> Seed:
            return Seed(shard.shard_id, (), cursor_of(Latest(since, None, shard.last)), watch)

        watches = [at_end(shards[name], watch=True) for name in watched]
        return [at_end(shard, watch=False) for shard in ended] + seeds + watches

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
