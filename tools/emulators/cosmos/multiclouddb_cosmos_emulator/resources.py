"""Answers requests about the account, databases, containers, partitions and offers."""

from __future__ import annotations

from typing import Any, Final

from multiclouddb_cosmos_emulator.call import Call
from multiclouddb_cosmos_emulator.errors import bad_request, precondition_failed
from multiclouddb_cosmos_emulator.message import Reply, Request
from multiclouddb_cosmos_emulator.offers import Throughput
from multiclouddb_cosmos_emulator.partition import Partition
from multiclouddb_cosmos_emulator.query import run_over

__all__ = ["RESOURCE_CALLS"]

_REGION: Final = "Emulator"


def _read_account(call: Call) -> Reply:
    base = call.request.base + "/"
    location = [{"name": _REGION, "databaseAccountEndpoint": base}]
    return Reply.of(
        {
            "_self": "",
            "id": "emulator",
            "_rid": "emulator",
            "_dbs": "//dbs/",
            "media": "//media/",
            "addresses": "//addresses/",
            "writableLocations": location,
            "readableLocations": location,
            "enableMultipleWriteLocations": False,
            "userReplicationPolicy": {
                "asyncReplication": False,
                "minReplicaSetSize": 1,
                "maxReplicasetSize": 4,
            },
            "userConsistencyPolicy": {"defaultConsistencyLevel": call.account.consistency},
            "systemReplicationPolicy": {"minReplicaSetSize": 1, "maxReplicasetSize": 4},
            "readPolicy": {"primaryReadCoefficient": 1, "secondaryReadCoefficient": 1},
            "queryEngineConfiguration": "{}",
        },
        charge=0.0,
    )


# -- Databases


def _throughput(request: Request) -> Throughput | None:
    headers = request.headers
    return Throughput.of_headers(
        headers.get("x-ms-offer-throughput"), headers.get("x-ms-cosmos-offer-autopilot-settings")
    )


def _create_database(call: Call) -> Reply:
    database = call.account.create_database(call.request.json(), _throughput(call.request))
    return Reply.of(database.document, 201)


def _read_database(call: Call) -> Reply:
    return Reply.of(call.account.database(call.route.database).document)


def _delete_database(call: Call) -> Reply:
    call.account.delete_database(call.route.database)
    return Reply(204)


def _list_databases(call: Call) -> Reply:
    return call.feed("Databases", [each.document for each in call.account.databases.values()])


def _query_databases(call: Call) -> Reply:
    documents = [each.document for each in call.account.databases.values()]
    return call.feed("Databases", run_over(call.request.json(), documents))


# -- Containers


def _create_container(call: Call) -> Reply:
    container = call.account.create_container(
        call.route.database, call.request.json(), _throughput(call.request)
    )
    return Reply.of(container.properties, 201)


def _read_container(call: Call) -> Reply:
    container = call.container()
    reply = call.seen(Reply.of(container.properties), container, container.partitions)
    if call.request.flag("x-ms-documentdb-populatequotainfo"):
        sizes = [len(item.head) + 1 for item in container.items()]
        reply.headers["x-ms-resource-quota"] = (
            "documentsSize=10485760;documentsCount=-1;collectionSize=10485760;"
        )
        reply.headers["x-ms-documentdb-collection-index-transformation-progress"] = "100"
        reply.headers["x-ms-resource-usage"] = (
            f"documentsSize={sum(sizes) // 1024};documentsCount={len(sizes)};"
            f"collectionSize={sum(sizes) // 1024};"
        )
    return reply


def _replace_container(call: Call) -> Reply:
    container, wanted = call.container(), call.request.json()
    match = call.condition.match
    if match not in (None, "*", container.properties["_etag"]):
        raise precondition_failed()
    if not isinstance(wanted, dict) or wanted.get("id") != container.properties["id"]:
        raise bad_request("The id of a container cannot be changed.")
    key = wanted.get("partitionKey", container.properties["partitionKey"])
    if {"version": 1, **key} != {"version": 1, **container.properties["partitionKey"]}:
        raise bad_request("Document collection partition key cannot be changed.")
    container.describe(wanted)
    return Reply.of(container.properties)


