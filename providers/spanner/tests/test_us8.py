"""Runs the conformance suite on Google's emulator, whose partitions do not change.

The classes that need more of a server run on the scripted server or with moving partitions instead.
"""

import pytest

from .harness import SpannerHarness
from .servers.emulator import STILL
from .suite import *  # noqa: F403
from .test_us8_hasty import __all__ as hasty
from .test_us8_scripted import __all__ as scripted

pytestmark = pytest.mark.emulator(*STILL)

HARNESS = SpannerHarness

for name in {*hasty, *scripted}:
    del globals()[name]
