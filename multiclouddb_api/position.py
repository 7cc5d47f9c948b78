"""Defines the start positions of a feed."""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

import attrs

from multiclouddb_api.redaction import shorten
from multiclouddb_api.snapshot import Snapshot
from multiclouddb_api.validators import is_a, not_blank, to_utc

__all__ = ["AtTime", "Beginning", "FromContinuationToken", "Now", "StartPosition"]


@attrs.frozen
class Beginning:
    """Starts at the oldest change that the service still keeps; older changes are not *available*.

    Portability:
        DynamoDB keeps changes for 24 hours. Spanner keeps changes for the stream's retention, 1 day by
        default. MongoDB keeps changes as long as they are in the oplog. The embedded store keeps changes
        until `trim`. Cosmos DB cannot start an all-versions-and-deletes feed in the past: unless you opt into
        its backfill, the read raises `UNSUPPORTED_CAPABILITY`. Check `Capability.CHANGE_FEED_BEGINNING`. See
        warnings 3, 8 and 10 in docs/configuration.md.
    """


@attrs.frozen
class Now:
    """Starts at the first call; returns only changes that are committed after that call has returned.

    The first page's token is durable, even if the page is empty. Reading from this token later, even after a
    restart, returns everything that was committed after the first call.

    Portability:
        On DynamoDB, a reader that stops for more than 15 minutes before its first event may also get changes
        from the two minutes before its start. See warning 19 in docs/configuration.md.
    """


def _utc(value: datetime) -> datetime:
    return to_utc("AtTime.utc", value)


@attrs.frozen
class AtTime:
    """Starts at the first change at or after a given time, according to the service's clock.

    The feed never starts later than the given time. The feed may start earlier than the given time,
    by at most the precision that the note of `Capability.CHANGE_FEED_POINT_IN_TIME` states.

    Raises:
        MulticloudDbError: Raised when the position is built: `INVALID_REQUEST` for a datetime without a time
            zone. Raised by the first read: `INVALID_REQUEST` if the time is more than 60 seconds ahead of the
            service's clock, `CHECKPOINT_EXPIRED` if it is older than the service's retention.

    Portability:
        `AtTime` does not work on DynamoDB. On Cosmos DB, `AtTime` needs the opt-in to the backfill. Cosmos DB
        and MongoDB round to whole seconds. Check `Capability.CHANGE_FEED_POINT_IN_TIME`, or store a token and
        start from that token. See warnings 2, 8 and 9 in docs/configuration.md.
    """

    utc: datetime = attrs.field(converter=_utc)
    """An aware datetime with any offset; it is stored in UTC."""


@attrs.frozen
class FromContinuationToken:
    """Starts at the position of a token, after everything that was returned up to that position.

    Portability:
        A token is valid only for the provider, resource and scope for which it was issued, and only
        as long as the service keeps the changes after the token (24 hours on DynamoDB). If a
        resource was deleted and created again with the same name, its old tokens are refused. On
        MongoDB, a feed of a whole database or cluster does not refuse the old tokens of a recreated
        resource. See warnings 3, 7, 10 and 20 in docs/configuration.md.
    """

    token: str = attrs.field(
        repr=shorten, validator=[is_a(str), not_blank("pass a page's continuation_token")]
    )
    """The `continuation_token` of a page, the token of a child partition, or the `skip_token` of an error.
    The token is opaque and may be several kilobytes long, so store it as text or blob, never in a
    `varchar(255)` or an HTTP header."""


StartPosition: TypeAlias = Beginning | Now | AtTime | Snapshot | FromContinuationToken
"""The union of all start positions, which are frozen and comparable; use `match` on the class."""
