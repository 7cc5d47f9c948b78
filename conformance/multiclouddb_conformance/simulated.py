"""Provides the simulation as a provider plugin, with a harness that is the suite's reference."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final

from multiclouddb_api import (
    Capability,
    CapabilityNote,
    CapabilitySet,
    ClientConfig,
    MulticloudDbClient,
    MulticloudDbKey,
    Observer,
    ProviderOptions,
    Renamed,
    ResourceAddress,
    Support,
)
from multiclouddb_conformance.harness import CollectionKind, Harness, Write
from multiclouddb_conformance.open_client import open_client
from multiclouddb_conformance.simulation import (
    ALL_CAPABILITIES,
    PROVIDER_ID,
    ServiceBehaviour,
    Simulation,
    SimulationOptions,
    SimulationProvider,
)
from multiclouddb_spi import Engine, Provider, ProviderPlugin

__all__ = [
    "LATEST_SIMULATED",
    "SIMULATED",
    "LatestSimulationHarness",
    "SimulationHarness",
    "SimulationPlugin",
    "collection_of",
]

_numbers: Final = itertools.count()
_LACKING: Final = (
    Capability.CHANGE_FEED_DATABASE_SCOPE,
    Capability.CHANGE_FEED_CLUSTER_SCOPE,
    Capability.RUN_COMMAND,
)
SIMULATED: Final = CapabilitySet(
    {
        **ALL_CAPABILITIES.notes,
        **{each: CapabilityNote(Support.UNSUPPORTED, "read each collection") for each in _LACKING},
    },
    ALL_CAPABILITIES.scan,
)
"""The capabilities of a simulation, with a note for each missing capability."""

LATEST_SIMULATED: Final = CapabilitySet(
    {
        **SIMULATED.notes,
        **{
            each: CapabilityNote(Support.UNSUPPORTED, "the feed contains only the newest versions")
            for each in (
                Capability.CHANGE_FEED_SNAPSHOT,
                Capability.CHANGE_FEED_ALL_VERSIONS,
                Capability.CHANGE_FEED_DELETES,
                Capability.CHANGE_FEED_CHANGE_TYPES,
                Capability.CHANGE_FEED_OLD_ITEM_STATE,
            )
        },
    },
    SIMULATED.scan,
)
"""The capabilities of a simulation whose feed contains only the newest version of each document."""


class SimulationPlugin(ProviderPlugin):
    """A plugin that connects to simulations, and retries failed calls without pauses."""

    provider_id = PROVIDER_ID

    def __init__(self, capabilities: CapabilitySet = SIMULATED) -> None:
        self.sims: list[Simulation] = []
        self.providers: list[SimulationProvider] = []
        self._capabilities = capabilities

    def capabilities(self) -> CapabilitySet:
        """Return the capabilities with which the plugin was made."""
        return self._capabilities

    def connect(self, config: ClientConfig, native_client: object | None) -> Provider:
        """Connect a provider to all collections."""
        del native_client
        self.providers.append(SimulationProvider(*self.sims, capabilities=self._capabilities))
        return self.providers[-1]

    def open(self, config: ClientConfig, native_client: object | None, observer: Observer | None) -> Engine:
        """Open an engine on the connected provider."""
        return Engine(self.connect(config, native_client), config, observer, pause=lambda _: None)


class SimulationHarness(Harness):
    """The harness of the simulation, which supports everything except feeds that contain only keys."""

    capabilities: ClassVar[CapabilitySet] = SIMULATED
    secrets = ("correct horse battery staple",)
    patience_seconds = 0.5
    spellings = (1, 1.0, True, "1")
    behaviour: ClassVar[ServiceBehaviour] = ServiceBehaviour()
    can_keys_only = False
    can_clock_moves = False

    def open(self) -> None:
        """Start without any collection."""
        self.simulated = SimulationPlugin(type(self).capabilities)
        self.plugin: ProviderPlugin = self.simulated
        self._sims: dict[ResourceAddress, Simulation] = {}

    def close(self) -> None:
        """Check that the client kept the contract."""
        assert [line for each in self.simulated.providers for line in each.calls.violations] == []

    def config(self) -> ClientConfig:
        """Return a configuration with an unused secret."""
        return ClientConfig(PROVIDER_ID, {"password": self.secrets[0]})

    def create(self, name: str, kind: CollectionKind, partitions: int) -> ResourceAddress:
        """Add another simulation; clients that connect later can read it."""
        sim = Simulation(partitions, self.behaviour, address=ResourceAddress("sim", name))
        self._sims[sim.address] = sim
        self.simulated.sims.append(sim)
        return sim.address

    def write(self, address: ResourceAddress, writes: Sequence[Write]) -> None:
        """Write one commit."""
        self._sims[address].transaction([(self.key(each.key), each.document) for each in writes])

    def split(self, address: ResourceAddress, partition_id: str) -> None:
        """Split a partition into two."""
        self._sims[address].split(partition_id.rpartition(":")[2])

    def merge(self, address: ResourceAddress, a: str, b: str) -> None:
        """Merge any two partitions."""
        self._sims[address].merge(a.rpartition(":")[2], b.rpartition(":")[2])

    def trim(self, address: ResourceAddress) -> None:
        """Remove every commit made so far."""
        self._sims[address].trim()

    def expire(self, address: ResourceAddress, key: Any) -> None:
        """Delete the document as if its time to live had passed."""
        self._sims[address].write(self.key(key), None, by_expiry=True)

    def poison(self, address: ResourceAddress, key: Any) -> None:
        """Write a poison record."""
        self._sims[address].write(self.key(key), {"n": next(_numbers)}, poison=True)

    def announce(self, address: ResourceAddress) -> None:
        """Put a `Renamed` notice into every partition, although the collection was renamed only once."""
        for name in self._sims[address].open_partitions:
            self._sims[address].announce(name, Renamed(str(address), "elsewhere"))

    def recreate(self, address: ResourceAddress) -> None:
        """Drop the collection and create another one with the same name."""
        self._sims[address].recreate(self.partitions)

    def other_options(self) -> ProviderOptions:
        """Return options that change the meaning of positions."""
        return SimulationOptions(view="other")

    def now(self) -> datetime:
        """Return the time of the virtual clock."""
        return max(sim.now for sim in self._sims.values())

    def open_readers(self) -> int:
        """Return the simulation's count of open readers."""
        return sum(each.calls.open_readers for each in self.simulated.providers)


class LatestSimulationHarness(SimulationHarness):
    """The harness of a simulation whose feed contains only the newest version of each document."""

    capabilities: ClassVar[CapabilitySet] = LATEST_SIMULATED
    behaviour: ClassVar[ServiceBehaviour] = ServiceBehaviour(latest=True)
    can_trim = False


class _Ticking(Simulation):
    """A simulation whose clock goes on by itself, which tells `verify` that it has read every change."""

    @property
    def now(self) -> datetime:
        """The time; it is later in each call."""
        self._now += timedelta(milliseconds=1)
        return self._now + timedelta(seconds=time.monotonic())


@contextmanager
def collection_of(
    address: ResourceAddress, documents: Mapping[str, Mapping[str, Any]]
) -> Iterator[MulticloudDbClient]:
    """Open a client of a simulated collection.

    Args:
        address: The address of the collection.
        documents: The documents by the values of their keys' component `id`.
    """
    plugin, sim = SimulationPlugin(), _Ticking(1, address=address)
    plugin.sims.append(sim)
    for name, document in documents.items():
        sim.transaction([(MulticloudDbKey({"id": name}), dict(document))])
    with open_client(plugin, ClientConfig(PROVIDER_ID, {})) as client:
        yield client
