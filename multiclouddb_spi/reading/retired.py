"""Handles the token of a partition that has ended: reports the end again, and searches for late children."""

from __future__ import annotations

from typing import assert_never

import attrs

from multiclouddb_spi.batch import Awaiting, Child, Continue, Drained, Ended, Outcome, Reached, Scanned
from multiclouddb_spi.continuation.session import Session
from multiclouddb_spi.continuation.state import FeedOver, Retired
from multiclouddb_spi.continuation.watching import is_due, is_over, looked
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.reading.fetcher import Fetcher

__all__ = ["Look", "look_again"]


@attrs.frozen
class Look:
    """What is known about an ended partition after a call has searched for its children.

    Attributes:
        state: How the partition ended.
        requests: The number of calls to the service.
        error: The reason why the service could not name more children, or None.
    """

    state: Retired | FeedOver
    requests: int = 0
    error: str | None = None


def look_again(
    session: Session, state: Retired, fetcher: Fetcher, watch_seconds: float, deadline: Deadline
) -> Look:
    """Search for more children of a retired partition, if the next search is due.

    Args:
        session: The feed.
        state: The token's content.
        fetcher: The fetcher, which makes the call.
        watch_seconds: How long to search for more children, in seconds.
        deadline: The time limit.

    Returns:
        The result always contains the children in the token, even if the service does not answer.
    """
    watch = state.watch
    if watch is None or not is_due(session.feed, watch):
        return Look(state)
    name = state.partition_id
    try:
        asked = {name: watch.cursor}
        outcome = fetcher.call(lambda: session.feed.discover(asked, deadline), deadline).get(name)
    except Exception as error:  # noqa: BLE001 - the known facts are reported again anyway
        return Look(state, 1, fetcher.fault(error).message)
    if outcome is None:
        return Look(state)
    watch = attrs.evolve(watch, watched=looked(session.feed, name, watch.watched))
    children, complete = _named(outcome)
    fresh = {child.partition_id: child for child in children if child.partition_id not in watch.children}
    watch = attrs.evolve(watch, children=(*watch.children, *fresh))
    over = complete or is_over(watch, watch_seconds)
    return Look(Retired(name, (*state.children, *fresh.values()), None if over else watch), 1)


def _named(outcome: Outcome) -> tuple[tuple[Child, ...], bool]:
    match outcome:
        case Drained(children, complete):  # if the partition no longer exists: all possible children
            return children, complete
        case Ended():
            return (), True
        case Awaiting() | Continue() | Reached() | Scanned():
            return (), False
        case _:
            assert_never(outcome)
