"""A Cosmos DB that runs on your machine, for the unmodified azure-cosmos.

server      `CosmosEmulator`, all of it         commands    what can be done to it, control serves it over HTTP
http        what it listens with                service     from a request to its answer
account     databases, offers, containers       query       the subset of SQL
container, partition    items and change logs   feed        the change feed
faults      what goes wrong on demand           journal     what was asked of it

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
