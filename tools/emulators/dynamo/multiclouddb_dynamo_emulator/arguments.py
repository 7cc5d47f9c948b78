"""Checks the arguments of a call against the service model."""

from __future__ import annotations

from typing import Any

import orjson

from multiclouddb_dynamo_emulator.errors import ServiceError, invalid

__all__ = ["Arguments"]


class Arguments:
    """The arguments in the JSON body of a request.

    Args:
        body: The received bytes.
    """

    def __init__(self, body: bytes) -> None:
        try:
            fields = orjson.loads(body)
        except orjson.JSONDecodeError:
            fields = None
        if not isinstance(fields, dict):
            raise ServiceError("SerializationException", "The body is not a JSON object")
        self._fields: dict[str, Any] = fields

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument without checking it."""
        return self._fields.get(name, default)

    def only(self, *names: str) -> None:
        """Refuse arguments that the server would otherwise silently ignore."""
        if unknown := sorted(self._fields.keys() - set(names)):
            raise invalid(f"The scripted server does not know {', '.join(unknown)}")

    def text(self, name: str, shortest: int, longest: int) -> str:
        """Return a required text."""
        value = self._fields.get(name)
        if value is None:
            raise _refused(name, value, "Member must not be null")
        if not isinstance(value, str):
            raise ServiceError("SerializationException", f"{name} must be a text")
        if len(value) < shortest:
            raise _refused(name, value, f"Member must have length greater than or equal to {shortest}")
        if len(value) > longest:
            raise _refused(name, value, f"Member must have length less than or equal to {longest}")
        return value

    def optional_text(self, name: str, shortest: int, longest: int) -> str | None:
        """Return an optional text."""
        return None if self._fields.get(name) is None else self.text(name, shortest, longest)

    def limit(self, most: int) -> int:
        """Return the argument `Limit`."""
        value = self._fields.get("Limit", most)
        if not isinstance(value, int):
            raise ServiceError("SerializationException", "Limit is not an integer")
        if value < 1:
            raise _refused("Limit", value, "Member must have value greater than or equal to 1")
        if value > most:
            raise _refused("Limit", value, f"Member must have value less than or equal to {most}")
        return value


def _refused(name: str, value: Any, constraint: str) -> ServiceError:
    shown = "null" if value is None else f"'{value}'"
    return invalid(
        f"1 validation error detected: Value {shown} at '{name[0].lower()}{name[1:]}' "
        f"failed to satisfy constraint: {constraint}"
    )
