"""When a child starts that waits for parents which nobody here may ever read.

A feed of a whole collection waits for every parent: what it does not lead to, an audit finds. Other feeds
have no audit: that of a partition and its descendants, and that of one partition key. There a parent that is
not in the lineage is a stranger. Somebody else reads it; or it descends from a partition of the lineage that
has not come to its end. What the service lists tells the two apart in most cases, and then the first kind is
not waited for (`Retention.named`). Where it does not tell, this does:

A stranger existed before its child was made, so what it descends from had ended by then. A partition that is
read behind the moment at which the child was named, and has not ended, leads to no such stranger. Nor does
one that was asked behind that moment, and had nothing more.

So a child is late at most, and never left out. One child starts at a time, the oldest first: another that
waits may lead to it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from multiclouddb_spi.checkpoint.entry import Waiting
from multiclouddb_spi.checkpoint.lineage import Lineage
from multiclouddb_spi.checkpoint.moment import to_moment
from multiclouddb_spi.contract import Feed

__all__ = ["Strangers"]

_LATE: Final = datetime.max.replace(tzinfo=UTC)


class Strangers:
    """The children of a lineage that wait for strangers alone; made for one call, before it reads.

    Those start at once that positions show to wait in vain.

    Args:
        feed: Whose lineage.
        lineage: Moved on in place.
    """

    def __init__(self, feed: Feed, lineage: Lineage) -> None:
        self._feed, self._lineage = feed, lineage
        while (child := self._oldest()) is not None and self._is_passed(child):
            lineage.start(child.partition_id)
        self._before = {child.partition_id for child in _waiting_for_strangers(lineage)}

    def settle(self) -> bool:
        """All that is read was asked in this call, and has nothing: start a child that waits in vain.

        Returns:
            True when no child waits: the feed is idle.
        """
        child = self._oldest()
        if child is None:
            return True
        # One that was named in this call may be younger than the answers. A child that is looked for may lead
        # to it.
        if child.partition_id in self._before and not self._lineage.drained():
            self._lineage.start(child.partition_id)
        return False

    def _oldest(self) -> Waiting | None:
        """The one that begins first, by the position; the one named first, where that does not tell."""
        return min(_waiting_for_strangers(self._lineage), key=self._begins, default=None)

    def _begins(self, child: Waiting) -> datetime:
        times = [self._feed.describe(cursor).time for cursor in child.said]
        return min((time for time in times if time is not None), default=_LATE)

    def _is_passed(self, child: Waiting) -> bool:
        if child.named_at is None or self._lineage.drained():
            return False
        named_at = to_moment(child.named_at)
        times = [self._feed.describe(entry.cursor).time for entry in self._lineage.active()]
        return all(time is not None and time > named_at for time in times)


def _waiting_for_strangers(lineage: Lineage) -> list[Waiting]:
    """Children of which no parent is here; none where audits find what is missed."""
    if lineage.audited is not None:
        return []
    return [child for child in lineage.waiting() if not any(parent in lineage for parent in child.parents)]
