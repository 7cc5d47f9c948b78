"""Runs the whole conformance suite on Google's emulator, whose partitions do not change."""

import pytest

from .harness import SpannerHarness
from .servers.emulator import STILL
from .suite import *  # noqa: F403

pytestmark = pytest.mark.emulator(*STILL)

HARNESS = SpannerHarness
