"""A request and its answer, apart from what carries them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import orjson

from multiclouddb_cosmos_emulator.errors import bad_request

__all__ = ["Reply", "Request"]


@attrs.define
class Request:
    """A request.

    Attributes:
        method: As `GET`.
        path: As it came, percent-encoded.
        headers: In any case of letters.
        body: As it came.
        base: Where the client reached the server, as `http://localhost:8081`.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    base: str

    def json(self) -> Any:
        """The body."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            raise bad_request("The body is no JSON.") from None

    def flag(self, name: str) -> bool:
        """A header that says yes."""
        return self.headers.get(name, "").lower() == "true"


@attrs.define
class Reply:
    """An answer.

    Attributes:
        status: Of HTTP.
        body: Empty for none.
        headers: Beside those that every answer has.
        charge: In request units.
    """

    status: int
    body: bytes = b""
    headers: dict[str, str] = attrs.Factory(dict)
    charge: float = 1.0

    @classmethod
    def of(cls, document: Any, status: int = 200, charge: float = 1.0) -> Reply:
        """An answer with JSON."""
        reply = cls(status, orjson.dumps(document), charge=charge)
        if isinstance(document, dict) and "_etag" in document:
            reply.headers["etag"] = document["_etag"]
        return reply
