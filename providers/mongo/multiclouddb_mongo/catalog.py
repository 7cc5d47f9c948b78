"""Finds the collection or database of an address, and checks the settings of the collection."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from attrs import frozen
from bson import Binary
from bson.binary import UUID_SUBTYPE
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from multiclouddb_api import (
    EntireCluster,
    EntireDatabase,
    ErrorCategory,
    ErrorReason,
    NewItemStateMode,
    OldItemStateMode,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_mongo.driver import place_to_ask, retried
from multiclouddb_mongo.options import MongoOptions
from multiclouddb_mongo.raw_change import alike_to
from multiclouddb_mongo.values import LENIENT_RAW
from multiclouddb_spi import FeedSpec, ProviderFault, unsupported

_IMAGES: Final = (
    "enable it: db.runCommand({{collMod: {name!r}, changeStreamPreAndPostImages: {{enabled: true}}}}), or "
    "read with INCLUDE_IF_AVAILABLE"
)

_SERVERS_OWN: Final = ("admin", "config", "local")
# The second prefix is that of the collections in which Queryable Encryption keeps its own data.
_SYSTEM: Final = "system."
_OWN_COLLECTIONS: Final = (_SYSTEM, "enxcol_.")
# A server up to MongoDB 8.2 looks for a name with a regular expression in which it does not escape braces.
# With the collection `a{2}` it finds the changes of `aa`. Later versions of the library PCRE also allow
# spaces, and no first number.
_PATTERN: Final = re.compile(r"\{ *(\d+ *(, *\d* *)?|, *\d+ *)\}", re.ASCII)
_OTHERWISE: Final = {
    "view": "name the collection that the view reads (viewOn)",
    "timeseries": "also write to an ordinary collection, and name that collection",
}


@frozen
class FoundResource:
    """The resource that exists at an address.

    Attributes:
        there: False if the resource does not exist.
        uuid: The collection's own id in hexadecimal form; None for a wider scope.
        images: True if the collection keeps pre- and post-images.
        kind: The kind of the resource: `collection`, `view` or `timeseries`.
        clustered: True if the collection stores its documents in the order of their `_id`, without an index.
        collated: True if the collection compares texts with a collation.
    """

    there: bool
    uuid: str | None = None
    images: bool = False
    kind: str = "collection"
    clustered: bool = False
    collated: bool = False


def resolve(spec: FeedSpec, default_database: str | None) -> ResourceAddress:
    """Return the address, with the connection string's database if the request names none."""
    address = spec.address
    if isinstance(spec.scope, EntireCluster) or address.database is not None:
        return address
    if default_database is None:
        raise invalid_request(
            "ChangeFeedRequest.address",
            "names no database, and the connection string has none",
            'name it: "database/collection" (no dot), ResourceAddress(database, collection), the option '
            "database in Spark, or a url with it: mongodb://HOST/DATABASE",
        )
    return ResourceAddress(default_database, address.collection)


def find(client: MongoClient[Any], address: ResourceAddress) -> FoundResource:
    """Look up a collection or database. The role `read` is sufficient."""
    if address.database is None:
        return FoundResource(there=True)
    if address.collection is None:
        found = _listed(client, address.database, nameOnly=True)
        _check_texts(address.database, found)
        return FoundResource(there=True) if found else _absent(client)
    alike = alike_to(address.collection)
    names = {"$in": [address.collection, alike]}
    listed = {each["name"]: each for each in _listed(client, address.database, filter={"name": names})}
    if alike in listed:
        raise unsupported(
            f"there is also a collection {alike!r}, and the server sends its changes as those of "
            f"{address.collection!r}, because its regular expression allows a line break at the end",
            "read with EntireDatabase(), and take the events with this address, or rename the other one",
            ErrorReason.NOT_OFFERED,
        )
    return _found(listed[address.collection]) if listed else _absent(client)


def _absent(client: MongoClient[Any]) -> FoundResource:
    """Return that a resource does not exist, if a server was asked that knows each one that exists."""
    if not any(server.is_writable for server in client.topology_description.server_descriptions().values()):
        raise ProviderFault.of(
            ErrorCategory.TRANSIENT_FAILURE,
            "the member that was asked does not have this collection or database, and it may lag; no primary "
            "can be asked, so try again later, and connect without directConnection",
            retryable=True,
            vendor_retried=True,
        )
    return FoundResource(there=False)


def collections_after(client: MongoClient[Any], database: str, uuid: str) -> dict[str, FoundResource]:
    """Return the collections that a feed of a database reads, by name; only those after a UUID.

    Args:
        client: The client.
        database: The name of the database.
        uuid: A UUID in hexadecimal form; empty for all collections.
    """
    wanted: dict[str, Any] = {"type": "collection"}
    if uuid:
        wanted["info.uuid"] = {"$gt": Binary(bytes.fromhex(uuid), UUID_SUBTYPE)}
    entries = _listed(client, database, filter=wanted)
    _check_texts(database, entries)
    listed = {str(entry["name"]): _found(entry) for entry in entries}
    return {name: found for name, found in listed.items() if not name.startswith(_SYSTEM)}


