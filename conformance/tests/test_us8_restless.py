"""Runs the suite on services whose keys move to any partition and whose partitions split by themselves."""

from typing import ClassVar

import attrs

from multiclouddb_api import Capability, CapabilityNote, CapabilitySet, Support
from multiclouddb_conformance.simulated import SimulationHarness
from multiclouddb_conformance.simulation import Listing
from multiclouddb_conformance.us8 import *  # noqa: F403


class MovesKeysHarness(SimulationHarness):
    """A harness in which any split or merge may move keys to any partition, as in Spanner's emulator."""

    # Here a key has no fixed partition, so a partition cannot be found from a key.
    capabilities: ClassVar = CapabilitySet(
        {
            **SimulationHarness.capabilities.notes,
            Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE: CapabilityNote(
                Support.UNSUPPORTED, "read the collection; take the events of the key"
            ),
        }
    )
    behaviour = attrs.evolve(SimulationHarness.behaviour, moves_keys=True)
    can_key_order = False


class RestlessHarness(MovesKeysHarness):
    """A harness in which a partition is split, merged or rolled at every write."""

    behaviour = attrs.evolve(MovesKeysHarness.behaviour, splits_itself=1)
    can_still = can_split = can_merge = False  # the service, not the test, decides when partitions split


class RestlessOpenHarness(MovesKeysHarness):
    """A harness like `RestlessHarness`, but with fewer splits.

    The service lists only open partitions, and does not name their parents.
    """

    behaviour = attrs.evolve(
        MovesKeysHarness.behaviour, splits_itself=4, listing=Listing.OPEN, seed_descendants=False
    )
    can_still = can_split = can_merge = False  # the service, not the test, decides when partitions split


HARNESSES = [MovesKeysHarness, RestlessHarness, RestlessOpenHarness]
