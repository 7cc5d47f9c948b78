"""Makes records that no client can decode."""

from __future__ import annotations

from enum import Enum
from typing import Any, assert_never

__all__ = ["Poison"]


class Poison(Enum):
    """The reason why a record cannot be decoded."""

    NUMBER = "number"
    """A number whose text is not a number."""
    TAG = "tag"
    """A value of an unknown type."""
    BINARY = "binary"
    """Bytes that are not base64."""
    EVENT_NAME = "event name"
    """An event name other than INSERT, MODIFY and REMOVE."""
    KEYS = "keys"
    """A record without keys."""

    def spoil(self, record: dict[str, Any]) -> None:
        """Damage a record so that no client can decode it."""
        change = record["dynamodb"]
        match self:
            case Poison.NUMBER:
                self._spoil_image(change, {"N": "twelve"})
            case Poison.TAG:
                self._spoil_image(change, {"Q": "?"})
            case Poison.BINARY:
                self._spoil_image(change, {"B": "*"})
            case Poison.EVENT_NAME:
                record["eventName"] = "UPSERT"
            case Poison.KEYS:
                del change["Keys"]
            case _:
                assert_never(self)

    @staticmethod
    def _spoil_image(change: dict[str, Any], value: dict[str, Any]) -> None:
        # If the view type includes no images, the keys are changed instead.
        image = change.get("NewImage") or change.get("OldImage")
        if image is None:
            image = change["Keys"] = dict(change["Keys"])
            name = next(iter(image))
        else:
            name = "poison"
        image[name] = value
