"""The whole conformance suite on the scripted server: troubles happen at the wire, to the vendor's own client."""

from .scripted import ScriptedHarness
from .suite import *  # noqa: F403

HARNESS = ScriptedHarness
