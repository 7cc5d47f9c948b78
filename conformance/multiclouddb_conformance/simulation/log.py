"""A deterministic, partitioned log in memory: writes, splits, merges, retention, and its own clock.

The log stores no information about its readers. The log keeps every written change, and oracles
compare events with these changes.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from multiclouddb_api import ChangeType, MulticloudDbKey, Notice, ResourceAddress
from multiclouddb_conformance.simulation.partition_log import (
    HASHES,
    Commit,
    PartitionLog,
    RangeMap,
    Written,
    halves,
    key_hash,
)
from multiclouddb_spi.partition import encode_partition_id

__all__ = ["PLACES", "PROVIDER_ID", "AnyKey", "Document", "Log", "ScannedLog", "place_in_scan"]

PROVIDER_ID: Final = "simulation"
EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
RECORD_OVERHEAD: Final = 100

AnyKey: TypeAlias = MulticloudDbKey | str | int
"""A key, or the value of the key's only component `id`."""

Document: TypeAlias = Mapping[str, Any]

_logs: weakref.WeakSet[Log] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Replace the lock, because a thread of the parent process may have held it during the fork."""
    for log in list(_logs):
        log.changed = threading.Condition(threading.RLock())


os.register_at_fork(after_in_child=_after_fork_in_child)


class Log:
    """One collection of a simulated database. Every method may be called from several threads."""

    def __init__(
        self,
        partitions: int = 1,
        address: ResourceAddress | None = None,
        start: datetime = EPOCH,
        tick: timedelta = timedelta(milliseconds=1),
    ) -> None:
        """Create an empty collection."""
        self.address = address or ResourceAddress("sim", "items")
        self.history: list[Written] = []
        self.lineage: dict[str, tuple[str, ...]] = {}
        self.changed = threading.Condition(threading.RLock())
        _logs.add(self)
        self._now = start
        self._tick = tick
        self._commit_times: list[datetime] = []
        self._keys: dict[MulticloudDbKey, int] = {}
        self._names: dict[str | int, MulticloudDbKey] = {}
        self._snapshots = 0
        self._number_of_partitions = 0
        self._number_of_incarnations = 0
        self._incarnation: str | None = None
        self.created = 0
        self.has_merged = False
        self.partitions: dict[str, PartitionLog] = {}
        self._begin(partitions)

    # -- Its state

    @property
    def now(self) -> datetime:
        """Return the time of the service's clock. Only commits and `advance` change this time."""
        return self._now

    @property
    def head(self) -> int:
        """Return the number of the last commit."""
        return len(self._commit_times)

    @property
    def incarnation(self) -> str | None:
        """Return the id of the collection's present incarnation, or None while it is dropped."""
        return self._incarnation

    @property
    def open_partitions(self) -> tuple[str, ...]:
        """Return the ids of the partitions that accept writes, oldest first."""
        return tuple(self._open)

    @property
    def truth(self) -> list[Written]:
        """Return the changes of the collection's present incarnation, in commit order."""
        return [written for written in self.history if written.incarnation == self._incarnation]

    def children(self, partition_id: str) -> tuple[str, ...]:
        """Return the children of a partition; empty while the partition accepts writes."""
        return self.partitions[partition_id].children

    def document(self, key: AnyKey) -> Document | None:
        """Return the current document of a key, or None."""
        return self._documents.get(self.key(key))

    def documents(self) -> dict[MulticloudDbKey, Document]:
        """Return all current documents."""
        return dict(self._documents)

    def next_snapshot(self) -> int:
        """Return a number that identifies a new snapshot."""
        self._snapshots += 1
        return self._snapshots

    def public_id(self, partition_id: str) -> str:
        """Return the public id of a partition."""
        return encode_partition_id(PROVIDER_ID, self.address, self._incarnation, partition_id)

    def public_lineage(self) -> dict[str, tuple[str, ...]]:
        """Map the public id of each partition to the public ids of its parents."""
        return {
            self.public_id(partition.id): tuple(self.public_id(parent) for parent in partition.parents)
            for partition in self.partitions.values()
        }

    def commit_before(self, moment: datetime) -> int:
        """Return the number of the last commit before a given time."""
        return bisect_left(self._commit_times, moment)

    def commit_time(self, number: int) -> datetime | None:
        """Return the time of a commit; None for 0, which is before the first commit."""
        return self._commit_times[number - 1] if 0 < number <= self.head else None

    # -- Actions

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with self.changed:
            self._now += timedelta(seconds=max(0.0, seconds))

    def write(
        self, key: AnyKey, document: Document | None, *, poison: bool = False, by_expiry: bool = False
    ) -> Written | None:
        """Create or update a document, or delete it with None."""
        records = self._commit([(key, document)], poison, by_expiry)
        return records[0] if records else None

    def transaction(self, writes: Iterable[tuple[AnyKey, Document | None]]) -> tuple[Written, ...]:
        """Write several changes in one commit, in any partitions; a key may occur more than once."""
        return self._commit(list(writes), poison=False, by_expiry=False)

    def split(self, partition_id: str, into: int = 2) -> tuple[str, ...]:
        """End a partition and assign its hashes to several children. Return their ids."""
        return self.reshape([partition_id], into)

    def merge(self, *partition_ids: str) -> str:
        """Merge partitions: end them, and assign their hashes to one child. Return its id."""
        return self.reshape(partition_ids, 1)[0]

    def roll(self, partition_id: str) -> str:
        """End a partition and continue with one child, as DynamoDB does every few hours."""
        return self.reshape([partition_id], 1)[0]

    def reshape(self, parents: Sequence[str], count: int) -> tuple[str, ...]:
        """End open partitions and assign their hashes to `count` children."""
        with self.changed:
            if len(set(parents)) != len(parents) or not parents:
                raise ValueError("name at least one parent, and none of them twice")
            closed = [name for name in parents if name not in self._open]
            if closed:
                raise ValueError(f"not open: {', '.join(closed)}")
            shares = halves([piece for name in parents for piece in self.partitions[name].ranges], count)
            number = self._next_commit()
            children = tuple(self._add_partition(tuple(parents), number, share) for share in shares)
            self.has_merged |= len(parents) > 1
            for name in parents:
                self.partitions[name].closed = number
                self.partitions[name].children = children
                del self._open[name]
            self.changed.notify_all()
            return children

    def announce(self, partition_id: str, notice: Notice) -> None:
        """Add a notice to a partition's log."""
        with self.changed:
            if partition_id not in self._open:
                raise ValueError(f"not open: {partition_id}")
            number = self._next_commit()
            self.partitions[partition_id].append(Commit(number, self._now, (), (notice,)))
            self.changed.notify_all()

    def commit_elsewhere(self) -> None:
        """Commit a change of another collection: positions move, and nothing is delivered."""
        with self.changed:
            self._next_commit()
            self.changed.notify_all()

    def trim(self, partition_id: str | None = None, upto: int | None = None) -> None:
        """Remove commits, as retention would do: a partition that goes takes its ancestors (C2)."""
        with self.changed:
            number = self.head if upto is None else min(upto, self.head)
            names = list(self.partitions) if partition_id is None else [partition_id]
            while names:
                part = self.partitions[names.pop()]
                part.trim(number)
                if part.gone:
                    names += [name for name in part.parents if not self.partitions[name].gone]

    def trim_older_than(self, seconds: float) -> None:
        """Remove every commit that is older than the given number of seconds."""
        self.trim(upto=self.commit_before(self._now - timedelta(seconds=seconds)))

    def drop(self) -> None:
        """Drop the collection."""
        with self.changed:
            self._incarnation = None
            self._open.clear()
            self.changed.notify_all()

    def recreate(self, partitions: int = 1) -> None:
        """Drop the collection if it exists, and create another one under the same name."""
        with self.changed:
            self._begin(partitions)
            self.changed.notify_all()

    def key(self, key: AnyKey) -> MulticloudDbKey:
        """Convert a value to the key that `write` uses."""
        if isinstance(key, MulticloudDbKey):
            return key
        known = self._names.get(key)
        if known is None:
            components: dict[str, Any] = {"id": key}
            known = self._names[key] = MulticloudDbKey(components)
        return known

    # -- Helpers

    def _begin(self, partitions: int) -> None:
        self._number_of_incarnations += 1
        self._incarnation = f"i{self._number_of_incarnations}"
        self.created = self.head
        self.partitions.clear()
        self._open: dict[str, None] = {}
        self._ranges = RangeMap()
        self._documents: dict[MulticloudDbKey, dict[str, Any]] = {}
        for share in halves([(0, HASHES)], partitions):
            self._add_partition((), self.head, share)

    def _add_partition(self, parents: tuple[str, ...], born: int, share: tuple[tuple[int, int], ...]) -> str:
        name = f"p{self._number_of_partitions}"
        self._number_of_partitions += 1
        self.partitions[name] = PartitionLog(name, parents, born, share)
        self.lineage[name] = parents
        self._open[name] = None
        self._ranges.assign(share, name)
        return name

    def _next_commit(self) -> int:
        self._now += self._tick
        self._commit_times.append(self._now)
        return self.head

    def _commit(
        self, writes: Sequence[tuple[AnyKey, Document | None]], poison: bool, by_expiry: bool
    ) -> tuple[Written, ...]:
        with self.changed:
            if self._incarnation is None:
                raise ValueError(f"{self.address} is dropped")
            effective = self._effective([(self.key(key), document) for key, document in writes])
            if not effective:
                return ()
            number = self._next_commit()
            records = tuple(
                self._record(number, index, key, document, previous, poison, by_expiry)
                for index, (key, document, previous) in enumerate(effective)
            )
            self.history.extend(records)
            shares: dict[str, list[Written]] = {}
            for written in records:
                shares.setdefault(written.partition_id, []).append(written)
            for name, share in shares.items():
                self.partitions[name].append(Commit(number, self._now, tuple(share)))
            self.changed.notify_all()
            return records

    def _effective(
        self, writes: Sequence[tuple[MulticloudDbKey, Document | None]]
    ) -> list[tuple[MulticloudDbKey, dict[str, Any] | None, dict[str, Any] | None]]:
        """Apply the writes; deletes of missing documents are omitted."""
        done = []
        for key, document in writes:
            previous = self._documents.get(key)
            if document is not None:
                self._documents[key] = dict(document)
            elif self._documents.pop(key, None) is None:
                continue
            done.append((key, None if document is None else dict(document), previous))
        return done

    def _record(
        self,
        number: int,
        index: int,
        key: MulticloudDbKey,
        document: dict[str, Any] | None,
        previous: dict[str, Any] | None,
        poison: bool,
        by_expiry: bool,
    ) -> Written:
        if document is None:
            kind = ChangeType.DELETE
        else:
            kind = ChangeType.CREATE if previous is None else ChangeType.UPDATE
        assert self._incarnation is not None
        return Written(
            event_id=f"{number}.{index}",
            key=key,
            type=kind,
            timestamp=self._now,
            document=document,
            previous=previous,
            partition_id=self._ranges.owner(self.place_of(key)),
            commit=number,
            index=index,
            incarnation=self._incarnation,
            poison=poison,
            by_expiry=by_expiry,
            size=RECORD_OVERHEAD + len(str(document)),
        )

    def hash_of(self, key: MulticloudDbKey) -> int:
        """Return the hash of a key's partition key; cached."""
        known = self._keys.get(key)
        if known is None:
            known = self._keys[key] = key_hash(key)
        return known

    def place_of(self, key: MulticloudDbKey) -> int:
        """Return the hash that selects the partition for the key's next change."""
        return self.hash_of(key)


