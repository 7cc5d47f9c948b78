"""Handles the token of a partition that has ended: reports the end again, and looks for late children."""

from __future__ import annotations

import attrs

from multiclouddb_api import Fail
from multiclouddb_spi.continuation.follow import Follow
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import FeedOver, Retired, Session
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.reading.context import ReadContext

__all__ = ["Look", "look_again"]


@attrs.frozen
class Look:
    """What is known about an ended partition after a call has looked for its children.

    Attributes:
        state: How the partition ended.
        requests: The number of calls to the service.
        error: The reason why the service could not name more children, or None.
    """

    state: Retired | FeedOver
    requests: int = 0
    error: str | None = None


def look_again(session: Session, state: Retired, context: ReadContext, deadline: Deadline) -> Look:
    """Look for more children of a retired partition, if the next look is due.

    The result always contains the children in the token, even if the service does not answer.
    """
    if state.watch is None:
        return Look(state)
    lineage = Lineage([state.watch], session.feed, root=state.partition_id)
    follow = Follow(
        session.feed, lineage, context.fetcher.call, deadline, Fail(), context.looks, context.watch_seconds
    )
    if not (due := follow.due()):
        return Look(state)
    try:
        found = follow.look(due)
    except Exception as error:  # noqa: BLE001 - the known facts are reported again anyway
        return Look(state, 1, context.fetcher.fault(error).message)
    children = (*state.children, *found.children)
    return Look(Retired(state.partition_id, children, lineage.ending(state.partition_id)), 1)
