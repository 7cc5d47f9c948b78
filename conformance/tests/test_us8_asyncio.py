"""Runs the whole suite on the simulation through the client of asyncio."""

from multiclouddb_conformance.simulated import SimulationHarness
from multiclouddb_conformance.us8 import *  # noqa: F403


class AsyncioHarness(SimulationHarness):
    through_asyncio = True


HARNESS = AsyncioHarness
