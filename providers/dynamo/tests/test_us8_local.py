"""Runs the whole conformance suite on DynamoDB Local, which is read with the unmodified boto3."""

from datetime import timedelta

import pytest

from multiclouddb_conformance import us8
from multiclouddb_conformance.us8 import *  # noqa: F403

from .harness import DynamoHarness
from .servers.local import shared

pytestmark = pytest.mark.usefixtures("hasty")


class LocalHarness(DynamoHarness):
    """A harness with one server for all tests of a worker."""

    rounding = timedelta(minutes=1)
    can_expire = False  # expiry works, but it may take half a minute: see test_local.py

    can_poison = False  # this server cannot send a damaged record
    can_idle_moves = False  # the position of a shard is the position of its last record

    value_types = DynamoHarness.value_types - {"empty text"}  # this old server refuses such values

    def open(self):
        self.server = shared()

    can_read_past_trim = False  # the server does not say whether records after a position were trimmed

    def trim(self, address):
        """Close every open shard, because open shards are not trimmed, and let a day pass."""
        arn = self.dynamodb.describe_table(TableName=address.collection)["Table"]["LatestStreamArn"]
        for shard in self.server.open_shards(arn):
            self.server.split(shard, 1)
        self.server.dilate_time(25)


HARNESS = LocalHarness


# A call costs this server more than the scripted one, and these make thousands.
for _name in ("TestLoss", "TestReleasing"):
    globals()[_name] = pytest.mark.soak(type(_name, (getattr(us8, _name),), {}))
