"""Measures what a new process needs until it has a first page, compared with the vendor's SDK alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from benchmarks.new_process import cpu_of
from benchmarks.row import Bench, Done, Sides, row
from multiclouddb_api import ChangeFeedRequest, Now, connect

_EVENTS: Final = 100
_GOAL: Final = 1.25

# Texts and not modules, because a module of this package imports the API before the program can.
_OURS: Final = """
import json, os, sys
import multiclouddb as m
environment, provider, url, database, collection, token = json.loads(sys.argv[1])
os.environ.update(environment)
start = m.FromContinuationToken(token) if token else m.Beginning()
address = m.ResourceAddress(database, collection) if database else m.ResourceAddress(collection=collection)
with m.connect(m.ClientConfig(provider, {"url": url})) as client:
    page = client.read_changes(m.ChangeFeedRequest(address, start))
print(len(page.events))
"""
_MONGO: Final = """
import json, sys
from itertools import islice
from pymongo import MongoClient
url, database, collection, token, events = json.loads(sys.argv[1])
with MongoClient(url, tz_aware=True) as client:
    with client[database][collection].watch(start_after=token) as stream:
        print(sum(1 for _ in islice(stream, events)))
"""
_DYNAMO: Final = """
import json, os, sys
import boto3
environment, endpoint, table = json.loads(sys.argv[1])
os.environ.update(environment)
tables = boto3.client("dynamodb", endpoint_url=endpoint)
arn = tables.describe_table(TableName=table)["Table"]["LatestStreamArn"]
streams = boto3.client("dynamodbstreams", endpoint_url=endpoint)
(shard,) = streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
iterator = streams.get_shard_iterator(
    StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
)["ShardIterator"]
print(len(streams.get_records(ShardIterator=iterator)["Records"]))
"""
_COSMOS: Final = """
import json, sys
from azure.cosmos import CosmosClient
endpoint, key, database, collection, continuation = json.loads(sys.argv[1])
client = CosmosClient(endpoint, key, consistency_level="Eventual", enable_endpoint_discovery=False)
container = client.get_database_client(database).get_container_client(collection)
pages = container.query_items_change_feed(continuation=continuation).by_page()
print(len(list(next(pages))))
"""
_SPANNER: Final = """
import json, os, sys
from datetime import datetime
environment, project, instance, database, stream, start, end = json.loads(sys.argv[1])
os.environ.update(environment)
from google.auth.credentials import AnonymousCredentials
from google.cloud.spanner import Client
from google.cloud.spanner_v1 import param_types as kinds
client = Client(project=project, credentials=AnonymousCredentials())
sql = (
    f"SELECT ChangeRecord FROM READ_{stream}(start_timestamp => @s, end_timestamp => @e, "
    "partition_token => @t, heartbeat_milliseconds => 10000)"
)
types = {"s": kinds.TIMESTAMP, "e": kinds.TIMESTAMP, "t": kinds.STRING}
place = client.instance(instance).database(database)

def records(token):
    values = {"s": datetime.fromisoformat(start), "e": datetime.fromisoformat(end), "t": token}
    with place.snapshot() as snapshot:
        for row in snapshot.execute_sql(sql, params=values, param_types=types):
            yield from row[0]

