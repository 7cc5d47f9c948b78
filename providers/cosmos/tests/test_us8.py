"""Runs the whole conformance suite on the emulator, through the unmodified azure-cosmos."""

import pytest

from multiclouddb_certify.suites.cosmos import *  # noqa: F403
from multiclouddb_conformance import us8

from .harness import CosmosHarness

pytestmark = pytest.mark.usefixtures("hasty")

HARNESS = CosmosHarness


@pytest.mark.usefixtures("prompt")
class TestVerified(us8.TestVerified):
    """The emulator shows a change at once; each round of `verify` would wait ten seconds for a later one."""
