"""Runs the whole suite on a plain scripted server, and on two that are as awkward as the protocol allows."""

import pytest

from .scripted import MovesKeysHarness, NastyHarness, ScriptedHarness
from .suite import *  # noqa: F403
from .test_us8_scripted import TestIdle  # noqa: F401

pytestmark = pytest.mark.soak

HARNESSES = [ScriptedHarness, NastyHarness, MovesKeysHarness]
