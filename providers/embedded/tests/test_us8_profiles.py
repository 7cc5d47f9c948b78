"""Runs the suite on the embedded store as each of the services."""

from multiclouddb_certify.embedded import EmbeddedHarness
from multiclouddb_conformance.us8 import *  # noqa: F403
from multiclouddb_embedded import EmbeddedOptions
from multiclouddb_embedded.profile import PROFILES
from multiclouddb_embedded.provider import EmbeddedPlugin

# A profile narrows starts, scopes, images and partitions; all else is the store's own.
FORM = {
    "TestAtTime": "the precision, or the opt-in, of the service",
    "TestBeginning": "the opt-in of the service",
    "TestCapabilities": "what the service can do",
    "TestImages": "which images the service keeps",
    "TestLogicalPartition": "whether the service has the scope",
    "TestNoSnapshot": "whether the service can scan",
    "TestPhysicalPartition": "whether the service has partitions to name",
}


def under(name, **lacks):
    """Return the harness for a profile, with the abilities of the service that the profile imitates."""
    profile = PROFILES[name]
    members = {
        "profile": name,
        "capabilities": profile.capabilities,
        "plugin": EmbeddedPlugin(profile),
        "precision_seconds": profile.precision / 1e6 if profile.precision > 1 else 0.0,
        "opt_in": lambda self, capability: EmbeddedOptions(backfill=True),
    }
    return type(name, (EmbeddedHarness,), members | lacks)


HARNESSES = [
    under("dynamo", can_merge=False),
    under("spanner"),
    under("cosmos"),
    under("mongo", can_several=False, can_split=False, can_merge=False),
]
