"""Runs the suite on services with other habits, because the suite must not require more than is promised."""

from typing import ClassVar

import attrs
import pytest

from multiclouddb_api import Capability, CapabilityNote, Support
from multiclouddb_conformance.harness import ABILITIES, Harness
from multiclouddb_conformance.simulated import SimulationHarness
from multiclouddb_conformance.simulation import CaughtUp, Listing, ServiceBehaviour, SimulationOptions
from multiclouddb_conformance.us8 import *  # noqa: F403

pytestmark = pytest.mark.soak
EMULATED = (Capability.CHANGE_FEED_BEGINNING, Capability.CHANGE_FEED_POINT_IN_TIME)


def with_support(support, *capabilities):
    notes = {each: CapabilityNote(support, "do something else") for each in capabilities}
    everything = SimulationHarness.capabilities
    return attrs.evolve(everything, notes={**everything.notes, **notes})


class RangesHarness(SimulationHarness):
    """A harness that lists open partitions with parents and key ranges."""

    behaviour = attrs.evolve(SimulationHarness.behaviour, listing=Listing.OPEN_WITH_RANGES)


class OpenHarness(SimulationHarness):
    """A harness that lists open partitions without parents: each partition names its own children."""

    behaviour = attrs.evolve(SimulationHarness.behaviour, listing=Listing.OPEN, seed_descendants=False)
    can_late_children = can_audit = False  # such a service names and lists every partition at once


class BareHarness(SimulationHarness):
    """A harness whose feed has a single partition, which never ends; it supports no other capability."""

    capabilities = with_support(Support.UNSUPPORTED, *set(Capability) - {Capability.CHANGE_FEED})
    partitions = 1
    value_types = frozenset({"text", "integer"})
    key_types = frozenset({"text"})
    behaviour = ServiceBehaviour(
        heartbeats=False, strict_retention=False, watermarks=False, caught_up=CaughtUp.UNKNOWN, latest=True
    )

    def create(self, name, kind, partitions):
        return super().create(name, kind, 1)

    def write(self, address, writes):
        assert len(writes) == 1
        super().write(address, writes)

    split, merge, trim, expire = Harness.split, Harness.merge, Harness.trim, Harness.expire
    poison, recreate, other_options = Harness.poison, Harness.recreate, Harness.other_options


for ability in ABILITIES:
    setattr(BareHarness, f"can_{ability}", False)


@attrs.frozen
class OptIn(SimulationOptions):
    def opts_into(self, capability):
        return capability in EMULATED


class FussyHarness(SimulationHarness):
    """A harness with small answers, late ends, children in any order, and starts that need an opt-in."""

    capabilities = with_support(Support.EMULATED, *EMULATED)
    behaviour = ServiceBehaviour(
        page_limit=3,
        scan_limit=2,
        separate_end=1.0,
        jumble=True,
        repeat_children=True,
        late_children=1,
        seed_descendants=False,
        caught_up=CaughtUp.WHEN_EMPTY,
        poison_at_fetch=True,
        ignore_max_bytes=True,
        drop_notice=True,
    )
    can_merge = can_merged_children = False  # it names children late

    def opt_in(self, capability):
        return OptIn()


class MovesKeysHarness(SimulationHarness):
    """A harness in which any split or merge may move keys to any partition, as in Spanner's emulator."""

    # Here a key has no fixed partition, so a partition cannot be found from a key.
    capabilities: ClassVar = with_support(Support.UNSUPPORTED, Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE)
    behaviour = attrs.evolve(SimulationHarness.behaviour, moves_keys=True)
    can_key_order = False


class RestlessHarness(MovesKeysHarness):
    """A harness in which the service splits, merges or rolls a partition at every write."""

    behaviour = attrs.evolve(MovesKeysHarness.behaviour, splits_itself=1)
    can_still = can_split = can_merge = False


class RestlessOpenHarness(RestlessHarness):
    """A harness with fewer splits, which lists only open partitions and does not name their parents."""

    behaviour = attrs.evolve(
        MovesKeysHarness.behaviour, splits_itself=4, listing=Listing.OPEN, seed_descendants=False
    )


HARNESSES = [
    RangesHarness,
    OpenHarness,
    BareHarness,
    FussyHarness,
    MovesKeysHarness,
    RestlessHarness,
    RestlessOpenHarness,
]
