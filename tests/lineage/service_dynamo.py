"""DynamoDB on its scripted server as a service that the explorer reads."""

import boto3
from botocore.config import Config

from multiclouddb_api import ResourceAddress
from multiclouddb_conformance.explore.service import Service
from multiclouddb_conformance.explore.world import ListingKind
from multiclouddb_dynamo import DynamoClients
from multiclouddb_dynamo.provider import DynamoProvider
from multiclouddb_dynamo_emulator import Habits, ScriptedStreams

TABLE = "orders"
FIRST_SECONDS = 4 * 3600.0
DAY = 24 * 3600.0
FOR_EVER = 1 << 30


class DynamoService(Service):
    """One table."""

    kind = ListingKind.LATE
    roots = 1
    chains = False  # what a feed has not read of an ended shard may be gone after an hour
    trims_open = False  # a shard lives for some hours, and its records for a day
    empty_answers = 1
    address = ResourceAddress(collection=TABLE)

    def __init__(self):
        self._server = ScriptedStreams(habits=Habits())
        session = boto3.Session(
            aws_access_key_id="local", aws_secret_access_key="any", region_name="eu-west-1"
        )
        settings = {
            "endpoint_url": self._server.endpoint_url,
            "config": Config(retries={"total_max_attempts": 1}),
        }
        self._table = session.client("dynamodb", **settings)
        self._clients = DynamoClients(
            dynamodb=self._table, streams=session.client("dynamodbstreams", **settings)
        )
        self._empty = self._server.save()
        self._moments = {}

    def begin(self, partitions):
        self._server.restore(self._empty)
        self._moments = {}
        self._server.habits.initial_shards = partitions
        self._table.create_table(
            TableName=TABLE,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"},
        )
        return self._server.open_shards(TABLE)

    def save(self):
        return dict(self._moments), self._server.save()

    def restore(self, saved):
        moments, state = saved
        self._moments = dict(moments)
        self._server.restore(state)

    def provider(self):
        return DynamoProvider(self._clients, ours=False, vendor_retried=False)

    def reshape(self, parents, children):
        (shard,) = parents
        return [self._server.roll_over(shard)] if children == 1 else self._server.split(shard)

    def holder(self, key):
        return self._server.shard_of(TABLE, {"id": {"S": key}})

    def put(self, keys, moment):
        self._server.advance(FIRST_SECONDS / 2**moment)
        self._moments[moment] = self._server.clock.seconds()
        for key in keys:
            self._table.put_item(TableName=TABLE, Item={"id": {"S": key}, "n": {"N": str(moment)}})

    def forget(self, moment):
        then = self._moments[moment] + DAY + 1.0
        self._server.advance(max(0.0, then - self._server.clock.seconds()))

    def hide(self, name, *, hidden):
        self._server.hide(name, FOR_EVER if hidden else 0)

    def close(self):
        for client in (self._clients.dynamodb, self._clients.streams):
            client.close()
        self._server.stop()
