"""The simulation combines a log, the service's behaviour, and individual scripted faults."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import attrs

from multiclouddb_api import ChangeType, MulticloudDbKey, ResourceAddress
from multiclouddb_conformance.simulation.errors import ServerError
from multiclouddb_conformance.simulation.log import EPOCH, AnyKey, Document, ScannedLog
from multiclouddb_conformance.simulation.partition_log import HASHES, Written
from multiclouddb_conformance.simulation.service_behaviour import Dice, Listing, ServiceBehaviour
from multiclouddb_spi.faults import Fault, ProviderFault

__all__ = ["FETCH", "Simulation"]

FETCH = "fetch"
_MOST_OPEN: Final = 4


@attrs.define
class _Scripted:
    partition_id: str | None
    operation: str
    error: Exception
    left: int | None


class Simulation(ScannedLog):
    """A simulated collection, shared by every provider that is opened on it.

    Attributes:
        behaviour: The faults and the behaviour of the service; they may be replaced at any time.
    """

    def __init__(
        self,
        partitions: int = 1,
        behaviour: ServiceBehaviour | None = None,
        address: ResourceAddress | None = None,
        start: datetime = EPOCH,
        tick: timedelta = timedelta(milliseconds=1),
        retention_seconds: float | None = None,
    ) -> None:
        """Create an empty collection.

        Args:
            partitions: The number of partitions at the start.
            behaviour: The faults and the behaviour of the service; no faults by default.
            address: The address of the collection; `sim/items` by default.
            start: The time at which the clock starts.
            tick: The duration that each commit adds to the clock.
            retention_seconds: The retention period of the service. Each batch reports how much of
                this period remains for its position. With None, batches report no retention. Only
                `trim` and `trim_older_than` remove changes.
        """
        super().__init__(partitions, address, start, tick)
        self.behaviour = behaviour or ServiceBehaviour()
        self.retention_seconds = retention_seconds
        self._script: deque[_Scripted] = deque()
        self._held: set[str | None] = set()
        self._waiting: dict[str | None, int] = {}
        self._dice: dict[tuple[int, str], Dice] = {}
        self._in_row: dict[str, int] = {}
        self._patience: dict[str, int] = {}
        self._asked_for_more: dict[str, int] = {}
        self._unlisted: dict[str, int] = {}
        self._was_late = False
        self._redelivered: set[tuple[str, int, int]] = set()
        self._until_split = 0
        self._newest: dict[MulticloudDbKey, Written] = {}

    # -- Actions of the service itself

    def place_of(self, key: MulticloudDbKey) -> int:
        """See `Log.place_of`; if keys move, every split or merge changes the place of each key."""
        place = super().place_of(key)
        if self.behaviour.moves_keys:
            place += len(self.lineage) * (HASHES * 5 // 13)
        return place % HASHES

    def _commit(
        self, writes: Sequence[tuple[AnyKey, Document | None]], poison: bool, by_expiry: bool
    ) -> tuple[Written, ...]:
        with self.changed:
            records = super()._commit(writes, poison, by_expiry)
            self._newest.update((written.key, written) for written in records)
            self._split_itself()
            return records

    def _split_itself(self) -> None:
        """Split, merge or roll a partition if it is time to do so."""
        if self.behaviour.splits_itself is None or self.incarnation is None:
            return
        self._until_split += 1
        if self._until_split < self.behaviour.splits_itself:
            return
        self._until_split = 0
        dice, names = self.dice("splits itself"), list(self.open_partitions)
        first, *rest = dice.jumbled(names)
        if len(names) < _MOST_OPEN and dice.happens(0.5):
            self.split(first)
        elif self.may_merge() and dice.happens(0.7):
            self.merge(first, rest[0])
        else:
            self.roll(first)

    # -- The script

    def fail_next(
        self,
        partition_id: str | None,
        fault: Exception | Fault,
        times: int | None = 1,
        operation: str = FETCH,
    ) -> None:
        """Make the next calls fail.

        Args:
            partition_id: The partition whose calls fail, or None for any partition.
            fault: The exception to raise, or a fault that is raised as `ProviderFault`.
            times: The number of calls that fail, or None for all later calls.
            operation: `fetch`, or a method of the feed: `start`, `survey`, `heads`, `clock`, or
                `open_feed`.
        """
        error = ProviderFault(fault) if isinstance(fault, Fault) else fault
        with self.changed:
            self._script.append(_Scripted(partition_id, operation, error, times))

    def forgive(self) -> None:
        """Forget every scripted failure."""
        with self.changed:
            self._script.clear()

    def hold(self, partition_id: str | None = None) -> None:
        """Make every fetch of one partition, or of all partitions, block until `release` or `cancel`."""
        with self.changed:
            self._held.add(partition_id)

    def release(self, partition_id: str | None = None) -> None:
        """Continue the fetches that `hold` has stopped."""
        with self.changed:
            self._held.discard(partition_id)
            self.changed.notify_all()

    def delay_children(self, partition_id: str, calls: int) -> None:
        """Hide the children of a partition from the first `calls` calls of `survey` that ask for them."""
        with self.changed:
            self._patience[partition_id] = calls

    def hide(self, partition_id: str, looks: int) -> None:
        """Hide a partition with at most one parent from the first `looks` starts and surveys."""
        with self.changed:
            self._unlisted[partition_id] = looks

    def wait_until_held(self, partition_id: str, timeout: float = 10.0) -> bool:
        """Block until a fetch of the partition is held; return False if none is held in time."""
        with self.changed:
            return self.changed.wait_for(lambda: self._waiting.get(partition_id, 0) > 0, timeout)

    # -- Questions of readers and feeds

    def is_newest(self, written: Written) -> bool:
        """Return True unless the feed contains only newest versions, and the change is no such version."""
        if not self.behaviour.latest:
            return True
        return self._newest.get(written.key) is written and written.type is not ChangeType.DELETE

    def dice(self, partition_id: str) -> Dice:
        """Return the random generator of a partition, for the behaviour that is set now."""
        which = (self.behaviour.seed, partition_id)
        dice = self._dice.get(which)
        if dice is None:
            dice = self._dice[which] = Dice(*which)
        return dice

    def scripted(self, operation: str, partition_id: str | None = None) -> Exception | None:
        """Return the scripted failure of this call, if there is one, and remove it from the script."""
        for scripted in self._script:
            if scripted.operation == operation and scripted.partition_id in (None, partition_id):
                if scripted.left is not None:
                    scripted.left -= 1
                    if not scripted.left:
                        self._script.remove(scripted)
                return scripted.error.with_traceback(None)
        return None

    def control(self, operation: str) -> None:
        """Begin a call on the feed, and raise an error if a fault makes the call fail."""
        with self.changed:
            error = self.scripted(operation)
            if error is None and self._trouble(self.behaviour.control, f"feed {operation}"):
                error = ServerError(f"503 on {operation}")
        if error is not None:
            raise error

    def may_happen(self, chance: float, name: str) -> bool:
        """Return whether a fault with this probability happens now.

        `faults_in_row` limits the number of consecutive faults.
        """
        return self._trouble(chance, name)

    def _trouble(self, chance: float, name: str) -> bool:
        if not chance:
            return False
        happens = self.may_trouble(name) and self.dice(name).happens(chance)
        self.count_trouble(name, happens)
        return happens

    def may_trouble(self, name: str) -> bool:
        """Return False if `faults_in_row` faults have already happened in a row."""
        return self._in_row.get(name, 0) < self.behaviour.faults_in_row

    def count_trouble(self, name: str, happened: bool) -> None:
        """Record whether a call had a fault."""
        self._in_row[name] = self._in_row.get(name, 0) + 1 if happened else 0

    def pass_hold(self, partition_id: str, stop: Callable[[], bool]) -> None:
        """Block until `hold` no longer stops a partition's fetches, or until `stop()` returns True.

        The caller must hold the condition `changed`.
        """
        for name in (partition_id, None):
            if name in self._held:
                self._waiting[name] = self._waiting.get(name, 0) + 1
                self.changed.notify_all()
                try:
                    self.changed.wait_for(lambda name=name: stop() or name not in self._held)  # type: ignore[misc]
                finally:
                    self._waiting[name] -= 1

    def reshape(self, parents: Sequence[str], count: int) -> tuple[str, ...]:
        if len(parents) > 1 and self.names_late():
            raise ValueError("a service that names partitions late does not merge them (C1)")
        return super().reshape(parents, count)

    def may_merge(self) -> bool:
        """Return whether partitions can be merged now; a service that names them late merges none (C1)."""
        return len(self.open_partitions) > 1 and not self.names_late()

    def may_be_late(self) -> bool:
        """Return whether partitions may be named or listed late: not after one had several parents (C1).

        A service that lists no parents names and lists every partition at once.
        """
        return self.behaviour.listing is not Listing.OPEN and not self.has_merged

    def names_late(self) -> bool:
        """Return whether any partition was or may be named or listed late; once True, it stays True."""
        behaviour = self.behaviour
        names = behaviour.late_children or behaviour.late_siblings or not behaviour.proves_children
        lists = behaviour.late_listing or behaviour.incomplete_listing
        with self.changed:
            self._was_late |= self.may_be_late() and any((names, lists, self._patience, self._unlisted))
        return self._was_late and behaviour.listing is not Listing.OPEN

    def children_named(self, partition_id: str, *, asked: bool) -> bool:
        """Return True if the service now names the children of a closed partition.

        Args:
            partition_id: The closed partition.
            asked: True if the caller is `survey`. Only calls from `survey` are counted.
        """
        left = self._patience.get(partition_id)
        if left is None:
            if not self.behaviour.late_children:
                return True
            left = Dice(self.behaviour.seed, f"late {partition_id}").up_to(self.behaviour.late_children)
        self._patience[partition_id] = max(0, left - asked)
        return not left

    def siblings_named(self, partition_id: str, children: Sequence[str], *, asked: bool) -> list[str]:
        """Return the children that the service already names for a closed partition.

        The service names at least one child.

        Args:
            partition_id: The closed partition.
            children: All children of the closed partition.
            asked: True if the caller is `survey`. Only calls from `survey` are counted.
        """
        most = self.behaviour.late_siblings
        if not most or len(children) < 2:
            return list(children)
        self._asked_for_more[partition_id] = self._asked_for_more.get(partition_id, 0) + asked
        return [name for name, looks in self._namings(partition_id, children) if looks <= 0]

    def _namings(self, partition_id: str, children: Sequence[str]) -> list[tuple[str, int]]:
        """Return the children in the order in which the service names them."""
        dice = Dice(self.behaviour.seed, f"siblings {partition_id}")
        found, looks = list[tuple[str, int]](), -self._asked_for_more.get(partition_id, 0)
        for number, name in enumerate(dice.jumbled(list(children))):
            looks += dice.up_to(self.behaviour.late_siblings) if number else 0
            found.append((name, looks))
        return found

    def names_all(self) -> bool:
        """Return False while a client knows only some children of a partition.

        While some children are unknown, an idle page would come too early.
        """
        with self.changed:
            return all(
                looks <= 0
                for name in self._asked_for_more
                if self.behaviour.late_siblings and name in self.partitions
                for _, looks in self._namings(name, self.partitions[name].children)
            )

    def shows(self, partition_id: str) -> bool:
        """Return True if the current listing contains a partition."""
        if not self.may_be_late():
            return True
        left = self._unlisted.get(partition_id)
        if left is None:
            most = self.behaviour.late_listing if self.partitions[partition_id].parents else 0
            left = Dice(self.behaviour.seed, f"listed {partition_id}").up_to(most) if most else 0
        if left:
            self._unlisted[partition_id] = left - 1
        return not left and not self._trouble(self.behaviour.incomplete_listing, f"listed {partition_id}")

    def ends_apart(self, partition_id: str) -> bool:
        """Return True if the end of a partition is delivered in a separate empty batch."""
        chance = self.behaviour.separate_end
        return bool(chance) and Dice(self.behaviour.seed, f"end {partition_id}").happens(chance)

    def redelivers(self, partition_id: str, place: tuple[int, int]) -> int:
        """Return how many earlier records the service delivers again at a position.

        A later call with the same position returns 0.
        """
        which = (partition_id, *place)
        if not self.behaviour.redeliver or which in self._redelivered:
            return 0
        self._redelivered.add(which)
        return self.dice(partition_id).up_to(self.behaviour.redeliver)

    def headroom(self, commit: int) -> float | None:
        """Return the time in seconds after which the position that follows a commit expires."""
        if self.retention_seconds is None:
            return None
        committed = self.commit_time(commit) or self.commit_time(1) or self.now
        return self.retention_seconds - (self.now - committed).total_seconds()

    def waiting(self) -> Mapping[str | None, int]:
        """Map each partition id to the number of fetches that are held."""
        return {name: count for name, count in self._waiting.items() if count}
