"""A Cosmos DB that runs on your machine, for the unmodified azure-cosmos.

server      `CosmosEmulator`, all of it             http       what it listens with
service     from a request to its answer            query      the subset of SQL
account     databases, containers, offers           feed       the change feed
container   its items, its partitions               hashing    where a partition key lies
commands    what can be done to it                  control    the same over HTTP
faults      what goes wrong on demand               journal    what was asked of it

It imports nothing else of multiclouddb: what it had in common with a provider, both could get wrong alike.
"""

from multiclouddb_cosmos_emulator.auth import WELL_KNOWN_KEY
from multiclouddb_cosmos_emulator.faults import Act, Drop, Fail, Fault, Faults, Slow
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
    "Slow",
]
