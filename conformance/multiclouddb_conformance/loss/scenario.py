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
    """Everything that the runs of an oracle share.

    The main parts are a world, its script, and the application that reads the changes.

    Attributes:
        world: A function that makes a new world and removes it after the run.
        client: A function that makes a client for a given world. The client may be any object that
            has `read_changes`. The client is closed after the run if it has a `close` method.
        request: The consumer's request, or a function that makes the request at the first read.
        life: The script; after it, the consumer reads until the feed is idle.
        consumer: The application; `page_consumer` by default.
        marker: A function that returns an event's marker; by default, the field `n` of its document.
        lineage: A function that gets a world, and returns the parents of every partition that the
            world ever had. The result maps each partition id to the ids of the parents. The ids
            have the form that events contain. Use None if the lineage is unknown. Without the
            lineage, only the order of a key's changes can show that a child was read too early.
        written_before: The number of changes that the script writes before the start position. Set
            this number if the feed starts at `AtTime` or at a token. Omit this number for `Now` and
            `Beginning`.
        idle_pages: The number of consecutive idle pages after which a consumer stops; more than 1 if the
            service shows writes late.
        key_order: False for a service whose keys may move to unrelated partitions. If the value is
            False, the changes of a key need to be in order only within a partition, but their order
            keys must still match the order of writing.
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
