"""The whole conformance suite on Google's emulator, whose partitions stay as they are."""

import pytest

from multiclouddb_conformance.us8 import *  # noqa: F403

from .harness import SpannerHarness
from .servers.emulator import STILL

pytestmark = pytest.mark.emulator(*STILL)

HARNESS = SpannerHarness
