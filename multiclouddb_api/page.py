"""The result of one read."""

from __future__ import annotations

import attrs

from multiclouddb_api.diagnostics import OperationDiagnostics
from multiclouddb_api.event import ChangeEvent
from multiclouddb_api.notice import Notice
from multiclouddb_api.redaction import shorten

__all__ = ["ChangeFeedPage", "ChildPartition"]


def _count(events: tuple[ChangeEvent, ...]) -> str:
    return f"<{len(events)} events>"


@attrs.frozen
class ChildPartition:
    """A partition that continues where a retired one ended.

    Attributes:
        partition_id: The child; can be passed to `PhysicalPartition`.
        parents: Every parent, the retired partition included; read the child only after all of them.
        continuation_token: The position from which to read the child. Starting from the id alone would lose
            changes.

    Portability:
        Partitions split on DynamoDB, Spanner, Cosmos DB and the embedded store, and merge on Spanner and
        the embedded store; MongoDB's only partition never ends. Warnings 7 and 11 in docs/configuration.md.
    """

    partition_id: str
    parents: tuple[str, ...]
    continuation_token: str = attrs.field(repr=shorten)


@attrs.frozen
class ChangeFeedPage:
    """Events in the order of the service within each partition, and where to resume.

    Attributes:
        events: The changes; possibly none.
        continuation_token: The position to resume from; never None. It advances whenever the service's
            position does, also with empty pages: store it after each page, or the position of an idle feed
            expires. With many partitions it may be several kilobytes long: store it as text or blob, never as
            `varchar(255)`.
        idle: True only if every active partition answered that it has no more changes at present. A page may
            be empty without being idle.
        partition_retired: With `PhysicalPartition` alone: the partition has ended and everything in it
            has been delivered. Reading the token again repeats this.
        child_partitions: The partitions to read next after the end.
        notices: Facts that are not changes of a document. Each notice has a place in the order of its
            partition: after the partition's last event on this page, and before its first event on a later
            page. So this page contains no event of the partition that comes after the notice. It also
            contains no event that is read because of the notice: with a `Gap`, none from the partitions that
            replace the lost one. The page may contain events of other partitions. A read from a `skip_token`
            reads no events: its page contains only the `RecordSkipped`. Every token before the page delivers
            its notices again, also after a restart; the page's own token does not.
        diagnostics: The cost and the lag of the call.
    """

    events: tuple[ChangeEvent, ...] = attrs.field(repr=_count)
    continuation_token: str = attrs.field(repr=shorten)
    idle: bool = False
    partition_retired: bool = False
    child_partitions: tuple[ChildPartition, ...] = ()
    notices: tuple[Notice, ...] = ()
    diagnostics: OperationDiagnostics = attrs.field(factory=OperationDiagnostics)
