"""Runs the classes that need no splits and no faults on DynamoDB Local, with the unmodified boto3."""

from datetime import timedelta

import pytest

from multiclouddb_conformance.us8 import (  # noqa: F401
    TestBeginning,
    TestCheckpoint,
    TestEventIdentity,
    TestExpiry,
    TestImages,
    TestKeys,
    TestLookup,
    TestNow,
    TestPropagation,
    TestRecreated,
    TestRowsAlone,
    TestScannedRow,
    TestSnapshot,
    TestTransactions,
    TestValues,
)

from .harness import DynamoHarness
from .servers.local import shared

pytestmark = pytest.mark.usefixtures("hasty")


class LocalHarness(DynamoHarness):
    """A harness with one server for all tests of a worker. The server cannot split shards."""

    rounding = timedelta(minutes=1)
    can_several = can_split = False
    can_expire = False  # expiry works, but it may take half a minute: see test_local.py
    can_read_past_trim = False  # the server does not say whether records after a position were trimmed
    can_idle_moves = False  # the position of a shard is the position of its last record
    can_poison = can_late_children = can_audit = False
    value_types = DynamoHarness.value_types - {"empty text"}  # this old server refuses such values

    def open(self):
        self.server = shared()

    def trim(self, address):
        self.server.rollover()
        self.server.dilate_time(25)


HARNESS = LocalHarness
