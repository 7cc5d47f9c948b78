"""Runs the loss oracle on a script with a split, a merge and a trim."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import attrs
import pytest

from multiclouddb_api import Beginning, Capability, Now, ResourceAddress, StartPosition
from multiclouddb_conformance.collection import feed_request
from multiclouddb_conformance.harness import CollectionKind, Harness, Write
from multiclouddb_conformance.loss import (
    Consumer,
    LossOracle,
    iterator_consumer,
    page_consumer,
    scripted_life,
)

__all__ = ["TestLoss"]

_numbers: Final = itertools.count()


@attrs.define
class _World:
    """A collection for `scripted_life`. It omits actions that the service does not support."""

    harness: Harness
    address: ResourceAddress

    def write(self, writes: Sequence[tuple[str, dict[str, Any] | None]]) -> None:
        parts = [[Write(key, document) for key, document in writes]]
        if not self.harness.can_batch:
            parts = [[write] for write in parts[0]]
        for part in parts:
            self.harness.write(self.address, part)

    def split(self) -> None:
        if self.harness.can_split:
            with self.harness.connect() as client:
                name = client.list_physical_partitions(self.address)[0]
            self.harness.split(self.address, name)

    def merge(self) -> None:
        if not (self.harness.can_split and self.harness.can_merge):
            return
        with self.harness.connect() as client:
            before = client.list_physical_partitions(self.address)
            self.harness.split(self.address, before[-1])
            after = client.list_physical_partitions(self.address)
        pair = [name for name in after if name not in before]
        self.harness.merge(self.address, *pair)

    def trim(self) -> None:
        if self.harness.can_trim and self.harness.can_read_past_trim:
            self.harness.trim(self.address)


def _run(harness: Harness, start: StartPosition, consumer: Consumer, size: int) -> None:
    @contextmanager
    def world() -> Iterator[_World]:
        name = f"life{next(_numbers)}"
        yield _World(harness, harness.create(name, CollectionKind.PLAIN, harness.partitions))

    # mypy uses the type of the converter's argument as the type of the field.
    life: Any = scripted_life(seed=size, rounds=3)
    LossOracle[_World](
        world=world,
        client=lambda _: harness.connect(),
        request=lambda world: feed_request(harness, world.address, start, size),
        life=life,
        consumer=consumer,
        idle_pages=harness.idle_pages,
        key_order=harness.can_key_order,
        latest=not harness.capabilities.is_supported(Capability.CHANGE_FEED_ALL_VERSIONS),
    ).run(max_kills=4).assert_all_kept()


@pytest.mark.shows("FR-065", "Promise 1")
class TestLoss:
    """A consumer sees every change, wherever it is killed and resumed."""

    def test_nothing_is_lost_by_a_consumer_of_pages(self, harness: Harness) -> None:
        _run(harness, Now(), page_consumer, 1)

    def test_nothing_is_lost_by_an_iterator(self, harness: Harness) -> None:
        _run(harness, Now(), iterator_consumer(), 3)

    @pytest.mark.requires(Capability.CHANGE_FEED_BEGINNING)
    @pytest.mark.needs("alone")
    def test_nothing_is_lost_from_the_beginning(self, harness: Harness) -> None:
        _run(harness, Beginning(), page_consumer, 2)
