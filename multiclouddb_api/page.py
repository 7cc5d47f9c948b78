"""Defines the result of one read."""

from __future__ import annotations

import attrs

from multiclouddb_api.diagnostics import OperationDiagnostics
from multiclouddb_api.event import ChangeEvent
from multiclouddb_api.notice import Notice
from multiclouddb_api.redaction import shorten
from multiclouddb_api.validators import each_is, is_a

__all__ = ["ChangeFeedPage", "ChildPartition"]


def _count(events: tuple[ChangeEvent, ...]) -> str:
    return f"<{len(events)} events>"


@attrs.frozen
class ChildPartition:
    """A partition that contains the changes that follow the end of its parent partitions.

    Portability:
        Partitions split on DynamoDB, Spanner, Cosmos DB and the embedded store, and merge on Spanner and
        the embedded store; MongoDB's only partition never ends. See warnings 7 and 11 in
        docs/configuration.md.
    """

    partition_id: str = attrs.field(validator=is_a(str))
    """The id of the child; pass it to `PhysicalPartition`."""
    parents: tuple[str, ...] = attrs.field(validator=each_is(str))
    """The ids of all parents, including the ended partition; read the child only after you have read all
    parents."""
    continuation_token: str = attrs.field(repr=shorten, validator=is_a(str))
    """The token of the position from which to read the child. A read that starts with only the child's id
    could miss changes."""


@attrs.frozen
class ChangeFeedPage:
    """Contains events and the position from which to resume.

    Within each partition, the events are in the service's order.
    """

    events: tuple[ChangeEvent, ...] = attrs.field(repr=_count)
    """The changes; the tuple may be empty."""
    continuation_token: str = attrs.field(repr=shorten)
    """The position to resume from; never None. The token advances whenever the service's position advances,
    even on empty pages. Store the token after each page; otherwise the position of an idle feed will expire.
    With many partitions, the token may be several kilobytes long, so store it as text or blob, never as
    `varchar(255)`."""
    idle: bool = False
    """True only if the service reported for every active partition that there are no more changes at present.
    A page may be empty without being idle."""
    partition_retired: bool = False
    """True if the partition has ended and all its changes have been delivered; only with a
    `PhysicalPartition` without descendants. Another read from the same token returns the same result."""
    child_partitions: tuple[ChildPartition, ...] = ()
    """The partitions to read after the ended partition."""
    notices: tuple[Notice, ...] = ()
    """Facts other than changes to documents. Each notice has a position in the order of its partition:
    after the partition's last event on this page, and before its first event on a later page. So this
    page contains no event of the partition that comes after the notice. If a notice makes the engine read
    other partitions, their events come on later pages. For example, a page with a `Gap` contains no events of
    the partitions that replace the lost partition. The page may contain events of other partitions. A read
    from a `skip_token` reads no events: its page contains only the `RecordSkipped` notice. A read from any
    token before this page delivers the page's notices again, even after a restart; a read from this page's
    token does not."""
    diagnostics: OperationDiagnostics = attrs.field(factory=OperationDiagnostics)
    """Measurements of the call, such as its cost and lag."""
