"""Cosmos DB on its emulator as a service that the explorer reads."""

from azure.cosmos import CosmosClient, PartitionKey

from multiclouddb_api import Now, ResourceAddress
from multiclouddb_conformance.explore.service import Service
from multiclouddb_conformance.explore.world import ListingKind
from multiclouddb_cosmos.client import Calls
from multiclouddb_cosmos.options import CosmosOptions
from multiclouddb_cosmos.position import range_of
from multiclouddb_cosmos.provider import CosmosProvider
from multiclouddb_cosmos_emulator import CosmosEmulator

DATABASE, NAME = "shop", "orders"


class CosmosService(Service):
    """One container; a range of keys is a partition, and it only splits."""

    kind = ListingKind.LATE
    address = ResourceAddress(DATABASE, NAME)
    position = Now()
    rolls = chains = False
    copies = True

    def __init__(self):
        self._server = CosmosEmulator()
        # A client with sessions refuses a server that goes back.
        self._native = CosmosClient(
            self._server.endpoint,
            self._server.key,
            enable_endpoint_discovery=False,
            consistency_level="Eventual",
        )
        self._empty = self._server.save()
        self._moment = 0

    def begin(self, partitions):
        self._server.restore(self._empty)
        self._moment = 0
        database = self._native.create_database(DATABASE)
        self._container = database.create_container(
            NAME, PartitionKey(path="/pk"), offer_throughput=6000 * partitions
        )
        return list(self._open())

    def _open(self):
        """Map the name of each range to the partition of the service."""
        return {f"{each['low']}-{each['high']}": each for each in self._server.partitions(DATABASE, NAME)}

    def save(self):
        return self._moment, self._server.save()

    def restore(self, saved):
        self._moment, state = saved
        self._server.restore(state)

    def provider(self):
        return CosmosProvider(Calls(None, self._native), CosmosOptions(), vendor_retried=False)

    def reshape(self, parents, children):
        before = self._open()
        self._server.split(DATABASE, NAME, before[parents[0]]["id"])
        return [name for name in self._open() if name not in before]

    def holder(self, key):
        place = self._server.effective_key(key)
        return next(name for name in self._open() if range_of(name).low <= place < range_of(name).high)

    def put(self, keys, moment):
        self._moment = moment
        for key in keys:
            self._container.create_item({"id": key, "pk": key, "n": moment})

    def forget(self, moment):
        for each in self._server._container(DATABASE, NAME).partitions:
            each.trim_to(each.lsn - (self._moment - moment))  # one change for each moment

    def close(self):
        self._native.close()
        self._server.stop()
