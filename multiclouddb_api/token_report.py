"""Defines what `MulticloudDbClient.inspect` says about a token."""

from __future__ import annotations

from datetime import datetime

from attrs import frozen

from multiclouddb_api.errors import ErrorCategory
from multiclouddb_api.request import ResourceAddress


@frozen
class TokenPartition:
    """One partition in a token."""

    partition_id: str
    """The id for `PhysicalPartition`."""
    state: str
    """`active`, `waiting` (for its parents), `drained` (read to its end, but the service has not listed its
    children yet), `watched` (it may list more children), `next` (a child of an ended partition) or `scan`
    (the part of a snapshot that is not divided into segments yet)."""
    position: str
    """The position as readable text; empty if the partition has none yet."""
    time: datetime | None
    """The time of the position in UTC, or None if the service does not report it."""
    waits_for: tuple[str, ...] = ()
    """The ids of the parents that are read first."""


@frozen
class TokenReport:
    """What a token contains, and whether the service can still resume it."""

    address: ResourceAddress
    """The collection for which the token was made."""
    scope: str
    """The scope for which it was made, for example `collection`."""
    issued_at: datetime | None
    """When the token was made, by the clock of the machine that made it."""
    watermark: datetime | None
    """No event after the token is older than this time; None if no page has reported one."""
    partitions: tuple[TokenPartition, ...]
    """The partitions of the token, in the order in which they are read."""
    ended: str | None
    """How the feed or the partition ended; None if it has not ended."""
    resumes: bool | None
    """Whether a read from the token works. None if that is not known: the error says nothing of the token, or
    there is none, and the read needs the token's partition key, which is then to be passed as `key`."""
    error: ErrorCategory | None
    """Why the read has failed, for example `CHECKPOINT_EXPIRED`; otherwise None."""
    problem: str
    """The message of that error, which says what to do; otherwise empty."""
    changes_waiting: bool | None
    """Whether the service has changes after the token; None if the read did not show it."""
    lag_seconds: float | None
    """How many seconds the token is behind the service's clock, or None."""
    retention_headroom_seconds: float | None
    """For how many seconds the service will still keep the token's oldest position, or None."""
