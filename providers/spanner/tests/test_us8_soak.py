"""Runs the whole suite on a plain scripted server, and on two that are as awkward as the protocol allows."""

import pytest

from multiclouddb_certify.suites.spanner import *  # noqa: F403

from .scripted import MovesKeysHarness, NastyHarness, ScriptedHarness
from .test_us8_scripted import TestIdle  # noqa: F401

pytestmark = pytest.mark.soak

HARNESSES = [ScriptedHarness, NastyHarness, MovesKeysHarness]
