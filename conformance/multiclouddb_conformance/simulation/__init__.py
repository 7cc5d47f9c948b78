"""A deterministic, partitioned log in memory that implements the provider contract.

The tests of the engine run on the simulation. The conformance suite uses the simulation as its
reference, and each mutant wraps a simulation. An example:

    sim = Simulation(partitions=2)
    provider = SimulationProvider(sim)
    sim.write("flight-1", {"n": 1})
    sim.split("p0")
    sim.behaviour = ServiceBehaviour(throttle=0.2)
    sim.fail_next("p1", ServerError("503"))
"""

from __future__ import annotations

from multiclouddb_conformance.simulation.batch import SimulationMapper
from multiclouddb_conformance.simulation.calls import Calls
from multiclouddb_conformance.simulation.errors import (
    BadPositionError,
    CancelledError,
    ConnectionDroppedError,
    CorruptError,
    DeniedError,
    IteratorExpiredError,
    MissingError,
    ServerError,
    SimulationError,
    SlowError,
    ThrottledError,
    TrimmedError,
)
from multiclouddb_conformance.simulation.feed import SimulationFeed
from multiclouddb_conformance.simulation.log import PROVIDER_ID, AnyKey
from multiclouddb_conformance.simulation.partition_log import PartitionLog, Written
from multiclouddb_conformance.simulation.provider import (
    ALL_CAPABILITIES,
    SimulationOptions,
    SimulationProvider,
    capabilities_without,
)
from multiclouddb_conformance.simulation.reader import SimulationReader
from multiclouddb_conformance.simulation.service_behaviour import CaughtUp, Listing, ServiceBehaviour
from multiclouddb_conformance.simulation.simulation import Simulation

__all__ = [
    "ALL_CAPABILITIES",
    "PROVIDER_ID",
    "AnyKey",
    "BadPositionError",
    "Calls",
    "CancelledError",
    "CaughtUp",
    "ConnectionDroppedError",
    "CorruptError",
    "DeniedError",
    "IteratorExpiredError",
    "Listing",
    "MissingError",
    "PartitionLog",
    "ServerError",
    "ServiceBehaviour",
    "Simulation",
    "SimulationError",
    "SimulationFeed",
    "SimulationMapper",
    "SimulationOptions",
    "SimulationProvider",
    "SimulationReader",
    "SlowError",
    "ThrottledError",
    "TrimmedError",
    "Written",
    "capabilities_without",
]