first, *_ = [child[0] for record in records(None) for part in record[2] for child in part[2]]
print(sum(len(change[6]) for record in records(first) for change in record[0]))  # its mods
"""


def _row(
    provider: str, title: str, sdk: str, does: str
) -> Callable[[Callable[[Bench], Iterator[Sides]]], object]:
    return row(
        f"start-{provider}",
        title=f"Start, first page of {title}",
        unit="ms",
        goal=_GOAL,
        at_most=True,
        profiled=False,
        same_work=False,
        about=(
            f"The figure is the CPU time of a new process that connects to {title} and reads a first page of "
            f"{_EVENTS} events. The start of Python itself counts on both sides."
        ),
        against=f"A new process that does the same with {sdk} alone: {does}.",
        reason=(
            "Measured by hand with `-X importtime`: of the time that our side needs more for MongoDB, "
            "importing attrs takes a third, and importing our own 60 modules and making their classes most "
            "of the rest."
        ),
    )


def _sides(ours: list[Any], program: str, theirs: list[Any]) -> Sides:
    return Sides(lambda: _first_page(_OURS, ours), lambda: _first_page(program, theirs))


def _first_page(program: str, arguments: list[Any]) -> Done:
    cpu, said = cpu_of("-c", program, json.dumps(arguments))
    if not int(said):
        raise ValueError("the first page has no events")
    return Done(1, value=1000 * cpu, cpu=cpu)


@_row("mongo", "MongoDB", "PyMongo", "`watch` after the same position")
def start_mongo(bench: Bench) -> Iterator[Sides]:
    """Measure the start over a replica set of one node."""
    from benchmarks.mongo import ADDRESS, backlog

    with backlog(bench.folder, _EVENTS) as changes:
        place = [ADDRESS.database, ADDRESS.collection]
        theirs = [changes.url, *place, changes.resume_token, _EVENTS]
        yield _sides([{}, "mongo", changes.url, *place, changes.token], _MONGO, theirs)


@_row("dynamo", "DynamoDB Local", "boto3", "`describe_table`, `describe_stream`, and the first `get_records`")
def start_dynamo(bench: Bench) -> Iterator[Sides]:
    """Measure the start over a table whose stream has one shard."""
    from benchmarks.dynamo import ADDRESS, local

    with local(_EVENTS) as table:
        key = table.server.session().get_credentials()
        environment: Mapping[str, str] = {
            "AWS_ACCESS_KEY_ID": key.access_key,
            "AWS_SECRET_ACCESS_KEY": key.secret_key,
            "AWS_DEFAULT_REGION": table.server.session().region_name,
        }
        endpoint, name = table.server.endpoint_url, ADDRESS.collection
        url = f"dynamo://{table.server.session().region_name}?endpoint_url={endpoint}"
        yield _sides([environment, "dynamo", url, None, name, None], _DYNAMO, [environment, endpoint, name])


@_row("cosmos", "Cosmos DB", "azure-cosmos", "the first page of `query_items_change_feed`")
def start_cosmos(bench: Bench) -> Iterator[Sides]:
    """Measure the start over a container of one range in our emulator."""
    from benchmarks.cosmos_feed import ADDRESS, account, start_by_hand

    with account(1) as server:
        config = server.config()
        with connect(config) as client:
            token = client.read_changes(ChangeFeedRequest(ADDRESS, Now())).continuation_token
        continuation = start_by_hand(server.container())
        server.ask("fill", _EVENTS)
        place = [ADDRESS.database, ADDRESS.collection]
        theirs = [server.endpoint, server.key, *place, continuation]
        environment = {"AZURE_COSMOS_KEY": server.key}
        yield _sides([environment, "cosmos", config.connection["url"], *place, token], _COSMOS, theirs)


@_row(
    "spanner",
    "Spanner",
    "google-cloud-spanner",
    "the change stream query, and the one of the first partition",
)
def start_spanner(bench: Bench) -> Iterator[Sides]:
    """Measure the start over Google's emulator."""
    from benchmarks.spanner import STREAM, backlog

    with backlog(_EVENTS, _EVENTS) as changes:
        project, _, rest = changes.url.removeprefix("spanner://").partition("/")
        instance, _, host = rest.partition("?emulator_host=")
        times = [changes.start.isoformat(), changes.now().isoformat()]
        environment = {"SPANNER_EMULATOR_HOST": host}
        theirs = [environment, project, instance, changes.address.database, STREAM, *times]
        place = [changes.address.database, changes.address.collection]
        yield _sides([{}, "spanner", changes.url, *place, changes.token], _SPANNER, theirs)
