"""A Cosmos DB emulator for your own machine; the unmodified azure-cosmos works with it.

The modules of the emulator:

server      `CosmosEmulator`, the whole emulator     http       its HTTP server
service     answers a request                       query      the subset of SQL
account     databases, containers, offers           feed       the change feed
container   its items and partitions               hashing    from a partition key to its hash
commands    the commands of a test                  control    the same over HTTP
faults      failures on demand                      journal    the received requests

The emulator imports no code from other packages of multiclouddb. If the emulator and a provider
shared code, both could have the same error, and the tests would not find this error.
"""

from multiclouddb_cosmos_emulator.auth import WELL_KNOWN_KEY
from multiclouddb_cosmos_emulator.faults import Act, Drop, Fail, Fault, Faults, Lag, Slow
from multiclouddb_cosmos_emulator.journal import Entry, Journal
from multiclouddb_cosmos_emulator.server import CosmosEmulator

__all__ = [
    "WELL_KNOWN_KEY",
    "Act",
    "CosmosEmulator",
    "Drop",
    "Entry",
    "Fail",
    "Fault",
    "Faults",
    "Journal",
    "Lag",
    "Slow",
]
