"""Runs the whole conformance suite on a replica set of one node."""

from .harness import MongoHarness
from .suite import *  # noqa: F403

HARNESS = MongoHarness
