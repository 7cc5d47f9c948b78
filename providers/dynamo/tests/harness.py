"""Gives the harness of `multiclouddb certify` the servers of these tests."""

from multiclouddb_certify.dynamo import DynamoHarness, LocalDynamoHarness

from .servers.local import shared
from .servers.server import CREDENTIALS, REGION


def url_of(server):
    return f"dynamo://{REGION}?endpoint_url={server.endpoint_url}"


class ServerHarness(DynamoHarness):
    """A harness for a server that lives longer than its tables, and that has made its client."""

    secrets = (CREDENTIALS["AWS_SECRET_ACCESS_KEY"],)

    def open(self):
        self.url, self.native, self.tables = url_of(self.server), self.server.client(), []

    def close(self):
        """Leave the tables: they end with the server."""

    @staticmethod
    def native_id(partition_id):
        return partition_id.split(":", 2)[2]


class LocalHarness(ServerHarness, LocalDynamoHarness):
    """A harness with one server for all tests of a worker."""

    def open(self):
        self.server = shared()
        super().open()
