"""The whole suite on services whose listings have other forms: open partitions only."""

import attrs

from multiclouddb_conformance.simulated import SimulationHarness
from multiclouddb_conformance.simulation import Listing
from multiclouddb_conformance.us8 import *  # noqa: F403


class RangesHarness(SimulationHarness):
    """Open partitions with parents and key ranges; it never says that it has named all children.

    One look for more of them is enough here: a token holds what is still looked for.
    """

    weather = attrs.evolve(SimulationHarness.weather, listing=Listing.OPEN_WITH_RANGES, proves_children=False)

    def config(self):
        return attrs.evolve(super().config(), child_watch_seconds=0)


class OpenHarness(SimulationHarness):
    """Open partitions without parents: each names its children itself."""

    weather = attrs.evolve(SimulationHarness.weather, listing=Listing.OPEN, seed_descendants=False)


HARNESSES = [RangesHarness, OpenHarness]
