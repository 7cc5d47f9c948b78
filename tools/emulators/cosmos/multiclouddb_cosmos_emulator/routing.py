"""Determines the operation of a request."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

import attrs

from multiclouddb_cosmos_emulator.errors import ServiceError, bad_request, not_found, not_offered
from multiclouddb_cosmos_emulator.message import Request

__all__ = ["CONTROL", "OPERATIONS", "Route", "segments_of"]

_ESCAPED: Final = re.compile("%[0-9A-Fa-f]{2}")
CONTROL: Final = "_emulator"
"""The prefix of the control API's paths."""

_SIMPLE: Final = {
    ("GET", ""): "ReadAccount",
    ("GET", "dbs"): "ListDatabases",
    ("POST", "dbs"): "CreateDatabase",
    ("GET", "dbs/*"): "ReadDatabase",
    ("DELETE", "dbs/*"): "DeleteDatabase",
    ("GET", "dbs/*/colls"): "ListContainers",
    ("POST", "dbs/*/colls"): "CreateContainer",
    ("GET", "dbs/*/colls/*"): "ReadContainer",
    ("PUT", "dbs/*/colls/*"): "ReplaceContainer",
    ("DELETE", "dbs/*/colls/*"): "DeleteContainer",
    ("GET", "dbs/*/colls/*/pkranges"): "ListPartitions",
    ("GET", "dbs/*/colls/*/docs"): "ListItems",
    ("POST", "dbs/*/colls/*/docs"): "CreateItem",
    ("GET", "dbs/*/colls/*/docs/*"): "ReadItem",
    ("PUT", "dbs/*/colls/*/docs/*"): "ReplaceItem",
    ("PATCH", "dbs/*/colls/*/docs/*"): "PatchItem",
    ("DELETE", "dbs/*/colls/*/docs/*"): "DeleteItem",
    ("POST", "dbs/*/colls/*/operations/partitionkeydelete"): "DeletePartitionKey",
    ("GET", "offers"): "ListOffers",
    ("GET", "offers/*"): "ReadOffer",
    ("PUT", "offers/*"): "ReplaceOffer",
    ("POST", "offers"): "QueryOffers",
}
_QUERIES: Final = {
    "CreateDatabase": "QueryDatabases",
    "CreateContainer": "QueryContainers",
    "CreateItem": "QueryItems",
}
OPERATIONS: Final = frozenset(
    {*_SIMPLE.values(), *_QUERIES.values(), "UpsertItem", "Batch", "ReadQueryPlan", "ReadChangeFeed"}
)
"""The names of all operations."""

_NOT_OFFERED: Final = {
    "users": "users",
    "permissions": "permissions",
    "sprocs": "stored procedures",
    "triggers": "triggers",
    "udfs": "user-defined functions",
    "conflicts": "the conflict feed",
    "attachments": "attachments",
    "schemas": "schemas",
    "clientencryptionkeys": "client encryption keys",
}


def segments_of(path: str) -> list[str]:
    """Return the decoded parts of a path."""
    return [unquote(part) for part in path.partition("?")[0].split("/") if part]


@attrs.frozen
class Route:
    """The operation of a request, and the resource that it concerns.

    Attributes:
        operation: The operation, for example `ReadItem`.
        segments: The parts of the request's path.
    """

    operation: str
    segments: list[str]

    @classmethod
    def of(cls, request: Request, segments: list[str]) -> Route:
        """Return the route of a request.

        If the service offers the operation but this server does not, a 501 error is raised.
        """
        shape = "/".join(part if place % 2 == 0 else "*" for place, part in enumerate(segments))
        if segments[4:5] == ["docs"] and len(segments) > 5:
            _check_item_id("/".join(segments[5:]))
        if segments[-2:] == ["operations", "partitionkeydelete"]:
            shape = "dbs/*/colls/*/operations/partitionkeydelete"
        simple = _SIMPLE.get((request.method, shape))
        if simple is None:
            raise _unknown(request, segments)
        _refuse_triggers(request)
        return cls(_refined(simple, request), segments)

    @property
    def database(self) -> str:
        """Return the name of the database."""
        return self.segments[1]

    @property
    def container(self) -> str | None:
        """Return the name of the container.

        Return None if the path contains no container.
        """
        return self.segments[3] if len(self.segments) > 3 and self.segments[0] == "dbs" else None

    @property
    def last(self) -> str:
        """Return the last part of the path, which is the id of an item or an offer."""
        return self.segments[-1]


def _check_item_id(item_id: str) -> None:
    """Refuse an id in a path as a gateway does, although there may be an item with this id.

    CosmosItemIdEncodingTestsBase.cs in azure-cosmos-dotnet-v3 lists the answers.
    """
    if any(sign in item_id for sign in "/\\"):
        raise not_found("The value specified for query '$resolveFor' is invalid.")
    if any(sign in item_id for sign in "\r\n\t"):
        raise bad_request("Bad Request - Invalid URL")
    if "#" in item_id or item_id.endswith(" ") or _ESCAPED.search(item_id):
        raise ServiceError(
            401,
            "The input authorization token can't serve the request. The wrong key is being used or the "
            "expected payload is not built as per the protocol.",
        )


def _refuse_triggers(request: Request) -> None:
    for name in ("x-ms-documentdb-pre-trigger-include", "x-ms-documentdb-post-trigger-include"):
        if name in request.headers:
            raise not_offered("triggers")


def _refined(operation: str, request: Request) -> str:
    """Return the exact operation. A POST request creates an item, runs a query or sends a batch.

    A GET request for documents lists the documents or reads the change feed.
    """
    if operation in _QUERIES:
        content = request.headers.get("content-type", "")
        if operation == "CreateItem" and request.flag("x-ms-cosmos-is-query-plan-request"):
            return "ReadQueryPlan"
        if request.flag("x-ms-documentdb-isquery") or content.startswith("application/query+json"):
            return _QUERIES[operation]
    if operation == "CreateItem":
        if request.flag("x-ms-cosmos-is-batch-request"):
            return "Batch"
        if request.flag("x-ms-documentdb-is-upsert"):
            return "UpsertItem"
    if operation == "ListItems" and "a-im" in request.headers:
        return "ReadChangeFeed"
    return operation


def _unknown(request: Request, segments: list[str]) -> ServiceError:
    for part in segments[::2]:
        if part in _NOT_OFFERED:
            return not_offered(_NOT_OFFERED[part])
    if any(method for method, _ in _SIMPLE if method == request.method):
        return not_offered(f"{request.method} /{'/'.join(segments[::2])}")
    return ServiceError(405, f"The method {request.method} is not allowed.")