def _check_texts(database: str, entries: Sequence[RawBSONDocument]) -> None:
    """Refuse a name that is not UTF-8: the server leaves out its changes, and PyMongo cannot name it."""
    for entry in entries:
        name = str(entry["name"])
        if name.encode(errors="replace") not in bytes(entry.raw):
            raise unsupported(
                f"the database {database!r} has a collection whose name is not UTF-8, {name!r}, and the "
                "server sends no changes of it",
                "rename or drop that collection, or read each of the others with EntireCollection()",
                ErrorReason.NOT_OFFERED,
            )


def _found(entry: RawBSONDocument) -> FoundResource:
    options = entry.get("options", {})
    images = options.get("changeStreamPreAndPostImages", {}).get("enabled") is True
    uuid = entry.get("info", {}).get("uuid")
    text = None if uuid is None else uuid.hex if isinstance(uuid, UUID) else bytes(uuid).hex()
    return FoundResource(
        True,
        text,
        images,
        entry.get("type", "collection"),
        bool(options.get("clusteredIndex")),
        "collation" in options,
    )


def deployment_id(client: MongoClient[Any], *, sharded: bool) -> str | None:
    """Return the id of the replica set or the sharded cluster. The role `clusterMonitor` is sufficient."""
    if sharded:
        versions = client.get_database("config", codec_options=LENIENT_RAW)["version"]
        found = (versions.find_one({}, {"clusterId": 1}) or {}).get("clusterId")
    else:
        answer = client.admin.command(
            "replSetGetConfig", read_preference=place_to_ask(client), codec_options=LENIENT_RAW
        )
        found = answer.get("config", {}).get("settings", {}).get("replicaSetId")
    return None if found is None else str(found)


def name_of(client: MongoClient[Any], database: str, uuid: str) -> str | None:
    """Return the name that the collection with this UUID has now; None if it no longer exists."""
    wanted = {"info.uuid": Binary(bytes.fromhex(uuid), UUID_SUBTYPE)}
    return next((str(each["name"]) for each in _listed(client, database, filter=wanted)), None)


def _listed(client: MongoClient[Any], database: str, **settings: Any) -> list[RawBSONDocument]:
    # `Database.list_collections` would decode all values in the collections' options, such as those in a
    # validator, and the names of all collections.
    listing = client.get_database(database, codec_options=LENIENT_RAW)
    command = {"listCollections": 1, "cursor": {}, **settings}

    def listed() -> list[RawBSONDocument]:
        preference = place_to_ask(client)
        return list(listing.cursor_command(command, read_preference=preference, codec_options=LENIENT_RAW))

    return retried(client, listed)


def list_collections(client: MongoClient[Any], database: str | None) -> list[ResourceAddress]:
    """Return the ordinary collections of one database, or of all databases except the server's own."""
    names = [database] if database is not None else client.list_database_names()
    return [
        ResourceAddress(name, each)
        for name in names
        if name not in _SERVERS_OWN
        for entry in _listed(
            client, name, nameOnly=True, authorizedCollections=True, filter={"type": "collection"}
        )
        if not (each := str(entry["name"])).startswith(_OWN_COLLECTIONS)
    ]


def check_names(spec: FeedSpec, address: ResourceAddress) -> None:
    """Refuse names with which a server finds no changes, or those of another collection."""
    for name, wider in ((address.database, "EntireCluster()"), (address.collection, "EntireDatabase()")):
        if name is not None and not isinstance(spec.scope, EntireCluster) and _PATTERN.search(name):
            raise unsupported(
                f"the name {name!r} has a number in braces, which the server takes for a part of a regular "
                "expression, so that it may send the changes of another collection, or none",
                f"read with {wider}, and take the events with this address, or rename the collection",
                ErrorReason.NOT_OFFERED,
            )


def check_provisioned(spec: FeedSpec, address: ResourceAddress, found: FoundResource) -> None:
    """Refuse a request that this collection cannot serve."""
    options = spec.options
    assert isinstance(options, MongoOptions)
    if not found.there or isinstance(spec.scope, EntireDatabase | EntireCluster):
        return
    name = address.collection
    if found.kind != "collection":
        raise ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            f"{name!r} is a {found.kind}, which has no change stream; "
            f"{_OTHERWISE.get(found.kind, 'name an ordinary collection')}",
        )
    if found.images:
        return
    new = spec.new_item_state_mode is NewItemStateMode.REQUIRE and options.full_document is None
    if new or (
        spec.old_item_state_mode is OldItemStateMode.REQUIRE and options.full_document_before_change is None
    ):
        what = "new_item_state_mode=REQUIRE needs post" if new else "old_item_state_mode=REQUIRE needs pre"
        raise unsupported(
            f"{what}-images, which collection {name!r} does not keep", _IMAGES.format(name=name)
        )
