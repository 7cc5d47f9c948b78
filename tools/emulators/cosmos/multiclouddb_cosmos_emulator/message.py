"""Represents a request and its answer, independently of HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import orjson

from multiclouddb_cosmos_emulator.errors import bad_request

__all__ = ["Reply", "Request"]


@attrs.define
class Request:
    """A request of a client.

    Attributes:
        method: For example `GET`.
        path: The path, percent-encoded as it was received.
        headers: The headers, whose names may be in upper or lower case.
        body: The bytes of the body, as they were received.
        base: The URL of the server, as the client wrote it, such as `http://localhost:8081`.
        lag: The number of transactions that the replica which answers lacks in each partition.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    base: str
    lag: int = 0

    def json(self) -> Any:
        """Return the body as JSON."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            raise bad_request("The body is not JSON.") from None

    def flag(self, name: str) -> bool:
        """Return True if a header has the value `true`."""
        return self.headers.get(name, "").lower() == "true"


@attrs.define
class Reply:
    """An answer to a request.

    Attributes:
        status: The HTTP status.
        body: The body; empty if there is none.
        headers: Headers in addition to the headers of every answer.
        charge: The cost of the request in request units.
    """

    status: int
    body: bytes = b""
    headers: dict[str, str] = attrs.Factory(dict)
    charge: float = 1.0

    @classmethod
    def of(cls, document: Any, status: int = 200, charge: float = 1.0) -> Reply:
        """Return an answer with a JSON body."""
        reply = cls(status, orjson.dumps(document), charge=charge)
        if isinstance(document, dict) and "_etag" in document:
            reply.headers["etag"] = document["_etag"]
        return reply
