"""The whole conformance suite on the scripted server: troubles happen at the wire."""

from .scripted import ScriptedHarness
from .suite import *  # noqa: F403

HARNESS = ScriptedHarness
