"""Tests random lives of a table, with kills between any two steps of a commit, against an oracle."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any, Final

import pytest

from multiclouddb_api import (
    BackfillDone,
    ChangeFeedPage,
    SnapshotStarted,
)
from multiclouddb_conformance.sink_harness import (
    ADDRESS,
    Death,
    SinkHarness,
    applied,
    documents,
    drawn,
    events,
    page,
    read,
)
from multiclouddb_spi import encode_partition_id

__all__ = ["FeedOfOnePartition", "TestLives"]

LIVES: Final = [
    pytest.param(0, 3, id="short"),
    *(pytest.param(seed, 10, marks=pytest.mark.soak, id=str(seed)) for seed in range(12)),
]


class FeedOfOnePartition:
    """A collection whose changes expire, and its feed with one partition."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.order, self.plans = dice, 0, 0
        self.live: dict[str, Any] = {}
        self.pages: list[ChangeFeedPage] = []

    def write(self, count: int) -> None:
        """Change documents; a page has several changes of a key."""
        changes = drawn(self.dice, self.order + 1, count)
        self.order += count
        self.live, gone = {**self.live, **applied(changes)[0]}, applied(changes)[1]
        for key in gone:
            self.live.pop(key, None)
        cuts = sorted({0, count, *(self.dice.randrange(count) for _ in range(2))})
        self.pages += [page(events(*changes[first:last])) for first, last in pairwise(cuts)]

    def lose(self) -> None:
        """Expire what was not read, and begin a snapshot, whose rows come mixed with later changes."""
        self.plans += 1
        name, floor = f"snapshot:s{self.plans}", f"{self.order:06d}~"
        plan = encode_partition_id("provider", ADDRESS, "first", name)
        scanned = events(
            *((key, 0, document) for key, document in self.live.items()),
            mark=f"{name}:", backfilled=True, floor=floor,
        )  # fmt: skip
        self.dice.shuffle(scanned)
        half = len(scanned) // 2
        self.pages = []
        self.write(4)
        later, self.pages = self.pages, []
        self.pages = [
            page([], SnapshotStarted(floor, plan)),
            page(scanned[:half]),
            *later,
            page(scanned[half:], BackfillDone(plan, floor)),
        ]


class TestLives:
    """Random lives, with kills between any two steps of a commit, against an oracle."""

    @pytest.mark.parametrize(("seed", "rounds"), LIVES)
    def test_life(self, sink: SinkHarness, seed: int, rounds: int) -> None:
        dice = random.Random(seed)
        source, delivered = FeedOfOnePartition(dice), list[ChangeFeedPage]()
        for number in range(rounds):
            # Also the shortest life has an outage and a death in it.
            if dice.random() < 0.2 or number == 1:
                source.lose()
                # An older query may not go on beside a snapshot.
                delivered = []
            source.write(dice.randrange(5, 25))
            if dice.random() < 0.4 or number == 1:
                sink.dies(dice, dice.choice([0.02, 0.1, 0.3]))
            while source.pages:
                repeated = dice.choice(delivered) if delivered and dice.random() < 0.2 else source.pages[0]
                try:
                    sink.merge(repeated)
                except Death:
                    sink.dies(None)
                    continue
                if repeated is source.pages[0]:
                    delivered.append(source.pages.pop(0))
            sink.dies(None)
            assert documents(sink) == source.live
        assert all(row["order_key"] for row in read(sink).values())
