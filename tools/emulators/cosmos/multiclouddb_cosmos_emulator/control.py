"""Serves the control API, through which other processes call the methods of `CosmosEmulator` over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from multiclouddb_cosmos_emulator.errors import ServiceError
from multiclouddb_cosmos_emulator.message import Reply, Request
from multiclouddb_cosmos_emulator.routing import segments_of

__all__ = ["Control"]


class Control:
    """Serves `POST /_emulator/COMMAND` with JSON arguments, and `GET` for commands that only read.

    Args:
        commands: Maps each name to a function. The function is called with the arguments, and its result is
            the answer.
    """

    def __init__(self, commands: Mapping[str, Callable[..., Any]]) -> None:
        self._commands = commands

    def answer(self, request: Request) -> Reply:
        """Return the answer to a request."""
        segments = segments_of(request.path)
        name = segments[1] if len(segments) > 1 else ""
        command = self._commands.get(name)
        if command is None:
            return _error(
                404, f"there is no command {name!r}; the commands are {', '.join(sorted(self._commands))}"
            )
        # A browser does not send this content type to another host without first asking this host for
        # permission.
        if request.method == "POST" and not request.headers.get("content-type", "").startswith(
            "application/json"
        ):
            return _error(415, "the content type has to be application/json")
        try:
            arguments = orjson.loads(request.body) if request.body else {}
            return Reply(200, orjson.dumps({"result": command(**arguments)}))
        except ServiceError as error:
            return _error(error.status, error.message)
        except (TypeError, ValueError, KeyError) as error:
            return _error(400, f"{name}: {error}")


def _error(status: int, text: str) -> Reply:
    return Reply(status, orjson.dumps({"error": text}))
