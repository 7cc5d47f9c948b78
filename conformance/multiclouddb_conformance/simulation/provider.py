"""Provides the simulated service as a provider."""

from __future__ import annotations

import threading
from typing import Any, ClassVar, Final

import attrs

from multiclouddb_api import (
    Capability,
    CapabilityNote,
    CapabilitySet,
    ProviderOptions,
    ScanFacts,
    ScanFloor,
    Support,
)
from multiclouddb_conformance.simulation.calls import Calls
from multiclouddb_conformance.simulation.errors import MissingError, classify
from multiclouddb_conformance.simulation.feed import SimulationFeed
from multiclouddb_conformance.simulation.log import PROVIDER_ID
from multiclouddb_conformance.simulation.simulation import Simulation
from multiclouddb_spi import Deadline, Fault, Feed, FeedSpec, Provider

__all__ = ["ALL_CAPABILITIES", "SimulationOptions", "SimulationProvider", "capabilities_without"]

_CAN: Final = (
    Capability.CHANGE_FEED,
    Capability.CHANGE_FEED_BEGINNING,
    Capability.CHANGE_FEED_POINT_IN_TIME,
    Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE,
    Capability.CHANGE_FEED_SNAPSHOT,
    Capability.CHANGE_FEED_ROWS,
    Capability.CHANGE_FEED_ALL_VERSIONS,
    Capability.CHANGE_FEED_DELETES,
    Capability.CHANGE_FEED_CHANGE_TYPES,
    Capability.CHANGE_FEED_OLD_ITEM_STATE,
    Capability.LOOKUP,
)
_NOTES: Final[Any] = {can: CapabilityNote(Support.NATIVE) for can in _CAN}
_SCAN: Final = ScanFacts(ScanFloor.HIGH, 0.0, "one unit for each fetch and for each row", is_charged=True)
ALL_CAPABILITIES: Final = CapabilitySet(_NOTES, _SCAN)
"""The default capabilities of a simulation: everything except wider scopes and commands."""


def capabilities_without(*missing: Capability, note: str = "use another simulation") -> CapabilitySet:
    """Return the simulation's capabilities, without the capabilities in `missing`."""
    gone = {can: CapabilityNote(Support.UNSUPPORTED, note) for can in missing}
    return CapabilitySet({**_NOTES, **gone}, None if Capability.CHANGE_FEED_SNAPSHOT in gone else _SCAN)


@attrs.frozen
class SimulationOptions(ProviderOptions):
    """Options without an effect, for tests of how options are handled."""

    view: str = attrs.field(default="", metadata={"positions": True})
    hint: str = ""


class SimulationProvider(Provider):
    """One client's connection to a simulated database; several clients may share a simulation."""

    provider_id: ClassVar[str] = PROVIDER_ID
    options_type: ClassVar[type[ProviderOptions] | None] = SimulationOptions

    def __init__(
        self,
        *sims: Simulation,
        capabilities: CapabilitySet = ALL_CAPABILITIES,
        page_records: int = 1000,
    ) -> None:
        """Connect to a simulated database."""
        self.calls = Calls()
        self.page_records = page_records
        self._sims = {sim.address: sim for sim in sims}
        self._capabilities = capabilities
        self._feeds: list[SimulationFeed] = []
        self._lock = threading.Lock()
        self.closed = False

    def capabilities(self) -> CapabilitySet:
        return self._capabilities

    def open_feed(self, spec: FeedSpec, deadline: Deadline) -> Feed:
        sim = self._sims.get(spec.address)
        if sim is None:
            raise MissingError(f"{spec.address} does not exist; create it first")
        sim.control("open_feed")
        with sim.changed:
            if sim.incarnation is None:
                raise MissingError(f"{spec.address} does not exist; create it first")
            feed = SimulationFeed(sim, spec, self.calls)
        self.calls.count("feeds")
        with self._lock:
            self._feeds.append(feed)
        return feed

    def has_split(self) -> bool:
        """Return whether a partition of any collection has ended."""
        return any(part.closed is not None for sim in self._sims.values() for part in sim.partitions.values())

    def classify(self, error: Exception) -> Fault:
        return classify(error)

    def close(self) -> None:
        with self._lock:
            self.closed = True
            feeds = list(self._feeds)
        for feed in feeds:
            feed.cancel()
