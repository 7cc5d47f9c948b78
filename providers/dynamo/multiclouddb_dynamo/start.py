"""Resolves a start to positions in the shards, and for `Now` to the end of each shard."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from multiclouddb_api import Beginning, Now
from multiclouddb_dynamo.partitions import (
    seed_at_end,
    seeds_at_oldest,
    seeds_of_late,
    with_children,
)
from multiclouddb_dynamo.position import Latest, cursor_of
from multiclouddb_dynamo.shards import Listing, Shard
from multiclouddb_dynamo.source import MOST_ITERATORS, Source
from multiclouddb_spi import Deadline, FeedStart, Seed, unsupported

__all__ = ["Resolution"]

_LATEST_AT_ONCE: Final = 16


class Resolution:
    """Resolves one start, across all attempts of the engine.

    A start takes one call per hundred shards and, for `Now`, one call per open shard. An attempt
    reuses the results of earlier attempts, so a throttled call costs only one more call, not a new
    start. Every request is made during the call of the application. Therefore no start position is
    later than the end of the application's call.

    Args:
        source: The objects that all readers of the feed share.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._first, self._second = Listing(), Listing()
        self._begun = False
        self._since: int | None = None
        self._iterators: dict[str, str] = {}

    def seeds(self, position: FeedStart, partition_id: str | None, deadline: Deadline) -> list[Seed]:
        """Return the seeds (start positions) from which to read.

        The seeds of `Now` include each ended shard whose children are not listed yet. Without the
        seed of the ended shard, the feed would not find its children. If the stream has at most
        `MOST_ITERATORS` open shards, the seeds also include up to as many ended shards with listed
        children. The service may later list another child of an ended shard.

        Args:
            position: The start position.
            partition_id: The only shard to start, or None for all shards.
            deadline: The time limit.

        Raises:
            TimeoutError: Raised if the deadline has passed.
            Exception: The error of boto3. The next attempt continues where this attempt failed.
        """
        self._source.shards.read(deadline, self._first)
        shards: Mapping[str, Shard] = self._first.shards
        if not self._begun:
            # The time of `Now` is taken after the listing. Records written to a shard after this time count
            # as later than `Now`.
            self._begun, self._since = True, self._source.seconds()
        if partition_id is not None:
            shards = {name: shard for name, shard in shards.items() if name == partition_id}
        match position:
            case Beginning():
                self._source.note_start()
                unlisted = self._unlisted(shards, deadline) if partition_id is None else []
                return seeds_at_oldest(shards, self._since, unlisted)
            case Now():
                late = [] if partition_id is not None else self._late(shards, self._since, deadline)
                return self._at_end(shards, self._since, deadline, alone=partition_id is not None) + late
            case _:
                raise unsupported(
                    "AtTime(…) is not supported on dynamo", "start at Beginning(), at Now() or at a token"
                )

    def _unlisted(self, shards: Mapping[str, Shard], deadline: Deadline) -> list[str]:
        """Return the parents that exist but are missing from the listing.

        A listing may be incomplete.
        """
        parents = {shard.parent for shard in shards.values() if shard.parent is not None} - shards.keys()
        names = sorted(parents)
        pool = ThreadPoolExecutor(_LATEST_AT_ONCE, "multiclouddb-parents")
        try:
            gone = list(pool.map(self._source.shards.is_gone, names, timeout=deadline.remaining()))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return [name for name, is_gone in zip(names, gone, strict=True) if not is_gone]

    def _late(self, shards: Mapping[str, Shard], since: int | None, deadline: Deadline) -> list[Seed]:
        """Return the shards that a listing with several pages may have left out."""
        if self._first.pages == 1:
            return []
        self._source.shards.read(deadline, self._second)
        return seeds_of_late(shards, self._second.shards, since)

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
        watched = with_children(shards, MOST_ITERATORS) if len(live) <= MOST_ITERATORS else {}
        self._ask([shard for shard in live if shard.shard_id not in self._iterators], deadline)
        iterators = {shard.shard_id: self._iterators[shard.shard_id] for shard in live}
        # If the service gives no time, nothing else shows where a shard has ended.
        if len(live) > MOST_ITERATORS and since is not None:
            since = self._source.kept.name_start(since)
            for name, iterator in iterators.items():
                self._source.kept.put(name, since, iterator)
            iterators = {}
        seeds = [
            Seed(shard.shard_id, (), cursor_of(Latest(since, iterators.get(shard.shard_id))))
            for shard in live
        ]
        watches = [seed_at_end(shards[name], since, children) for name, children in watched.items()]
        return [seed_at_end(shard, since) for shard in ended] + seeds + watches

    def _ask(self, shards: Sequence[Shard], deadline: Deadline) -> None:
        """Request an iterator at the end of each shard, with one call per shard and several concurrent calls.

        If the call for a shard fails, the next attempt repeats the call. The other calls are still
        made. After a refusal, or while more calls fail than succeed, no further calls are made.

        Raises:
            TimeoutError: Raised if the deadline has passed and no call has failed.
            Exception: The error of boto3; a refusal takes precedence over a temporary error.
        """
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
