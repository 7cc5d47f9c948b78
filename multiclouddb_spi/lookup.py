"""Answers a look-up: normalises the keys, asks for as many as one request takes, and matches the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from attrs import frozen

from multiclouddb_api import (
    ChangeEvent,
    ErrorCategory,
    LookupAnswer,
    MulticloudDbKey,
    NotKnown,
    invalid_request,
)
from multiclouddb_spi.faults import ProviderFault

_UNMATCHED: Final = (
    "the service answered a look-up with a row whose key is none of those that were asked; give each key "
    "in the form that event.key has"
)
_TWICE: Final = NotKnown("two items have this key")
_UNREAD: Final = NotKnown("the document cannot be read")


@frozen
class AnsweredRows:
    """What a service has answered to one request for rows.

    Attributes:
        rows: The rows, in any order. Their keys have the normal form.
        left: The keys that the service has not processed, of those that were asked.
        unread: The keys of rows that are there but cannot be read; None for each whose key is not known.
        twice: The answer for a key that several rows have.
    """

    rows: Iterable[ChangeEvent]
    left: Iterable[MulticloudDbKey] = ()
    unread: Iterable[MulticloudDbKey | None] = ()
    twice: NotKnown = _TWICE


def look_up(
    keys: Sequence[MulticloudDbKey],
    most: int,
    normal: Callable[[MulticloudDbKey], MulticloudDbKey],
    ask: Callable[[list[MulticloudDbKey]], AnsweredRows],
) -> dict[MulticloudDbKey, LookupAnswer]:
    """Answer `SupportsLookup.lookup` for as many of the keys as one request takes.

    Args:
        keys: The keys, each once.
        most: The number of keys that one request takes.
        normal: Returns the normal form of a key, in which the keys of rows are; raises `INVALID_REQUEST` for
            a key that no row can have.
        ask: Asks the service for the rows of some normal keys, each once.

    Returns:
        The answer for each key that the service has processed: its row; None only if the service has
        processed it and sent no row that may be its row; else `NotKnown`.

    Raises:
        ProviderFault: `PROVIDER_ERROR` if a row belongs to none of the keys although each key has a row.
    """
    asked = dict[MulticloudDbKey, list[MulticloudDbKey]]()
    for key in keys[:most]:
        asked.setdefault(normal(key), []).append(key)
    found = ask(list(asked))
    rows, unread, left = dict[MulticloudDbKey, LookupAnswer](), set(found.unread), set(found.left)
    is_matched = True
    for row in found.rows:
        is_matched = is_matched and row.key in asked
        rows[row.key] = found.twice if row.key in rows else row
    absent: NotKnown | None = None if is_matched else NotKnown(_UNMATCHED)
    if None in unread:
        absent = _UNREAD
    answers = dict[MulticloudDbKey, LookupAnswer]()
    for key, alike in asked.items():
        if key not in left:
            answers |= dict.fromkeys(alike, rows.get(key, _UNREAD if key in unread else absent))
    if not is_matched and not any(isinstance(each, NotKnown) for each in answers.values()):
        raise ProviderFault.of(ErrorCategory.PROVIDER_ERROR, _UNMATCHED)
    return answers


def check_components(key: MulticloudDbKey, names: Sequence[str]) -> None:
    """Refuse a key whose components are not those of the collection's keys, in their order.

    Args:
        key: The key that was asked for.
        names: The names of the components.
    """
    if list(key.components) != list(names):
        raise invalid_request(
            "keys",
            f"has a key with the components {list(key.components)}",
            f"give the components {list(names)}, as event.key has them",
        )
