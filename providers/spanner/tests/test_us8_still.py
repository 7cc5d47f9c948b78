"""Runs the conformance suite on Google's emulator, whose partitions do not change.

Its tests of loss run where partitions change: test_us8_restless.py, test_us8_hasty.py, test_scripted_us8.py.
"""

import pytest

from .harness import SpannerHarness
from .servers.emulator import STILL
from .suite import *  # noqa: F403

del TestLoss  # noqa: F821 - it comes with the suite

pytestmark = pytest.mark.emulator(*STILL)

HARNESS = SpannerHarness