def _delete_container(call: Call) -> Reply:
    name = call.container().properties["id"]
    call.account.delete_container(call.route.database, name)
    return Reply(204)


def _containers(call: Call) -> list[dict[str, Any]]:
    return [each.properties for each in call.account.database(call.route.database).containers.values()]


def _list_containers(call: Call) -> Reply:
    rid = call.account.database(call.route.database).rid
    return call.feed("DocumentCollections", _containers(call), rid)


def _query_containers(call: Call) -> Reply:
    rid = call.account.database(call.route.database).rid
    return call.feed("DocumentCollections", run_over(call.request.json(), _containers(call)), rid)


# -- Partitions


def _range(partition: Partition, ts: int) -> dict[str, Any]:
    return {
        "_rid": partition.range_id,
        "id": partition.range_id,
        "_etag": f'"{partition.range_id}"',
        "minInclusive": partition.low,
        "maxExclusive": partition.high,
        "ridPrefix": int(partition.range_id),
        "_self": f"pkranges/{partition.range_id}/",
        "throughputFraction": 1,
        "status": "online",
        "parents": list(partition.parents),
        "_ts": ts,
        "_lsn": partition.lsn,
    }


def _list_partitions(call: Call) -> Reply:
    container = call.container()
    etag = container.version
    if call.request.headers.get("if-none-match") == etag:
        return Reply(304, headers={"etag": etag})
    ts = int(container.clock.seconds())
    ranges = [_range(partition, ts) for partition in container.partitions]
    reply = call.feed("PartitionKeyRanges", ranges, container.rid)
    reply.headers["etag"] = etag
    reply.headers["x-ms-content-path"] = container.rid
    return reply


# -- Offers


def _offers(call: Call) -> list[dict[str, Any]]:
    ts = int(call.account.clock.seconds())
    return [offer.document(ts) for offer in call.account.offers.values()]


def _list_offers(call: Call) -> Reply:
    return call.feed("Offers", _offers(call))


def _query_offers(call: Call) -> Reply:
    return call.feed("Offers", run_over(call.request.json(), _offers(call)))


def _read_offer(call: Call) -> Reply:
    ts = int(call.account.clock.seconds())
    reply = Reply.of(call.account.offer(call.route.last).document(ts))
    reply.headers["x-ms-offer-replace-pending"] = "False"
    return reply


def _replace_offer(call: Call) -> Reply:
    offer, wanted = call.account.offer(call.route.last), call.request.json()
    if call.condition.match not in (None, "*", offer.etag):
        raise precondition_failed()
    if not isinstance(wanted, dict) or not isinstance(wanted.get("content"), dict):
        raise bad_request("The offer has no content.")
    throughput = Throughput.of_content(wanted["content"])
    if (throughput.autoscale is None) != (offer.throughput.autoscale is None):
        raise bad_request("Changing between a fixed throughput and autoscale needs the management API.")
    call.account.set_throughput(offer, throughput)
    return _read_offer(call)


RESOURCE_CALLS: Final = {
    "ReadAccount": _read_account,
    "CreateDatabase": _create_database,
    "ReadDatabase": _read_database,
    "DeleteDatabase": _delete_database,
    "ListDatabases": _list_databases,
    "QueryDatabases": _query_databases,
    "CreateContainer": _create_container,
    "ReadContainer": _read_container,
    "ReplaceContainer": _replace_container,
    "DeleteContainer": _delete_container,
    "ListContainers": _list_containers,
    "QueryContainers": _query_containers,
    "ListPartitions": _list_partitions,
    "ListOffers": _list_offers,
    "QueryOffers": _query_offers,
    "ReadOffer": _read_offer,
    "ReplaceOffer": _replace_offer,
}
"""Maps each operation to the function that answers it."""
