"""Resolves the start of a feed with one read of each range. Several reads run at the same time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import attrs

from multiclouddb_cosmos.partitions import read_settled
from multiclouddb_cosmos.position import Place
from multiclouddb_cosmos.ranges import KeyRange
from multiclouddb_cosmos.source import Source
from multiclouddb_spi import Deadline

_AT_A_TIME: Final = 16


@attrs.define(eq=False)
class Resolution:
    """Collects the start positions during one call."""

    # If the call is tried again, only the positions that are still missing are read.

    source: Source  # the feed
    found: dict[KeyRange, Place] = attrs.field(factory=dict)  # the positions that have been found so far

    def at_now(self, wanted: list[KeyRange], deadline: Deadline) -> dict[KeyRange, Place]:
        """Divide the ranges by the current partitions, and return the end of each part."""

        def end(piece: KeyRange) -> Place:
            if piece not in self.found:
                # Changes after the position can be as old as the request. While its answer is on the way,
                # other threads may learn a later time.
                now = self.source.calls.now()
                lsn = self.source.end(piece, deadline)
                self.found[piece] = Place(lsn, None if now is None else int(now.timestamp()))
            return self.found[piece]

        return self.each(wanted, end)

    def each(self, wanted: list[KeyRange], read: Callable[[KeyRange], Place]) -> dict[KeyRange, Place]:
        """Divide the ranges at the borders of the current partitions, and return a position for each part."""
        if len(wanted) < 2:
            answers = [read_settled(self.source, each, read) for each in wanted]
        else:
            with ThreadPoolExecutor(min(_AT_A_TIME, len(wanted))) as pool:
                answers = list(pool.map(lambda each: read_settled(self.source, each, read), wanted))
        return {piece: place for answer in answers for piece, place in answer.items()}
