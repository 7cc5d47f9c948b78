"""Runs the whole conformance suite on the embedded store."""

from multiclouddb_certify.embedded import EmbeddedHarness
from multiclouddb_conformance.us8 import *  # noqa: F403

HARNESS = EmbeddedHarness
