"""Runs the whole suite on the simulation."""

from multiclouddb_conformance.simulated import SimulationHarness
from multiclouddb_conformance.us8 import *  # noqa: F403

HARNESS = SimulationHarness
