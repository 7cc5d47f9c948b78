"""Decides when to search again for the children of an ended partition, and for how long.

The duration of a search is running time: the sum of the monotonic seconds between the lookups in one process.
The token keeps this duration, so that neither a restart nor a client's clock ends a search early. The time of
the last lookup is only in the process's memory. If a restart loses this time, the search just lasts longer.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final
from weakref import WeakKeyDictionary

from multiclouddb_spi.batch import Drained, Outcome, children_of
from multiclouddb_spi.continuation.entry import AwaitingChildren
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.contract import Feed

__all__ = ["is_due", "is_over", "looked", "pause_after", "settle"]

_FIRST_PAUSE: Final = 0.1
_MOST_PAUSE: Final = 120.0
_MOST_LOOKS: Final = 16384

_Looks = OrderedDict[tuple[str, int], float]
_looks: WeakKeyDictionary[Feed, _Looks] = WeakKeyDictionary()
_lock = threading.Lock()


def _renew_lock() -> None:
    """Replace the lock, because a thread of the parent may have held it when the process was forked."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def pause_after(watched: int) -> float:
    """Return the pause before the next lookup, about as long as the search has lasted so far.

    With these pauses, the process looks for children fourteen times in ten minutes. Half of these
    lookups happen in the first six seconds, when most late children appear.

    Args:
        watched: How long the search has lasted, in tenths of a second.
    """
    return min(_MOST_PAUSE, max(_FIRST_PAUSE, watched / 10))


def is_due(feed: Feed, entry: AwaitingChildren) -> bool:
    """Return whether to search for more children of a partition now.

    If no child is known, the engine searches at once, because the feed cannot continue without a
    child. The engine also searches at once if this process has not searched for the partition's
    children before.

    Args:
        feed: The feed that contains the partition.
        entry: The partition.
    """
    if not entry.children:
        return True
    with _lock:
        looks = _looks.get(feed)
        last = None if looks is None else looks.get((entry.partition_id, entry.watched))
    return last is None or time.monotonic() - last >= pause_after(entry.watched)


def is_over(entry: AwaitingChildren, seconds: float) -> bool:
    """Return whether the search for a partition's children is over; False if no child is known.

    Args:
        entry: The partition.
        seconds: The duration after which the search is over.
    """
    return bool(entry.children) and entry.watched >= seconds * 10


def looked(feed: Feed, partition_id: str, watched: int) -> int:
    """Record that the children of a partition have just been searched for.

    Args:
        feed: The feed that contains the partition.
        partition_id: The partition.
        watched: The duration of the search so far, in tenths of a second.

    Returns:
        The new duration of the search. The new duration includes the time since this process last
        searched for the children. If this process has not searched before, the duration stays the
        same.
    """
    now = time.monotonic()
    with _lock:
        looks = _looks.setdefault(feed, OrderedDict())
        last = looks.get((partition_id, watched))
        # The number is rounded down, because a search may last longer than this number says, but not shorter.
        watched += 0 if last is None else int((now - last) * 10)
        if last is None or watched > 0:
            looks[partition_id, watched] = now
            looks.move_to_end((partition_id, watched))
        if len(looks) > _MOST_LOOKS:
            looks.popitem(last=False)
    return watched


def settle(
    feed: Feed,
    lineage: Lineage,
    entries: Iterable[AwaitingChildren],
    outcomes: Mapping[str, Outcome],
    seconds: float,
    end: Callable[[str, Outcome], Sequence[str] | None],
) -> list[str]:
    """Apply the answers of `Feed.discover` to a lineage.

    Args:
        feed: The feed of the lineage.
        lineage: Changed in place.
        entries: The partitions whose children were searched for.
        outcomes: The answers of the service. If a partition has no answer, the service was not asked about
            it.
        seconds: How long to search for more children.
        end: A function that applies an outcome to the lineage, and returns the ids of the partitions that
            start.

    Returns:
        The ids of the partitions that start now.
    """
    started: list[str] = []
    for name, watched in [(entry.partition_id, entry.watched) for entry in entries]:
        if name not in outcomes:
            continue
        lineage.watch(name, looked(feed, name, watched))
        outcome, ending = outcomes[name], lineage.ending(name)
        # The partition no longer exists, so the service cannot name more of its children. An audit finds
        # children that were missed. In a feed without audits, all partitions that may be its children are
        # named instead.
        gone = isinstance(outcome, Drained) and outcome.instead and lineage.audited is not None
        if gone and ending is not None and ending.children:
            started += lineage.forget(name)
            continue
        started += end(name, outcome) or []
        ending = lineage.ending(name)
        if ending is None or not is_over(ending, seconds):
            continue
        if not lineage.fresh_children(
            name, children_of(outcome)
        ):  # Otherwise, the child could not be added, so the engine searches for the child again.
            started += lineage.forget(name)
    return started
