"""Runs the classes about a client on the embedded store through the client of asyncio.

The simulation runs the whole suite in this way, and `make soak` does so with every provider.
"""

from multiclouddb_certify.embedded import EmbeddedHarness
from multiclouddb_conformance.us8 import (  # noqa: F401
    TestBeginning,
    TestClosing,
    TestDeadline,
    TestLongPoll,
    TestLoss,
    TestPickling,
    TestReleasing,
    TestSharing,
    TestSnapshotUnderLoad,
)


class AsyncioHarness(EmbeddedHarness):
    through_asyncio = True


HARNESS = AsyncioHarness
