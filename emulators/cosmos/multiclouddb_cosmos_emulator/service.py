"""From a request to its answer, apart from the faults on the way."""

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
from multiclouddb_cosmos_emulator.errors import ServiceError
from multiclouddb_cosmos_emulator.message import Reply, Request
from multiclouddb_cosmos_emulator.queries import QUERY_CALLS
from multiclouddb_cosmos_emulator.resources import RESOURCE_CALLS
from multiclouddb_cosmos_emulator.routing import Route, segments_of

__all__ = ["Service", "refusal"]

_CALLS: Final[Mapping[str, Callable[[Call], Reply]]] = {**RESOURCE_CALLS, **DOCUMENT_CALLS, **QUERY_CALLS}


@attrs.define(eq=False)
class Service:
    """Answers requests; for several threads.

    Attributes:
        account: All the state.
        guard: Checks who asks.
        lock: Held by whoever looks at the state or changes it.
    """

    account: Account
    guard: Guard
    lock: threading.RLock = attrs.Factory(threading.RLock)

    def route(self, request: Request) -> Route:
        """What a request asks for, if it may."""
        segments = segments_of(request.path)
        self.guard.check(request, segments)
        return Route.of(request, segments)

    def answer(self, request: Request, route: Route) -> Reply:
        """The answer; errors are raised."""
        with self.lock:
            reply = _CALLS[route.operation](Call(self.account, request, route))
        reply.headers["x-ms-activity-id"] = _activity(request)
        reply.headers["x-ms-request-charge"] = str(reply.charge)
        return reply


def refusal(request: Request, error: ServiceError) -> Reply:
    """The answer that an error is."""
    activity = _activity(request)
    headers = {"x-ms-activity-id": activity, "x-ms-request-charge": "1.0", **error.headers}
    if error.substatus:
        headers["x-ms-substatus"] = str(error.substatus)
    return Reply(error.status, error.body(activity), headers)


def _activity(request: Request) -> str:
    return request.headers.get("x-ms-activity-id") or str(uuid.uuid4())
