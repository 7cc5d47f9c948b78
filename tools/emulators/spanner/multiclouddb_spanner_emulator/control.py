"""Serves the control API, through which other processes call methods of `ScriptedSpanner`.

The API is one gRPC method whose request and answer are JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc

from multiclouddb_spanner_emulator.errors import ServiceError

__all__ = ["control_handler"]

_SERVICE: Final = "multiclouddb.emulator.Spanner"


def control_handler(commands: Mapping[str, Callable[..., Any]]) -> grpc.GenericRpcHandler:
    """Return the handler for a gRPC server.

    Args:
        commands: Maps each name to a function. It is called with the arguments of the request, and its result
            is the answer.
    """

    def control(request: bytes, context: Any) -> bytes:
        try:
            asked = json.loads(request)
            name = asked.pop("command")
            if name not in commands:
                raise ValueError(f"there is no command {name!r}; the commands are {', '.join(commands)}")
            return json.dumps({"result": commands[name](**asked)}, default=str).encode()
        except (AttributeError, KeyError, ServiceError, TypeError, ValueError) as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"control: {error}")
            raise

    handler = grpc.unary_unary_rpc_method_handler(control)
    return grpc.method_handlers_generic_handler(_SERVICE, {"Control": handler})
