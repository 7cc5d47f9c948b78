"""Runs the whole conformance suite on a replica set of one node."""

from multiclouddb_certify.suites.mongo import *  # noqa: F403

from .harness import SharedHarness

HARNESS = SharedHarness
