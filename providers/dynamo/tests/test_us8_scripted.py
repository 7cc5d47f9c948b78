"""Runs the whole conformance suite on the scripted server, which splits shards and produces every fault."""

import pytest

from multiclouddb_certify.dynamo import typed
from multiclouddb_conformance import us8
from multiclouddb_conformance.faults import (
    ChildrenFirst,
    DropMidPage,
    ExpireIterator,
    LateChildren,
    ServerFailure,
    Silent,
    Slow,
    SplitMidPage,
    Throttle,
    Trimmed,
)
from multiclouddb_conformance.us8 import *  # noqa: F403
from multiclouddb_dynamo_emulator import Order, ScriptedStreams

from .harness import ServerHarness
from .servers.server import Server

pytestmark = pytest.mark.usefixtures("hasty")

READ = "GetRecords"


class Scripted(Server):
    """Adapts the scripted server to the interface of the other test servers."""

    def __init__(self) -> None:
        self.script = ScriptedStreams()
        super().__init__(self.script.__enter__().endpoint_url)

    def close(self) -> None:
        super().close()
        self.script.stop()


class ScriptedHarness(ServerHarness):
    """A harness with a separate server for each test."""

    can_several = can_split = can_trim = can_expire = can_poison = can_late_children = can_audit = True

    def open(self):
        self.server = Scripted()
        self.script = self.server.script
        super().open()

    def close(self):
        self.server.close()

    def make_table(self, table, kind, partitions, key="S"):
        self.script.habits.initial_shards = partitions
        return super().make_table(table, kind, partitions, key)

    def split(self, address, partition_id):
        self.script.split(self.native_id(partition_id))

    def trim(self, address):
        self.script.advance(25 * 3600)

    def poison(self, address, key):
        self.script.poison(address.collection, {"id": typed(key)})

    def expire(self, address, key):
        self.script.expire_item(address.collection, {"id": typed(key)})

    def now(self):
        return self.script.clock.now()

    def troubled(self, script, act):
        """Return a client whose calls encounter a fault. The fault ends when the client is closed."""

        def end():
            self.script.troubles.end()
            self.hide_children(0)

        client = self.connect_until(end)
        self.trouble(script, act)
        return client

    def hide_children(self, calls):
        """Hide all existing and later children."""
        self.script.habits.late_children = calls
        for table in self.tables:
            for shard in self.script.shards(table):
                if not shard.is_open:
                    self.script.hide_children(shard.shard_id, calls)

    def trouble(self, script, act):
        troubles, habits = self.script.troubles, self.script.habits
        match script:
            case Throttle(retry_after, times):
                troubles.fail(READ, "ThrottlingException", times, every=2, retry_after=retry_after)
            case ServerFailure(times, partition_id):
                shard = self.native_id(partition_id) if partition_id else None
                troubles.fail(
                    READ, "InternalServerError", times, every=1 if times is None else 2, shard=shard
                )
            case DropMidPage(times):
                troubles.drop(READ, times, mid_body=True, with_records=True, every=2)
            case Slow(seconds):
                troubles.delay(READ, seconds)
            case Silent(from_the_start):
                troubles.hang(None if from_the_start else READ)
            case ExpireIterator(times):
                troubles.expire(times)
            case SplitMidPage() | Trimmed():
                troubles.act(act)
            case ChildrenFirst():
                habits.order = Order.CHILDREN_FIRST
            case LateChildren(calls):
                self.hide_children(calls)
            case _:
                raise NotImplementedError(script)


HARNESS = ScriptedHarness


@pytest.mark.soak
class TestLoss(us8.TestLoss):
    """It reads thousands of times; test_loss.py kills a consumer in a life of this service."""


@pytest.mark.soak
class TestVerified(us8.TestVerified):
    """A round of `verify` waits a minute here, as on the service: its clock is that of the machine."""
