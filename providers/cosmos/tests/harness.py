"""Gives the harness of `multiclouddb certify` an emulator in the process of the test."""

import orjson
from azure.cosmos import CosmosClient, PartitionKey

from multiclouddb_api import ClientConfig, ResourceAddress
from multiclouddb_certify.cosmos import CosmosHarness as ServiceHarness
from multiclouddb_certify.cosmos import close_client, native
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
from multiclouddb_cosmos.options import LATEST
from multiclouddb_cosmos.provider import CosmosPlugin
from multiclouddb_cosmos_emulator import CosmosEmulator
from multiclouddb_cosmos_emulator.faults import Act, Drop, Fail
from multiclouddb_cosmos_emulator.faults import Slow as Late
from multiclouddb_cosmos_emulator.writes import Transaction

READ = "ReadChangeFeed"
DATABASE = "shop"
FOR_EVER = 10**6


class CosmosHarness(ServiceHarness):
    """A harness with a separate server for each test."""

    https = False
    partitions = 2
    can_several = can_split = can_trim = can_poison = can_expire = True

    def open(self):
        self.server = CosmosEmulator(https=self.https)
        self.secrets = (self.server.key,)
        self.native = CosmosClient(self.server.endpoint, self.server.key, enable_endpoint_discovery=False)
        self.database_id, self.database = DATABASE, self.native.create_database(DATABASE)

    def close(self):
        close_client(self.native)
        self.server.__exit__(None, None, None)

    def config(self):
        host = self.server.endpoint.split("/")[2]
        return ClientConfig("cosmos", {"url": f"cosmos://{host}?tls={str(self.https).lower()}"})

    def create(self, name, kind, partitions):
        return self.make_container(name, partitions=partitions)

    def make_container(self, name, path="/id", partitions=partitions):
        self.database.create_container(
            name, PartitionKey(path), offer_throughput=max(400, 6_000 * partitions), default_ttl=-1
        )
        return ResourceAddress(DATABASE, name)

    def write(self, address, writes):
        """Write in the server itself, because a write through azure-cosmos costs more than most tests."""
        with self.server._lock:
            container = self.server._container(DATABASE, address.collection)
            for write in writes:
                key = native(write.key)
                transaction = Transaction(container, container.definition.of_values((key,)))
                if write.document is None:
                    transaction.delete(key)
                else:
                    transaction.upsert(orjson.loads(orjson.dumps({**write.document, "id": key})))
                transaction.commit()

    def split(self, address, partition_id):
        self.server.split(DATABASE, address.collection, self.native_id(address, partition_id))

    def native_id(self, address, partition_id):
        low = partition_id.split(":", 2)[2].partition("-")[0]
        (found,) = (
            each["id"] for each in self.server.partitions(DATABASE, address.collection) if each["low"] == low
        )
        return found

    def trim(self, address):
        self.server.trim(DATABASE, address.collection)

    def expire(self, address, key):
        container = self.database.get_container_client(address.collection)
        item = container.read_item(key, key)
        container.upsert_item({**item, "ttl": 1})
        self.server.advance(2)
        self.server.expire(DATABASE, address.collection)

    def poison(self, address, key):
        self.database.get_container_client(address.collection).upsert_item({"id": key, "poison": True})
        self.server.damage(DATABASE, address.collection, key)

    def recreate(self, address):
        self.database.delete_container(address.collection)
        self.create(address.collection, None, self.partitions)

    def now(self):
        return self.server.clock.now()

    def pass_time(self):
        self.server.advance(60)

    def troubled(self, script, act):
        """Return a client whose calls are hit by a fault. The fault ends when the client is closed."""
        faults = self.server.faults
        match script:
            case Throttle(retry_after, times):
                self._every_other(Fail(429, 3200, retry_after), times)
            case ServerFailure(None, partition_id):
                where = None if partition_id is None else self._id_of(partition_id)
                faults.add(Fail(503), READ, partition=where, times=None)
            case ServerFailure(times):
                self._every_other(Fail(503), times)
            case DropMidPage(times):
                self._every_other(Drop(mid_body=True), times)
            case Slow(seconds):
                faults.add(Late(seconds), READ, times=None)
            case Silent(from_the_start):
                faults.add(Late(FOR_EVER), None if from_the_start else READ, times=None)
            case SplitMidPage() | Trimmed():
                faults.add(Act(act), READ, after=1)
            case ExpireIterator() | ChildrenFirst() | LateChildren() | _:
                return super().troubled(script, act)
        return self.connect_until(faults.clear)

    def _every_other(self, action, times):
        for number in range(times):
            self.server.faults.add(action, READ, after=1 + number)

    def _id_of(self, partition_id):
        low = partition_id.split(":", 2)[2].partition("-")[0]
        for name in self.server._account.database(DATABASE).containers:
            for each in self.server.partitions(DATABASE, name):
                if each["low"] == low:
                    return each["id"]
        raise AssertionError(partition_id)


class LatestPlugin(CosmosPlugin):
    """The plugin of an account that is read in the mode of latest versions."""

    declared = LATEST


class LatestHarness(CosmosHarness):
    """A harness whose account has no continuous backup, so that only its latest versions can be read."""

    capabilities = LATEST
    plugin = LatestPlugin()
    can_merge = True
    can_merged_children = False  # the two ranges stay
    can_trim = False  # no position expires
    can_other_options = False  # the account offers no other mode

    def open(self):
        super().open()
        self.server.all_versions(False)

    def config(self):
        url = super().config().connection["url"]
        return ClientConfig("cosmos", {"url": f"{url}&mode=latest&delete_marker=/deleted"})

    def merge(self, address, a, b):
        self.server.merge(
            DATABASE, address.collection, self.native_id(address, a), self.native_id(address, b)
        )

    def poison(self, address, key):
        item = {"id": key, "deleted": "yes"}
        self.database.get_container_client(address.collection).upsert_item(item)
