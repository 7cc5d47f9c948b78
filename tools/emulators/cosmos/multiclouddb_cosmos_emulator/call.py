"""Represents a request in progress, and makes the common parts of all answers about items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from multiclouddb_cosmos_emulator.account import Account
from multiclouddb_cosmos_emulator.container import Container
from multiclouddb_cosmos_emulator.errors import bad_request
from multiclouddb_cosmos_emulator.message import Reply, Request
from multiclouddb_cosmos_emulator.partition import Item, Partition
from multiclouddb_cosmos_emulator.routing import Route
from multiclouddb_cosmos_emulator.session import session_token
from multiclouddb_cosmos_emulator.writes import Condition

__all__ = ["Call", "charge"]


@attrs.frozen
class Call:
    """A request in progress.

    Attributes:
        account: The state of the emulator.
        request: The request, as it was received.
        route: The operation and the resource of the request.
    """

    account: Account
    request: Request
    route: Route

    @property
    def condition(self) -> Condition:
        """Return the condition in `If-Match` and `If-None-Match`."""
        headers = self.request.headers
        return Condition(headers.get("if-match"), headers.get("if-none-match"))

    def container(self) -> Container:
        """Return the container that the path names.

        If the request names the resource id of a different container, raise a 400 error.
        """
        name = self.route.container
        assert name is not None
        container = self.account.container(self.route.database, name)
        intended = self.request.headers.get("x-ms-cosmos-intended-collection-rid")
        if intended not in (None, container.rid):
            raise bad_request(
                f"Collection rid {intended} in the request is not {container.rid}, the id of the container.",
                1024,
            )
        return container

    def seen(self, reply: Reply, container: Container, partitions: Sequence[Partition]) -> Reply:
        """Add headers to an answer, such as a session token with the LSN of each partition."""
        reply.headers["x-ms-session-token"] = session_token(partitions, self.request.lag)
        database = self.account.database(self.route.database).document["id"]
        reply.headers["x-ms-alt-content-path"] = f"dbs/{database}/colls/{container.properties['id']}"
        reply.headers["x-ms-content-path"] = container.rid
        if len(partitions) == 1:
            reply.headers["x-ms-documentdb-partitionkeyrangeid"] = partitions[0].range_id
            reply.headers["lsn"] = str(partitions[0].lsn_of_replica(self.request.lag))
        return reply

    def item(self, item: Item, status: int, container: Container, partition: Partition) -> Reply:
        """Return an answer with an item, or without a body if the client requested minimal content."""
        quiet = status != 200 or self.route.operation != "ReadItem"
        hidden = quiet and self.request.headers.get("prefer") == "return=minimal"
        writes = self.route.operation != "ReadItem"
        headers = {"etag": item.etag}
        if item.change is not None:
            headers["x-ms-item-lsn"] = str(item.change.lsn)
        reply = Reply(
            status,
            b"" if hidden else item.body,
            headers,
            charge(len(item.body), 5.29 if writes else 1),
        )
        return self.seen(reply, container, [partition])

    def feed(self, name: str, documents: list[Any], rid: str = "") -> Reply:
        """Return an answer with a list of resources."""
        reply = Reply.of({"_rid": rid, name: documents, "_count": len(documents)})
        reply.headers["x-ms-item-count"] = str(len(documents))
        return reply


def charge(size: int, units: float) -> float:
    """Return the cost of reading or writing this many bytes, in request units."""
    return round(units * max(1, -(-size // 1024)), 2)
