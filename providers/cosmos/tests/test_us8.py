"""Runs the whole conformance suite on the emulator, through the unmodified azure-cosmos."""

import pytest

from .harness import CosmosHarness
from .suite import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("hasty")

HARNESS = CosmosHarness
