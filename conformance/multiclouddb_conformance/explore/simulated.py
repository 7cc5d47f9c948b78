"""The simulation as a service of each kind that the explorer knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from multiclouddb_conformance.explore.service import Service
from multiclouddb_conformance.explore.world import ListingKind
from multiclouddb_conformance.simulation import ServiceBehaviour, Simulation, SimulationProvider
from multiclouddb_conformance.simulation.service_behaviour import Listing
from multiclouddb_spi import Provider

__all__ = ["SIMULATED", "SimulatedService"]


class _Hiding(Simulation):
    """A simulation in which a test says which partitions are neither named nor listed."""

    hidden: frozenset[str] = frozenset()

    def children_named(self, partition_id: str, *, asked: bool) -> bool:
        del asked
        return not self.hidden.issuperset(self.partitions[partition_id].children)

    def siblings_named(self, partition_id: str, children: Sequence[str], *, asked: bool) -> list[str]:
        del partition_id, asked
        return [name for name in children if name not in self.hidden]

    def shows(self, partition_id: str) -> bool:
        return partition_id not in self.hidden


class SimulatedService(Service):
    """The simulation; it goes back by doing again what it did until then."""

    listing: ClassVar[Listing]
    keeps_clients = True

    def begin(self, partitions: int) -> list[str]:
        self._done: tuple[Callable[[], object], ...] = ()
        self._partitions = partitions
        self._make()
        return list(self._sim.open_partitions)

    def _make(self) -> None:
        behaviour = ServiceBehaviour(proves_children=self.kind is not ListingKind.LATE, listing=self.listing)
        self._sim = self.server = _Hiding(self._partitions, behaviour)
        self.address, self._ends = self._sim.address, dict[int, int]()

    def _do(self, act: Callable[[], object]) -> object:
        self._done = (*self._done, act)
        return act()

    def save(self) -> tuple[Callable[[], object], ...]:
        return self._done

    def restore(self, saved: tuple[Callable[[], object], ...]) -> None:
        done = len(self._done)
        if saved[:done] != self._done:
            self._make()
            done = 0
        self._done = saved
        for act in saved[done:]:
            act()

    def provider(self) -> Provider:
        return SimulationProvider(self._sim)

    def reshape(self, parents: Sequence[str], children: int) -> Sequence[str]:
        before = len(self._sim.partitions)
        self._do(lambda: self._sim.reshape(parents, children))
        return list(self._sim.partitions)[before:]

    def holder(self, key: str) -> str:
        place = self._sim.place_of(self._sim.key(key))
        return next(name for name in self._sim.open_partitions if self._sim.partitions[name].owns(place))

    def put(self, keys: Sequence[str], moment: int) -> None:

        def act() -> None:
            self._sim.transaction([(key, {"n": moment}) for key in keys])
            self._ends[moment] = self._sim.head

        self._do(act)

    def forget(self, moment: int) -> None:
        self._do(lambda: self._sim.trim(upto=self._ends[moment]))

    def hide(self, name: str, *, hidden: bool) -> None:

        def act() -> None:
            self._sim.hidden = self._sim.hidden | {name} if hidden else self._sim.hidden - {name}

        self._do(act)


class Listed(SimulatedService):
    """Partitions merge, and all are listed with their parents."""

    kind, listing = ListingKind.LISTED, Listing.ALL


class Alive(SimulatedService):
    """Partitions merge, and those of one time are listed without parents."""

    kind, listing = ListingKind.ALIVE, Listing.OPEN


class Late(SimulatedService):
    """Partitions are listed with their parents, some of them late."""

    kind, listing = ListingKind.LATE, Listing.ALL


SIMULATED = {"listed": Listed, "alive": Alive, "late": Late}
"""The services by kind."""
