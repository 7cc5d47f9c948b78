"""The whole conformance suite on a replica set of three nodes."""

from .harness import MongoHarness
from .suite import *  # noqa: F403


class ThreeHarness(MongoHarness):
    """Every write is on two nodes or more before it is in a feed."""

    servers_name = "us8 three"
    members = 3


HARNESS = ThreeHarness
