"""Tests that the tables of all sinks are equal, with the values of this provider."""

from multiclouddb_certify.embedded import EmbeddedHarness
from testing.equal_tables import *  # noqa: F403

HARNESS = EmbeddedHarness
