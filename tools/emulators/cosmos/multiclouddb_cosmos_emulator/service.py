"""Answers requests. The module `http` applies the faults that tests request."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Final

import attrs

from multiclouddb_cosmos_emulator.account import Account
from multiclouddb_cosmos_emulator.auth import Guard
from multiclouddb_cosmos_emulator.call import Call
from multiclouddb_cosmos_emulator.documents import DOCUMENT_CALLS
from multiclouddb_cosmos_emulator.errors import ServiceError, bad_request
from multiclouddb_cosmos_emulator.message import Reply, Request
from multiclouddb_cosmos_emulator.queries import QUERY_CALLS
from multiclouddb_cosmos_emulator.resources import RESOURCE_CALLS
from multiclouddb_cosmos_emulator.routing import Route, segments_of

__all__ = ["Service", "refusal"]

_LEVELS: Final = ("Strong", "BoundedStaleness", "Session", "ConsistentPrefix", "Eventual")
_CALLS: Final[Mapping[str, Callable[[Call], Reply]]] = {**RESOURCE_CALLS, **DOCUMENT_CALLS, **QUERY_CALLS}


@attrs.define(eq=False)
class Service:
    """Answers requests. Several threads can use this object.

    Attributes:
        account: The state of the emulator.
        guard: The object that checks the authorization.
        lock: The lock that a thread must hold while it reads or changes the state.
    """

    account: Account
    guard: Guard
    lock: threading.RLock = attrs.Factory(threading.RLock)

    def route(self, request: Request) -> Route:
        """Return the route of a request, after checking its authorization."""
        segments = segments_of(request.path)
        self.guard.check(request, segments)
        return Route.of(request, segments)

    def _check_consistency(self, request: Request) -> None:
        level, own = request.headers.get("x-ms-consistency-level"), self.account.consistency
        if level in _LEVELS and _LEVELS.index(level) < _LEVELS.index(own):
            raise bad_request(
                f"ConsistencyLevel {level} specified in the request is invalid when service is configured "
                f"with consistency level {own}. Ensure the request consistency level is not stronger than "
                "the service consistency level."
            )

    def answer(self, request: Request, route: Route) -> Reply:
        """Return the answer to a request. If the answer is an error, it is raised."""
        self._check_consistency(request)
        with self.lock:
            reply = _CALLS[route.operation](Call(self.account, request, route))
        reply.headers["x-ms-activity-id"] = _activity(request)
        reply.headers["x-ms-request-charge"] = str(reply.charge)
        return reply


def refusal(request: Request, error: ServiceError) -> Reply:
    """Return the answer for an error."""
    activity = _activity(request)
    headers = {"x-ms-activity-id": activity, "x-ms-request-charge": "1.0", **error.headers}
    if error.substatus:
        headers["x-ms-substatus"] = str(error.substatus)
    return Reply(error.status, error.body(activity), headers)


def _activity(request: Request) -> str:
    return request.headers.get("x-ms-activity-id") or str(uuid.uuid4())
