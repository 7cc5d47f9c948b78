"""Runs the suite on the embedded store through the client of asyncio."""

from multiclouddb_certify.embedded import EmbeddedHarness
from multiclouddb_conformance.us8 import *  # noqa: F403

# What depends on a store in a file; conformance/tests/test_us8_asyncio.py has what asyncio can change.
FORM = {
    "TestClosing": "SQLite interrupts a read that runs in a thread",
    "TestDeadline": "SQLite interrupts a read that runs in a thread",
    "TestLongPoll": "the store wakes a reader that waits in a thread",
    "TestLoss": "its writers are other processes",
    "TestSharing": "connections of SQLite belong to threads",
}


class AsyncioHarness(EmbeddedHarness):
    through_asyncio = True


HARNESS = AsyncioHarness
