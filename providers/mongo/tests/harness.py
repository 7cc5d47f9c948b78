"""Gives the harness of `multiclouddb certify` replica sets that the tests of a worker share."""

from urllib.parse import quote

from multiclouddb_certify.mongo import OplogHarness

from .servers.mongod import PASSWORD, shared

# The oplog has 1 MB and is filled only by `trim`. The hashes of passwords can be checked quickly.
SMALL = {
    "oplog_mb": 1,
    "auth": True,
    # Positions move once a second, so nothing waits ten seconds for a moment to pass.
    "parameters": {
        "scramSHA256IterationCount": 5000,
        "ttlMonitorSleepSecs": 1,
        "periodicNoopIntervalSecs": 1,
    },
}


class SharedHarness(OplogHarness):
    """A harness for a replica set that lives longer than the databases of its tests."""

    secrets = (PASSWORD, quote(PASSWORD, safe=""))
    can_expire = True
    # The name of the replica set.
    servers_name = "us8 one"

    def open(self):
        self.servers = shared(self.servers_name, self.members, **SMALL)
        self.native, self.url = self.servers.client(), self.servers.uri(appName="us8")
        self.begin()

    def close(self):
        self.settle()
