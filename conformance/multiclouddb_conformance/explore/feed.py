"""The feed of the model, which the engine asks as it asks a provider's feed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

from multiclouddb_api import ResourceAddress
from multiclouddb_conformance.explore.world import BrokenError, Rules, World, survey_of
from multiclouddb_spi import (
    Cursor,
    Deadline,
    Feed,
    FeedIdentity,
    FeedSpec,
    FeedStart,
    Position,
    Reader,
    Seed,
    Survey,
)
from multiclouddb_spi.continuation.lineage import Lineage

__all__ = ["WorldFeed"]

_ADDRESS: Final = ResourceAddress(collection="items")


class WorldFeed(Rules, Feed):
    """Answers for the service of a world. The engine only asks it; the consumer takes the records."""

    spec, identity = FeedSpec(_ADDRESS), FeedIdentity("model", _ADDRESS)

    def __init__(self, world: World, lineage: Lineage) -> None:
        super().__init__(world.bounds.kind)
        self._world, self._lineage = world, lineage

    @property
    def numbers(self) -> dict[str, int | None]:
        """Map each name in a notice to a partition, and the name of the collection to None."""
        found: dict[str, int | None] = {self.public_id(str(i)): i for i in range(len(self._world.parts))}
        return found | {str(_ADDRESS): None}

    def survey(
        self,
        asked: Mapping[str, Cursor],
        deadline: Deadline,
        *,
        expired: Collection[str] = frozenset(),
        since: datetime | None = None,
        whole: bool = True,
    ) -> Survey:
        for name, position in asked.items():
            entry = self._lineage.at(name)
            if position != (entry.cursor if entry is not None else None):
                raise BrokenError(f"the service is asked about {name} at {position}, but it is {entry}")
        return survey_of(self._world, asked, expired, whole=whole)

    def describe(self, cursor: Cursor) -> Position:
        return Position(str(cursor), None)

    def clock(self, deadline: Deadline) -> datetime | None:
        raise AssertionError

    def start(self, position: FeedStart, partition_id: str | None, deadline: Deadline) -> list[Seed]:
        raise AssertionError

    def open(self, partition_id: str, cursor: Cursor, until: Cursor | None = None) -> Reader:
        raise AssertionError
