"""Defines which part of a simulated collection an opened feed and its readers can see."""

from __future__ import annotations

import threading

from multiclouddb_api import LogicalPartition, MulticloudDbKey
from multiclouddb_conformance.simulation.calls import Calls
from multiclouddb_conformance.simulation.log import PROVIDER_ID
from multiclouddb_conformance.simulation.partition_log import PartitionLog, Written, key_hash
from multiclouddb_conformance.simulation.position import place_after, to_cursor
from multiclouddb_conformance.simulation.service_behaviour import Dice
from multiclouddb_conformance.simulation.simulation import Simulation
from multiclouddb_spi import Awaiting, Child, Continue, Drained, FeedIdentity, FeedSpec, Outcome, Reader

__all__ = ["View"]


class View:
    """The part of a collection that is in the scope of a feed.

    A view shows only one incarnation of the collection.
    """

    def __init__(self, sim: Simulation, spec: FeedSpec, calls: Calls) -> None:
        self.sim = sim
        self.spec = spec
        self.calls = calls
        self.identity = FeedIdentity(PROVIDER_ID, spec.address, sim.incarnation)
        self._hash = key_hash(spec.scope.key) if isinstance(spec.scope, LogicalPartition) else None
        self.whole = self._hash is None
        self._readers: set[Reader] = set()
        self._lock = threading.Lock()

    # -- The scope

    def wants(self, written: Written) -> bool:
        """Return True for a record in the scope."""
        # This is the hash of the canonical partition key; another key is unlikely to have the same 64 bits.
        wanted = self._hash is None or self.sim.hash_of(written.key) == self._hash
        return wanted and self.sim.is_newest(written)

    def wants_key(self, key: MulticloudDbKey) -> bool:
        """Return True if the document with this key is in the scope."""
        return self._hash is None or self.sim.hash_of(key) == self._hash

    def covers(self, partition: PartitionLog) -> bool:
        """Return True for a partition that may contain records in the scope."""
        return self._hash is None or partition.owns(self._hash)

    def parents(self, partition: PartitionLog) -> tuple[str, ...]:
        """Return a partition's parents."""
        return tuple(name for name in partition.parents if self.covers(self.sim.partitions[name]))

    def ending(self, partition_id: str, *, asked: bool) -> Outcome:
        """Return the outcome at the end of a partition."""
        partition = self.sim.partitions[partition_id]
        if partition.closed is None:
            return Continue()
        following = [name for name in partition.children if self.covers(self.sim.partitions[name])]
        named, complete = following, True
        if self.sim.may_be_late():
            if not self.sim.children_named(partition_id, asked=asked):
                return Awaiting()
            named = self.sim.siblings_named(partition_id, following, asked=asked)
            complete = self.sim.behaviour.proves_children and len(named) == len(following)
        children = [self._child(self.sim.partitions[name]) for name in following if name in named]
        behaviour = self.sim.behaviour
        dice = Dice(behaviour.seed, f"children {partition_id}")
        if behaviour.repeat_children:
            children.append(children[dice.up_to(len(children) - 1)])
        return Drained(tuple(dice.jumbled(children) if behaviour.jumble else children), complete)

    def _child(self, partition: PartitionLog) -> Child:
        return Child(partition.id, self.parents(partition), to_cursor(place_after(partition.born)))

    # -- The readers

    def opened(self, reader: Reader) -> None:
        """Count a reader that was opened."""
        with self._lock:
            self._readers.add(reader)

    def closed(self, reader: Reader) -> None:
        """Count a reader that was closed."""
        with self._lock:
            self._readers.discard(reader)

    def cancel(self) -> None:
        """Cancel every reader."""
        with self._lock:
            readers = list(self._readers)
        for reader in readers:
            reader.cancel()
