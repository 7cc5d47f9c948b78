"""Runs the whole conformance suite on the emulator, through the unmodified azure-cosmos."""

import pytest

from multiclouddb_certify.suites.cosmos import *  # noqa: F403

from .harness import CosmosHarness

pytestmark = pytest.mark.usefixtures("hasty")

HARNESS = CosmosHarness
