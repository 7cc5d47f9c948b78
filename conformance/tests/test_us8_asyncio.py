"""Runs the whole suite on the simulation through the client of asyncio."""

from multiclouddb_conformance.simulated import SimulationHarness
from multiclouddb_conformance.us8 import *  # noqa: F403


class AsyncioHarness(SimulationHarness):
    through_asyncio = True
    can_fork = False  # a client of asyncio refuses to be used in a child process


HARNESS = AsyncioHarness
