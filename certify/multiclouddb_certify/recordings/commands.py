"""Reads and sends commands of MongoDB as extended JSON."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, Final

import bson
from bson import json_util
from pymongo.uri_parser import parse_uri

from multiclouddb_certify.recordings.rules import WORDS, Portion, Rules, Store
from multiclouddb_certify.wire import Call, WireResponse

__all__ = ["RULES", "MongoCodec"]

_PORTION: Final = Portion(("reply", "cursor", "nextBatch"), ("getMore",), ("reply", "cursor", "id"))
RULES: Final = Rules(
    {
        "cursor.id": "cursor",
        "getMore": "cursor",
        "cursors": "cursor",
        "cursorsKilled": "cursor",
        "cursorsNotFound": "cursor",
        "lsid.id": "session",
        "_data": "token",
        "startAtOperationTime": "time",
        "operationTime": "time",
        "clusterTime": "time",
        "atClusterTime": "time",
        "afterClusterTime": "time",
        "ts": "time",
        "wallTime": "date",
        "collectionUUID": "collection id",
        "info.uuid": "collection id",
        "errmsg": WORDS,
    },
    dropped=frozenset(
        {"$clusterTime", "electionId", "recoveryToken", "command.client", "opTime", "signature"}
    ),
    same=frozenset({"collection id"}),
    portions={
        "getMore": _PORTION,
        "aggregate": Portion(("reply", "cursor", "firstBatch"), (), ("reply", "cursor", "id")),
    },
)
"""What differs in every run, on every server."""
# They ask about the server itself, or end what nobody compares.
_LEFT_OUT: Final = frozenset(
    {
        "hello", "ping", "buildinfo", "collstats", "connectionstatus", "endsessions", "serverstatus",
        "listdatabases", "getparameter", "saslstart", "saslcontinue",
    }
)  # fmt: skip
_MESSAGE: Final = 2013
_HEAD: Final = struct.Struct("<iiii")
_SECONDS: Final = 30.0


class MongoCodec:
    """Reads the commands of PyMongo.

    Args:
        url: The URL of the server.
    """

    rules = RULES

    def __init__(self, url: str) -> None:
        self._parsed = parse_uri(url, validate=False) if "+srv" not in url else {"nodelist": []}

    def secrets(self) -> Mapping[str, str]:
        """Return the user, the password, the hosts and the name of the set."""
        found = {f"{host}:{port}": "host" for host, port in self._parsed["nodelist"]}
        for name in ("username", "password"):
            if self._parsed.get(name):
                found[str(self._parsed[name])] = name
        return found

    def read(self, call: Call, answer: WireResponse, store: Store) -> None:
        """Read a command."""
        command = dict(call.body)
        if (
            call.operation.lower() in _LEFT_OUT
            or not command
            or "$currentOp" in str(command.get("pipeline", ""))[:20]
        ):
            return
        request = _as_json(command)
        try:
            _document(request)
        except (TypeError, ValueError):
            store(lambda: {"cut": "a document that extended JSON cannot hold"})
        else:
            # The application may change the document that it gets.
            got = _answer(answer.native)
            store(lambda: {"operation": call.operation, "request": request, "answer": got})

    def sender(self) -> MongoSender:
        """Connect to the first server."""
        host, port = self._parsed["nodelist"][0]
        return MongoSender(host, int(port))

    def following(
        self, operation: str, request: Mapping[str, Any], answer: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]] | None:
        """Return the command for the next batch."""
        cursor = answer["reply"]["cursor"]
        if cursor["id"] == {"$numberLong": "0"}:
            return None
        collection = request["collection"] if operation == "getMore" else request["aggregate"]
        more = {"getMore": cursor["id"], "collection": collection, "$db": request["$db"]}
        return "getMore", {**more, "maxTimeMS": {"$numberInt": "1000"}}


def _as_json(document: Any) -> dict[str, Any]:
    text = json_util.dumps(document, json_options=json_util.CANONICAL_JSON_OPTIONS)
    found: dict[str, Any] = json.loads(text)
    return found


def _document(request: Mapping[str, Any]) -> Any:
    return json_util.loads(json.dumps(request), json_options=json_util.CANONICAL_JSON_OPTIONS)


def _answer(reply: Any) -> dict[str, Any]:
    found = _as_json(dict(reply))
    return {"status": "ok" if reply.get("ok") == 1 else str(reply.get("codeName", "failed")), "reply": found}


class MongoSender:
    """Sends commands over one connection, without what a driver would add."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), _SECONDS)
        self._file = self._socket.makefile("rb")

    def send(self, operation: str, request: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
        """Send a command."""
        del operation, answer
        data = struct.pack("<ib", 0, 0) + bson.encode(_document(request))
        self._socket.sendall(_HEAD.pack(_HEAD.size + len(data), 1, 0, _MESSAGE) + data)
        length, *_ = _HEAD.unpack(self._file.read(_HEAD.size))
        return _answer(bson.decode(self._file.read(length - _HEAD.size)[5:]))

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()
