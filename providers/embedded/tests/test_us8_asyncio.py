"""Runs the whole conformance suite on the embedded store through the client of asyncio."""

from multiclouddb_certify.embedded import EmbeddedHarness
from multiclouddb_conformance.us8 import *  # noqa: F403


class AsyncioHarness(EmbeddedHarness):
    through_asyncio = True


HARNESS = AsyncioHarness
