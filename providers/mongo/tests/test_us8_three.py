"""Runs the whole conformance suite on a replica set of three nodes."""

from .harness import MongoHarness
from .suite import *  # noqa: F403


class ThreeHarness(MongoHarness):
    """A harness with three nodes. A write is on at least two of them before it appears in a feed."""

    servers_name = "us8 three"
    members = 3


HARNESS = ThreeHarness
