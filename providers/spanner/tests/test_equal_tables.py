"""Tests that the tables of all sinks are equal, with the values of this provider."""

from testing.equal_tables import *  # noqa: F403

from .scripted import ScriptedHarness

HARNESS = ScriptedHarness
