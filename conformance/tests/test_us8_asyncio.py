"""Runs the suite on the simulation through the client of asyncio."""

from multiclouddb_conformance.simulated import SimulationHarness
from multiclouddb_conformance.us8 import *  # noqa: F403

# Reading and following are the same state machine in both clients; the loop decides who waits, and where.
FORM = {
    "TestBeginning": "a client that is opened in the loop starts a feed",
    "TestClosing": "calls that run in threads end with the loop's client",
    "TestDeadline": "the loop waits, and has the deadline",
    "TestFollowing": "the iterator of asyncio follows",
    "TestLateness": "`inspect` is a call of its own",
    "TestLongPoll": "the loop waits for a first event",
    "TestLookup": "`lookup` is a call of its own",
    "TestLoss": "its consumer is the iterator of asyncio",
    "TestNotices": "the iterator of asyncio stops at a notice, and goes on",
    "TestPhysicalPartition": "`plan_partitions` and `list_physical_partitions` are calls of their own",
    "TestPickling": "the client of asyncio refuses it too",
    "TestReleasing": "readers are closed with the loop's client",
    "TestResnapshot": "the iterator of asyncio begins again",
    "TestSharing": "tasks share a client",
    "TestSnapshotUnderLoad": "a scan outlasts many calls of the loop",
}


class AsyncioHarness(SimulationHarness):
    through_asyncio = True


HARNESS = AsyncioHarness
