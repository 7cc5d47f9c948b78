"""Runs the whole conformance suite on a replica set of three nodes."""

from multiclouddb_certify.suites.mongo import *  # noqa: F403

from .harness import SharedHarness


class ThreeHarness(SharedHarness):
    """A harness with three nodes. A write is stored on at least two of the nodes before a feed shows it."""

    servers_name = "us8 three"
    members = 3


HARNESS = ThreeHarness
OWN_SETS = (ThreeHarness.servers_name,)
