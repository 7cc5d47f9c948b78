"""Defines the keyword settings of an iterator as a type for `**settings`."""

from __future__ import annotations

from typing import Literal, TypedDict

from multiclouddb_api.checkpoint import CheckpointStore

__all__ = ["IteratorSettings"]


class IteratorSettings(TypedDict, total=False):
    """The keyword settings of `ChangeFeedIterator`, which describes each of them."""

    timeout_seconds: float
    wait_seconds: float
    until_idle: bool
    idle_backoff_seconds: float
    max_idle_backoff_seconds: float
    max_outage_seconds: float
    checkpoint_store: CheckpointStore | None
    checkpoint_name: str | None
    checkpoint_interval_seconds: float
    on_poison: Literal["raise", "skip"]
