"""Runs the whole suite on services whose listings show only open partitions."""

import attrs

from multiclouddb_conformance.simulated import SimulationHarness
from multiclouddb_conformance.simulation import Listing
from multiclouddb_conformance.us8 import *  # noqa: F403


class RangesHarness(SimulationHarness):
    """A harness that lists open partitions with parents and key ranges."""

    behaviour = attrs.evolve(SimulationHarness.behaviour, listing=Listing.OPEN_WITH_RANGES)


class OpenHarness(SimulationHarness):
    """A harness that lists open partitions without parents: each partition names its own children."""

    behaviour = attrs.evolve(SimulationHarness.behaviour, listing=Listing.OPEN, seed_descendants=False)
    can_late_children = can_audit = False  # such a service names and lists every partition at once


HARNESSES = [RangesHarness, OpenHarness]
