"""The conformance harness for DynamoDB. The harness works with any test server."""

import itertools
import time
from decimal import Decimal

from multiclouddb_api import ClientConfig, ResourceAddress
from multiclouddb_conformance.harness import Harness, Kind
from multiclouddb_dynamo.provider import CAPABILITIES, PLUGIN

from .servers.server import CREDENTIALS, REGION

VIEWS = {Kind.PLAIN: "NEW_IMAGE", Kind.KEYS_ONLY: "KEYS_ONLY", Kind.OLD_IMAGES: "NEW_AND_OLD_IMAGES"}
COUNTER = itertools.count()


def typed(value):
    """Return a Python value as an attribute value; boto3's own serializer refuses some valid values."""
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case int() | Decimal():
            return {"N": str(value)}
        case str():
            return {"S": value}
        case bytes():
            return {"B": value}
        case list():
            return {"L": [typed(each) for each in value]}
        case dict():
            return {"M": {name: typed(each) for name, each in value.items()}}
        case frozenset():
            return {"SS": sorted(value)}


class DynamoHarness(Harness):
    """A harness that writes with boto3. A subclass defines the server."""

    capabilities = CAPABILITIES
    plugin = PLUGIN
    can_merge = can_other_options = can_notices = False
    can_high_floor = False  # before the first read, no sequence number is known
    key_types = frozenset({"text", "unicode"})
    # DynamoDB's numbers have no scale and no infinity, its documents contain no floats, and names are not
    # empty.
    value_types = frozenset(
        {
            "null", "true", "false", "zero", "integer", "largest 64-bit integer", "integer over 64 bit",
            "empty text", "text", "long text", "bytes", "set", "dollar name",
        }
    )  # fmt: skip
    secrets = (CREDENTIALS["AWS_SECRET_ACCESS_KEY"],)
    server = None

    @property
    def dynamodb(self):
        return self.server.client()

    def config(self):
        return ClientConfig("dynamo", {"region": REGION, "endpoint_url": self.server.endpoint_url})

    def create(self, name, kind, partitions):
        """Create a table with a unique name, because the server continues to run after the test."""
        return self.make_table(f"{name}-{next(COUNTER)}", kind, partitions)

    def make_table(self, table, kind, partitions):
        self.server.create_table(table, VIEWS[kind], partition_key="id")
        return ResourceAddress(collection=table)

    def document(self, key, fields):
        return {"id": key, **fields}

    def write(self, address, writes):
        table = address.collection
        calls = [self._operation(table, write) for write in writes]
        if len(calls) == 1:
            ((name, asked),) = calls[0].items()
            getattr(self.dynamodb, f"{name.lower()}_item")(**asked)
        else:
            self.dynamodb.transact_write_items(TransactItems=calls)

    def _operation(self, table, write):
        key = {"id": typed(write.key)}
        if write.document is None:
            return {"Delete": {"TableName": table, "Key": key}}
        item = key | {name: typed(value) for name, value in write.document.items()}
        return {"Put": {"TableName": table, "Item": item}}

    def recreate(self, address):
        before = self.dynamodb.describe_table(TableName=address.collection)["Table"]["LatestStreamArn"]
        self.dynamodb.delete_table(TableName=address.collection)
        self.dynamodb.get_waiter("table_not_exists").wait(TableName=address.collection)
        while True:
            self.make_table(address.collection, Kind.PLAIN, self.partitions)
            after = self.dynamodb.describe_table(TableName=address.collection)["Table"]["LatestStreamArn"]
            # The label of a stream is a time, and the clock may show the same time as for the last stream.
            if after != before:
                return
            time.sleep(0.002)
            self.dynamodb.delete_table(TableName=address.collection)

    @staticmethod
    def native_id(partition_id):
        return partition_id.split(":", 2)[2]
