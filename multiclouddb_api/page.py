"""What one read returns."""

from __future__ import annotations

import attrs

from multiclouddb_api.diagnostics import OperationDiagnostics
from multiclouddb_api.event import ChangeEvent
from multiclouddb_api.notice import Notice
from multiclouddb_api.text import shorten

__all__ = ["ChangeFeedPage", "ChildPartition"]


def _count(events: tuple[ChangeEvent, ...]) -> str:
    return f"<{len(events)} events>"


@attrs.frozen
class ChildPartition:
    """A partition that goes on where a retired one ended.

    Attributes:
        partition_id: The child; fit for `PhysicalPartition`.
        parents: Every parent, the retired partition included; read the child only after all of them.
        continuation_token: Where to start reading it: an id alone cannot be started without loss.

    Portability:
        Partitions split on DynamoDB, Spanner, Cosmos DB and the embedded store, and merge on Spanner and
        the embedded store; MongoDB's one never ends. Warnings 7 and 11 in docs/configuration.md.
    """

    partition_id: str
    parents: tuple[str, ...]
    continuation_token: str = attrs.field(repr=shorten)


@attrs.frozen
class ChangeFeedPage:
    """Events in the order of the service within each partition, and where to go on.

    Attributes:
        events: The changes; possibly none.
        continuation_token: Never None: resume here. It moves whenever the service's position
            does, on empty pages too: store it after each page, or an idle feed falls out of
            retention. Several kilobytes with many partitions: text or blob, never `varchar(255)`.
        idle: True only when every active partition answered that it has nothing. A page may be
            empty and not idle.
        partition_retired: With `PhysicalPartition` alone: the partition has ended and everything in it
            has been delivered. Reading the token again repeats this.
        child_partitions: Where to go on then.
        notices: Facts that are no change of a document. Each has a place in the order of its partition: after
            the partition's last event on this page, and before its first event on a later page. So this
            page has no event of the partition that comes after the notice, and none that is read because
            of it: with a `Gap`, none of what takes the place of the lost partition. Events of other
            partitions may stand on the page. A read from a `skip_token` reads no events: its page has the
            `RecordSkipped` alone. Every token before the page delivers its notices again, also after a
            restart; the page's own token does not.
        diagnostics: What the call cost and how far behind it is.
    """

    events: tuple[ChangeEvent, ...] = attrs.field(repr=_count)
    continuation_token: str = attrs.field(repr=shorten)
    idle: bool = False
    partition_retired: bool = False
    child_partitions: tuple[ChildPartition, ...] = ()
    notices: tuple[Notice, ...] = ()
    diagnostics: OperationDiagnostics = attrs.field(factory=OperationDiagnostics)
