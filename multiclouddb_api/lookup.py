"""Defines what a look-up of single rows answers."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from multiclouddb_api.event import ChangeEvent
from multiclouddb_api.validators import is_a

__all__ = ["LookupAnswer", "NotKnown"]


@attrs.frozen
class NotKnown:
    """The answer for a key if it is not known whether there is a row with this key.

    It proves neither a row nor its absence, so do not delete or insert anything because of it.

    Portability:
        On Cosmos DB there are ids that cannot be asked for: the service accepts them in a write, but its
        gateway refuses to read them. On every database, the document of the row may be unreadable, or the
        service may have sent a row whose key equals none of those that were asked. See warning 23 in
        docs/configuration.md.
    """

    reason: str = attrs.field(validator=is_a(str))
    """Why it is not known, without the key."""


LookupAnswer: TypeAlias = ChangeEvent | NotKnown | None
"""What `lookup` answers for a key: the row, None if the service said that there is no such row, or
`NotKnown`."""
