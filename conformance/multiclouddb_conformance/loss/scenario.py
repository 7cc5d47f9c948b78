"""What is the same in all runs of a loss oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

import attrs

from multiclouddb_api import ChangeFeedRequest
from multiclouddb_conformance.loss.consumer import Consumer, ReadsChanges, page_consumer
from multiclouddb_conformance.loss.life import Step
from multiclouddb_conformance.loss.truth import Marker, marker_in

__all__ = ["Scenario"]

W = TypeVar("W")


@attrs.frozen(kw_only=True)
class Scenario(Generic[W]):
    """A world, its life, and the application that reads what happens there.

    Attributes:
        world: Makes a fresh world, and clears it away behind the run.
        client: Makes a client on a world: anything with `read_changes`; closed if it can be.
        request: What the consumer reads, or a function that makes the request when it first reads.
        life: The script. At its end the consumer reads until the feed is idle.
        consumer: The application; `page_consumer` by default.
        marker: Where an event's marker is; the field `n` of its document by default.
        lineage: Partition id as events have it → parents, of everything that ever was in a world;
            None when nobody can tell: then only keys show whether a child was read too early.
        written_before: So many changes of the life come before the start (`AtTime`, a token). For
            `Now` and `Beginning` leave it out.
        idle_pages: So many idle pages in a row count as the end; more than one where the service
            shows what was written only after a while.
        key_order: False for a service whose keys move to partitions that do not descend from theirs:
            the changes of a key come in order inside a partition, and their order keys agree.
        max_pages: So many pages in one reading at most.
        max_failures: So many retryable failures in a row at most.
    """

    world: Callable[[], AbstractContextManager[W]]
    client: Callable[[W], ReadsChanges]
    request: ChangeFeedRequest | Callable[[W], ChangeFeedRequest]
    life: Sequence[Step[W]] = attrs.field(converter=tuple)
    consumer: Consumer = page_consumer
    marker: Marker = attrs.field(factory=lambda: marker_in("n"))
    lineage: Callable[[W], Mapping[str, tuple[str, ...]]] | None = None
    written_before: int | None = None
    idle_pages: int = 1
    key_order: bool = True
    max_pages: int = 100_000
    max_failures: int = 1000
