"""Runs the suite on a server on which each split and merge can move any key to any partition."""

from typing import Final

from multiclouddb_certify.suites.spanner import *  # noqa: F403

from .scripted import MovesKeysHarness

HARNESS = MovesKeysHarness

# `make test` reads from such a server in test_us8_hasty.py: Google's own moves keys too.
FORM: Final[dict[str, str]] = {}
