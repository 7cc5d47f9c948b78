"""Tests that no change is lost if a consumer of the embedded store is killed at any point."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    MulticloudDbClient,
    Now,
    ResourceAddress,
    StartPosition,
    connect,
)
from multiclouddb_conformance.loss import (
    Consumer,
    LossOracle,
    iterator_consumer,
    page_consumer,
    public_lineage,
    scripted_life,
)
from multiclouddb_embedded import Delete, EmbeddedStore, Put

pytestmark = pytest.mark.slow

ADDRESS = ResourceAddress("main", "items")


class World:
    """One collection in its own store, with native writes; remembers all partitions that ever existed."""

    def __init__(self, path: Path) -> None:
        self.store = EmbeddedStore(path, durable=False)
        self.store.create_collection("items", partitions=2)
        self.parents: dict[str, tuple[str, ...]] = {}
        self.note()

    def note(self) -> None:
        self.parents |= {each.partition_id: each.parents for each in self.store.partitions("items")}

    def write(self, writes: Sequence[tuple[str, dict[str, Any] | None]]) -> None:
        self.store.batch("items", [Delete(key) if doc is None else Put(key, doc) for key, doc in writes])

    def split(self) -> None:
        self.store.split("items", self.store.partitions("items")[0].partition_id)
        self.note()

    def merge(self) -> None:
        low, high = (each.partition_id for each in self.store.partitions("items")[-2:])
        self.store.merge("items", low, high)
        self.note()

    def trim(self) -> None:
        self.store.trim("items", max_count=0)

    def client(self) -> MulticloudDbClient:
        return connect(f"embedded://{self.store.path}")

    def lineage(self) -> Mapping[str, tuple[str, ...]]:
        with self.client() as client:
            return public_lineage(client, ADDRESS, self.parents)


@contextmanager
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        made = World(Path(folder) / "store.db")
        yield made
        made.store.close()


@pytest.mark.parametrize(
    ("start", "consumer", "size"),
    [
        pytest.param(Beginning(), page_consumer, 3, marks=pytest.mark.soak),
        pytest.param(Beginning(), iterator_consumer(), 1, marks=pytest.mark.soak),
        (Now(), page_consumer, 0),
        pytest.param(Now(), iterator_consumer(), 3, marks=pytest.mark.soak),
    ],
    ids=["pages", "iterator of single events", "pages from now", "iterator from now"],
)
def test_a_consumer_killed_after_every_step_loses_nothing(
    start: StartPosition, consumer: Consumer, size: int
) -> None:
    """The script contains splits, merges and a trim. The consumer is killed after each step that the consumer
    makes.

    `TestLoss` in the conformance suite uses other page sizes.
    """
    report = LossOracle(
        world=world,
        client=World.client,
        request=ChangeFeedRequest(ADDRESS, start, max_page_size=size),
        life=scripted_life(seed=1, rounds=4),
        consumer=consumer,
        lineage=World.lineage,
    ).run(max_kills=20)
    report.assert_all_kept()
