"""The whole conformance suite on DynamoDB Local, read with the unmodified boto3."""

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest

from multiclouddb_conformance.us8 import *  # noqa: F403

from .harness import DynamoHarness
from .servers.local import LocalDynamo

pytestmark = pytest.mark.usefixtures("hasty")

SERVERS = []
FOLDERS = []


class LocalHarness(DynamoHarness):
    """One server for the tests of a worker.

    A test that lets time pass makes older what is there: tables of the tests before it, which nobody reads.
    """

    rounding = timedelta(minutes=1)
    can_expire = False  # it can, after half a minute on a busy day: see test_local.py

    can_poison = False  # it cannot be made to send a record that is damaged
    can_idle_moves = False  # the position in a shard is that of its last record

    value_types = DynamoHarness.value_types - {"empty text"}  # this old server refuses it

    def open(self):
        if not SERVERS:
            FOLDERS.append(Path(tempfile.mkdtemp()))
            SERVERS.append(LocalDynamo(FOLDERS[-1]))
        self.server = SERVERS[0]

    can_read_past_trim = False  # whether anything was trimmed behind a position is not told

    def trim(self, address):
        """Close every open shard, for an open one is not trimmed, and let a day pass."""
        arn = self.dynamodb.describe_table(TableName=address.collection)["Table"]["LatestStreamArn"]
        for shard in self.server.open_shards(arn):
            self.server.split(shard, 1)
        self.server.dilate_time(25)


def stop():
    while SERVERS:
        SERVERS.pop().close()
        shutil.rmtree(FOLDERS.pop())


@pytest.fixture(scope="module", autouse=True)
def one_server():
    yield
    stop()


HARNESS = LocalHarness
