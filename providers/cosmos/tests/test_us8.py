"""The whole conformance suite on the emulator, through the unmodified azure-cosmos: troubles are at the wire."""

import pytest

from multiclouddb_conformance.us8 import *  # noqa: F403

from .harness import CosmosHarness

pytestmark = pytest.mark.usefixtures("hasty")

HARNESS = CosmosHarness
