"""Finds the collection or database of an address, and checks the settings of the collection."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from pymongo import MongoClient

from multiclouddb_api import (
    EntireCluster,
    EntireDatabase,
    ErrorCategory,
    NewItemStateMode,
    OldItemStateMode,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_api.value import frozen
from multiclouddb_mongo.options import MongoOptions
from multiclouddb_mongo.values import CODEC
from multiclouddb_spi import FeedSpec, ProviderFault, unsupported

_IMAGES: Final = (
    "enable it: db.runCommand({{collMod: {name!r}, changeStreamPreAndPostImages: {{enabled: true}}}}), or "
    "read with INCLUDE_IF_AVAILABLE"
)

_SERVERS_OWN: Final = ("admin", "config", "local")
_OTHERWISE: Final = {
    "view": "name the collection that the view reads (viewOn)",
    "timeseries": "also write to an ordinary collection, and name that collection",
}


@frozen
class Found:
    """The resource that exists at an address.

    Attributes:
        there: False if the resource does not exist.
        uuid: The collection's own id in hexadecimal form; None for a wider scope.
        images: True if the collection keeps pre- and post-images.
        kind: The kind of the resource: `collection`, `view` or `timeseries`.
        clustered: True if the collection stores its documents in the order of their `_id`, without an index.
    """

    there: bool
    uuid: str | None = None
    images: bool = False
    kind: str = "collection"
    clustered: bool = False


def resolve(spec: FeedSpec, default_database: str | None) -> ResourceAddress:
    """Return the address, with the connection string's database if the request names none."""
    address = spec.address
    if isinstance(spec.scope, EntireCluster) or address.database is not None:
        return address
    if default_database is None:
        raise invalid_request(
            "ChangeFeedRequest.address",
            "names no database, and the connection string has none",
            "pass ResourceAddress(database, collection), or a url with the database: mongodb://HOST/DATABASE",
        )
    return ResourceAddress(default_database, address.collection)


def find(client: MongoClient[Any], spec: FeedSpec, address: ResourceAddress) -> Found:
    """Look up a collection or database. The role `read` is sufficient."""
    if isinstance(spec.scope, EntireCluster):
        return Found(there=True)
    assert address.database is not None
    database = client.get_database(address.database, codec_options=CODEC)
    if isinstance(spec.scope, EntireDatabase):
        return Found(there=bool(database.list_collection_names()))
    listed = list(database.list_collections(filter={"name": address.collection}))
    if not listed:
        return Found(there=False)
    (entry,) = listed
    options = entry.get("options", {})
    images = options.get("changeStreamPreAndPostImages", {}).get("enabled") is True
    uuid = entry.get("info", {}).get("uuid")
    text = None if uuid is None else uuid.hex if isinstance(uuid, UUID) else bytes(uuid).hex()
    return Found(True, text, images, entry.get("type", "collection"), bool(options.get("clusteredIndex")))


def list_collections(client: MongoClient[Any], database: str | None) -> list[ResourceAddress]:
    """Return the ordinary collections of one database, or of all databases except the server's own."""
    names = [database] if database is not None else client.list_database_names()
    return [
        ResourceAddress(name, each)
        for name in names
        if name not in _SERVERS_OWN
        for each in client[name].list_collection_names(
            filter={"type": "collection"}, authorizedCollections=True
        )
        if not each.startswith("system.")
    ]


def check_provisioned(spec: FeedSpec, address: ResourceAddress, found: Found) -> None:
    """Refuse a request that this collection cannot serve."""
    if not found.there or isinstance(spec.scope, EntireDatabase | EntireCluster):
        return
    name = address.collection
    if found.kind != "collection":
        raise ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            f"{name!r} is a {found.kind}, which has no change stream; "
            f"{_OTHERWISE.get(found.kind, 'name an ordinary collection')}",
        )
    options = spec.options
    assert isinstance(options, MongoOptions)
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
