"""Defines what a look-up of single rows answers."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from multiclouddb_api.event import ChangeEvent
from multiclouddb_api.validators import is_a

__all__ = ["LookupAnswer", "NotKnown"]


@attrs.frozen
class NotKnown:
    """Says that nobody knows whether there is a row with a key: the service could not be asked for it.

    It is neither a row nor its absence. Do not delete or insert anything because of it.

    Portability:
        On Cosmos DB, some ids cannot be asked for: the service accepts them when an item is written, and its
        gateway refuses to read them. On each database, an answer is not known if the service has answered
        with a row whose key equals none of the keys that were asked. See warning 23 in
        docs/configuration.md.
    """

    reason: str = attrs.field(validator=is_a(str))
    """Why it is not known, without the key."""


LookupAnswer: TypeAlias = ChangeEvent | NotKnown | None
"""What `lookup` answers for a key: the row, None if the service said that there is no such row, or
`NotKnown`."""
