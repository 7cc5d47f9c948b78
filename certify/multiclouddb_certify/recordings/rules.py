"""What a service contributes to recordings: values that differ in every run, and how to read exchanges."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Protocol, TypeAlias

import attrs

from multiclouddb_certify.wire import Call, WireResponse

__all__ = [
    "EMPTY",
    "MOST_CHARACTERS",
    "OPEN",
    "PLACEHOLDER",
    "PLAIN",
    "WORDS",
    "Codec",
    "Portion",
    "Rules",
    "Sender",
    "Store",
    "moment_of",
    "shape",
]

WORDS: Final = "words"
"""The kind of a text for people: it is recorded, and no server has to use the same words."""
MOST_CHARACTERS: Final = 2000
"""A longer text is cut."""
OPEN: Final = "open"
"""The field of an answer that says that the client ended it: later rows are not in the recording."""
EMPTY: Final[tuple[Any, ...]] = (None, "", {}, {"$numberLong": "0"})
"""Values that say that there is none, for example no cursor: they are never replaced."""
PLAIN: Final = ("object", "$numberInt")
"""The shapes of values that are never replaced: an object has fields, and a projection has small numbers."""
PLACEHOLDER: Final = re.compile(r"<([a-z ]+?) (\d+)(?:, ([^>]+))?>")
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


def shape(value: Any) -> str:
    """Return the type of a value: empty for a text, and the name of the type for a value of BSON."""
    match value:
        case str():
            return ""
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case dict() if len(value) == 1 and next(iter(value)).startswith("$"):
            return str(next(iter(value)))
        case _:
            return "object"


def moment_of(value: Any) -> datetime | None:
    """Return the time of a text in the format of RFC 3339, or None."""
    if not isinstance(value, str) or not _MOMENT.fullmatch(value):
        return None
    return datetime.fromisoformat(value)


@attrs.frozen
class Portion:
    """Where a portion of a long list stands, and the position before and after it.

    Attributes:
        entries: The path of the list in the answer.
        position: The path of the position in the request; empty if the request begins the list.
        following: The path of the position in the answer.
    """

    entries: tuple[str, ...]
    position: tuple[str, ...]
    following: tuple[str, ...]


@attrs.frozen
class Rules:
    """Which values differ in every run.

    A field is named by its name, or by the last names of its path, for example `cursor.id`.

    Attributes:
        kinds: Maps a field to the kind of its value, or of the values in its list. `WORDS` is recorded as it
            is, every other kind is replaced by a placeholder.
        dropped: The fields that are not recorded at all, because they say nothing about the service.
        same: The kinds whose equal values have to be equal in every run.
        portions: The operations that return a portion of a long list. A server may cut the list into others.
    """

    kinds: Mapping[str, str]
    dropped: frozenset[str] = frozenset()
    same: frozenset[str] = frozenset()
    portions: Mapping[str, Portion] = attrs.field(factory=dict)

    def kind(self, path: tuple[str, ...]) -> str | None:
        """Return the kind of a field's value, or None if it is the same in every run."""
        return next((self.kinds[each] for each in _names(path) if each in self.kinds), None)

    def is_dropped(self, path: tuple[str, ...]) -> bool:
        """Return True for a field that is not recorded."""
        return any(each in self.dropped for each in _names(path))


def _names(path: tuple[str, ...]) -> list[str]:
    named = [each for each in path if not each.isdigit()]
    return [".".join(named[-count:]) for count in (3, 2, 1)]


Store: TypeAlias = Callable[[Callable[[], dict[str, Any]]], None]


class Sender(Protocol):
    """Sends requests of a recording to a server."""

    def send(self, operation: str, request: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request.

        Args:
            operation: The name of the operation.
            request: The request, with the values of this run.
            answer: The recorded answer, which says how much of an endless answer to read.

        Returns:
            The answer, in the form of the recording.
        """

    def close(self) -> None:
        """Close the connections."""


class Codec(Protocol):
    """Reads exchanges, and says what they contain."""

    rules: Rules

    def secrets(self) -> Mapping[str, str]:
        """Return what must not be in a recording: each text, and the name of its placeholder."""

    def read(self, call: Call, answer: WireResponse, store: Store) -> None:
        """Read an exchange.

        Args:
            call: The request.
            answer: The answer; its body is left for the SDK.
            store: Is called once with a function that returns the exchange, maybe later.
        """

    def sender(self) -> Sender:
        """Connect to the server."""

    def following(
        self, operation: str, request: Mapping[str, Any], answer: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]] | None:
        """Return the operation and the request for the next portion of a list, or None if it has ended."""