PLACES: Final = 2**62
"""Each key's place in a scan is a number below this value."""


def place_in_scan(key: MulticloudDbKey) -> int:
    """Return the place of a key in the order of a scan. The place is the same in every process."""
    return int.from_bytes(hashlib.blake2b(key.canonical(), digest_size=8).digest(), "big") >> 2


class ScannedLog(Log):
    """A log whose documents can be scanned."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._scans: dict[Any, Any] = {}

    def rows(self, low: int, high: int, commit: int | None) -> list[tuple[MulticloudDbKey, Document]]:
        """Return the documents between two places in a scan."""
        with self.changed:
            when = (self._incarnation, self.head if commit is None else commit, commit)
            if when not in self._scans:
                documents = self._documents if commit is None else self._documents_at(commit)
                rows = sorted((place_in_scan(key), key, document) for key, document in documents.items())
                self._scans = {when: ([place for place, *_ in rows], rows)}
            places, rows = self._scans[when]
            return [row[1:] for row in rows[bisect_left(places, low) : bisect_left(places, high)]]

    def _documents_at(self, commit: int) -> dict[MulticloudDbKey, Document]:
        found: dict[MulticloudDbKey, Document] = {}
        for written in self.truth:
            if written.commit > commit:
                break
            if written.document is None:
                found.pop(written.key, None)
            else:
                found[written.key] = written.document
        return found
