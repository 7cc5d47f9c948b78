"""Defines the keyword settings of an iterator as a type for `**settings`."""

from __future__ import annotations

from typing import Literal, TypedDict

from multiclouddb_api.checkpoint import CheckpointStore

__all__ = ["IteratorSettings"]


class IteratorSettings(TypedDict, total=False):
    """The keyword settings of `ChangeFeedIterator` and of `MulticloudDbClient.iterate_changes`."""

    timeout_seconds: float
    """The time limit of each read in seconds; 30 by default."""
    wait_seconds: float
    """How long a read may wait for its first event (long poll), in seconds; 0 by default."""
    until_idle: bool
    """True to end the iteration after the first idle page."""
    idle_backoff_seconds: float
    """How long to wait after the first idle page, in seconds; 0.005 by default. Each further idle page
    doubles the upper limit of the wait, and the first event resets this limit."""
    max_idle_backoff_seconds: float
    """The longest wait after an idle page, in seconds; 5 by default."""
    max_outage_seconds: float
    """How long to continue while every read fails with a retryable error, or while every page names the
    same partition in `partition_errors`, in seconds; 300 by default. After this time, the iterator raises the
    last error, or `TRANSIENT_FAILURE` if the same partition kept failing."""
    checkpoint_store: CheckpointStore | None
    """The store for the position, or None to save nothing."""
    checkpoint_name: str | None
    """The name of the checkpoint in the store."""
    checkpoint_interval_seconds: float
    """The shortest time between two saves after empty pages; with 0, the default, the position is saved after
    each empty page. After a page with events, the position is always saved."""
    on_poison: Literal["raise", "skip"]
    """What to do about a record that cannot be decoded: `"raise"`, the default, or `"skip"`. With `"skip"`,
    the iterator continues after the record; the next page contains a `RecordSkipped` notice and no events."""
