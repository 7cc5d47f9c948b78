"""Describes everything that all runs of a loss oracle share."""

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
    """What the runs of an oracle share: a world, its script, and the application that reads the changes.

    Attributes:
        world: A function that makes a new world and removes it after the run.
        client: A function that makes a client for a world: any object with `read_changes`. The client is
            closed after the run if it has a `close` method.
        request: The consumer's request, or a function that makes the request at the first read.
        life: The script; after it, the consumer reads until the feed is idle.
        consumer: The application; `page_consumer` by default.
        marker: A function that returns an event's marker; by default, the field `n` of its document.
        lineage: Maps the id of each partition that a world ever had to the partition's parents, with the ids
            that events contain. None if the lineage is unknown; then only the order of a key's changes can
            reveal a child that was read too early.
        written_before: The number of changes that the script writes before the start (`AtTime`, a token).
            Omit this number for `Now` and `Beginning`.
        idle_pages: The number of consecutive idle pages after which a consumer stops; more than 1 if the
            service shows writes late.
        key_order: False for a service whose keys may move to unrelated partitions. Then the changes of a key
            must be in order only within a partition, and their order keys must agree.
        max_pages: The maximum number of pages in one read.
        max_failures: The maximum number of consecutive retryable failures.
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
