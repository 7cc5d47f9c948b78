"""The start positions of a feed."""

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
    """The oldest change that the service still has: the beginning of the *available* changes.

    Portability:
        DynamoDB keeps changes for 24 hours; Spanner for the stream's retention, 1 day by default; MongoDB as
        long as they are in the oplog; the embedded store until `trim`. Cosmos DB cannot start an
        all-versions-and-deletes feed in the past: it raises `UNSUPPORTED_CAPABILITY` unless you opt into its
        backfill. Check `Capability.CHANGE_FEED_BEGINNING`. Warnings 3, 8 and 10 in docs/configuration.md.
    """


@attrs.frozen
class Now:
    """Only changes that are committed after the first call returns.

    The first page's token is durable, even if the page is empty. Reading from this token later, also after a
    restart, returns everything committed after that call.

    Portability:
        On DynamoDB a reader that stops before its first event for more than 15 minutes may also get changes
        of the last two minutes before its start. Warning 19 in docs/configuration.md.
    """


def _utc(value: object) -> datetime:
    return to_utc("AtTime.utc", value)


@attrs.frozen
class AtTime:
    """The first change at or after a time of the service's clock.

    The start is never too late. It may be too early by at most the precision that the note of
    `Capability.CHANGE_FEED_POINT_IN_TIME` states.

    Attributes:
        utc: An aware datetime of any offset, kept as UTC.

    Raises:
        MulticloudDbError: When it is built: `INVALID_REQUEST` for a naive datetime. At the first read:
            `INVALID_REQUEST` if the time is more than 60 seconds ahead of the service's clock,
            `CHECKPOINT_EXPIRED` if it is older than the service's retention.

    Portability:
        Not on DynamoDB; on Cosmos DB only with its backfill; in whole seconds on Cosmos DB and MongoDB. Check
        `Capability.CHANGE_FEED_POINT_IN_TIME`, or store a token and start from it. Warnings 2, 8 and 9 in
        docs/configuration.md.
    """

    utc: datetime = attrs.field(converter=_utc)


@attrs.frozen
class FromContinuationToken:
    """The position after everything that an earlier page returned.

    Attributes:
        token: A page's `continuation_token`, a child partition's, or an error's `skip_token`.
            It is opaque and may be several kilobytes long, so store it as text or blob, never in a
            `varchar(255)` or a header.

    Portability:
        Valid for the provider, resource and scope that it came from, as long as the service keeps the changes
        after it: 24 hours on DynamoDB. A resource that was deleted and created again with the same name
        refuses it, except a whole database or cluster of MongoDB. Warnings 3, 7, 10 and 20 in
        docs/configuration.md.
    """

    token: str = attrs.field(
        repr=shorten, validator=[is_a(str), not_blank("pass a page's continuation_token")]
    )


StartPosition: TypeAlias = Beginning | Now | AtTime | Snapshot | FromContinuationToken
"""Match on the case; all of them are frozen and comparable."""
