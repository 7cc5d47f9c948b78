"""Starts the services that the README's blocks name, on this machine, with the data that the blocks
expect.
"""

from contextlib import contextmanager

from azure.cosmos import CosmosClient, PartitionKey

from multiclouddb_cosmos_emulator import CosmosEmulator
from multiclouddb_dynamo_emulator import ScriptedStreams
from multiclouddb_spanner_emulator import ScriptedSpanner, Write

from .page import servers


class Service:
    """A running service.

    Attributes:
        environment: The environment variables with which a client finds the service.
        names: The texts of the page that name the service, with their replacements on this machine.
        put: A function that writes one document, given its id.
    """

    def __init__(self, put, environment=None, names=None):
        self.put, self.environment, self.names = put, environment or {}, names or {}


@contextmanager
def dynamo(folder):
    """Start a service with the table `orders` and its stream."""
    del folder
    server = servers("dynamo")("server")
    with ScriptedStreams() as script, server.Server(script.endpoint_url) as made:
        made.create_table("orders")
        yield Service(
            lambda key: made.client().put_item(TableName="orders", Item={"pk": {"S": key}}),
            {**server.CREDENTIALS, "AWS_ENDPOINT_URL": script.endpoint_url},
        )


@contextmanager
def mongodb(folder):
    """Start a replica set with the collection `shop.orders`."""
    mongod = servers("mongo")("mongod")
    with mongod.ReplicaSet(folder / "mongod") as made:
        made.client()["shop"].create_collection("orders")
        yield Service(
            lambda key: made.client()["shop"]["orders"].insert_one({"_id": key}),
            names={"localhost:27017": made.members[0], "replicaSet=rs0": f"replicaSet={mongod.NAME}"},
        )


@contextmanager
def spanner(folder):
    """Start a service with the table `orders` of the database `shop`, and its change stream."""
    del folder
    database = "projects/my-project/instances/main/databases/shop"
    with ScriptedSpanner() as made:
        made.create(
            database,
            "CREATE TABLE orders (id STRING(MAX) NOT NULL) PRIMARY KEY (id)",
            "CREATE CHANGE STREAM orders_stream FOR orders OPTIONS (value_capture_type = 'NEW_ROW')",
        )
        yield Service(
            lambda key: made.commit(database, Write("insert", "orders", ("id",), [[key]])),
            {"SPANNER_EMULATOR_HOST": made.host},
        )


@contextmanager
def cosmos(folder):
    """Start an account with the container `orders` of the database `shop`."""
    del folder
    account = "cosmos://my-account.documents.azure.com"
    with CosmosEmulator() as server:
        client = CosmosClient(server.endpoint, server.key, enable_endpoint_discovery=False)
        with client as native:
            container = native.create_database("shop").create_container("orders", PartitionKey("/customer"))
            host = server.endpoint.split("/")[2]
            yield Service(
                lambda key: container.upsert_item({"id": key, "customer": "Ada"}),
                {"AZURE_COSMOS_KEY": server.key},
                {account: f"cosmos://{host}?tls=false"},
            )


SERVICES = {"cosmos://": cosmos, "dynamo://": dynamo, "mongodb://": mongodb, "spanner://": spanner}
