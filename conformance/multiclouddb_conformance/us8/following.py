"""Tests the three sentences of `multiclouddb_spi.contract` that make it possible to follow partitions.

These tests call the provider itself. The engine would notice a broken sentence only in rare histories.
"""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from multiclouddb_api import Now
from multiclouddb_conformance.collection import Collection
from multiclouddb_conformance.waiting import SOON, wait_until
from multiclouddb_spi import (
    Continue,
    Cursor,
    Deadline,
    Drained,
    Feed,
    FeedSpec,
    Outcome,
    Reader,
    decode_partition_id,
)

__all__ = ["TestFollowing"]

_MOST_BYTES = 1_000_000


@contextmanager
def _feed_of(collection: Collection) -> Iterator[Feed]:
    harness = collection.harness
    provider = harness.plugin.connect(harness.config(), None)
    try:
        options = None if provider.options_type is None else provider.options_type()
        spec = FeedSpec(collection.address, options=options)
        yield provider.open_feed(spec, Deadline.after(SOON))
    finally:
        provider.close()


def _name(feed: Feed, public_id: str) -> str:
    return decode_partition_id(public_id, feed.identity.provider_id, feed.identity.address).native


def _positions(feed: Feed) -> dict[str, Cursor]:
    """Return the present end of each open partition."""
    seeds = feed.start(Now(), None, Deadline.after(SOON))
    return {seed.partition_id: seed.cursor for seed in seeds if not seed.ended}


def _step(reader: Reader) -> tuple[int, Cursor, Outcome]:
    batch = reader.fetch(1, _MOST_BYTES, 0.0, Deadline.after(SOON))
    return len(batch), batch.cursor_after(len(batch)), batch.outcome


def _read(feed: Feed, name: str, cursor: Cursor) -> tuple[list[Cursor], Outcome]:
    """Read a partition to its end; return the position before each record, and the outcome."""
    before = list[Cursor]()
    reader = feed.open(name, cursor)

    def has_ended() -> Outcome | None:
        nonlocal cursor
        records, end, outcome = _step(reader)
        before.extend([cursor] * records)
        cursor = end
        return None if isinstance(outcome, Continue) else outcome

    try:
        return before, wait_until(has_ended) or Continue()
    finally:
        reader.close()


@pytest.mark.shows("Promise 2")
@pytest.mark.needs("split", "alone", "still")
class TestFollowing:
    """C1, C2 and C3: what a provider promises about partitions that split, merge and go away."""

    @pytest.mark.needs("merge")
    @pytest.mark.needs("merged_children")
    def test_a_merged_child_is_named_whole_at_the_end_of_each_parent(self, collection: Collection) -> None:
        pair = collection.split()
        with _feed_of(collection) as feed:
            assert not feed.names_late, "such a feed has no partition with several parents"
            positions = _positions(feed)
            merged = _name(feed, collection.merge(pair))
            parents = {_name(feed, each) for each in pair}
            for parent in parents:
                _, outcome = _read(feed, parent, positions[parent])
                assert isinstance(outcome, Drained)
                assert outcome.complete
                assert {child.partition_id for child in outcome.children} == {merged}
                assert all(set(child.parents) == parents for child in outcome.children)

    @pytest.mark.needs("merge")
    @pytest.mark.needs("merged_children")
    def test_each_parent_says_that_a_merged_child_starts_before_its_first_record(
        self, collection: Collection
    ) -> None:
        pair = collection.split()
        with _feed_of(collection) as feed:
            positions = _positions(feed)
            public_id = collection.merge(pair)
            merged = _name(feed, public_id)
            collection.fill(30)
            collection.split(public_id)
            starts = [
                each.oldest
                for each in feed.survey({}, Deadline.after(SOON)).present
                if each.partition_id == merged
            ]
            for parent in (_name(feed, each) for each in pair):
                _, outcome = _read(feed, parent, positions[parent])
                assert isinstance(outcome, Drained)
                starts += [child.cursor for child in outcome.children]
            counts = [len(_read(feed, merged, start)[0]) for start in starts]
            assert len(counts) >= 2
            assert counts[0]
            assert len(set(counts)) == 1, f"it has {counts} records, as listed and as its parents say"

    @pytest.mark.needs("trim")
    def test_retention_takes_ancestors_first(self, collection: Collection) -> None:
        ancestors = dict[str, set[str]]()
        generations = list[dict[str, Cursor]]()
        gone, there = set[str](), set[str]()
        with _feed_of(collection) as feed:
            for generation in range(6):
                generations.append(_positions(feed))
                parent = collection.partitions()[0]
                above = {_name(feed, parent)} | ancestors.get(_name(feed, parent), set())
                # The first child gets changes only in every second generation.
                children = collection.split(parent)
                ancestors |= {_name(feed, child): above for child in children}
                if generation % 2:
                    collection.fill(10, start=10 * generation)
                if generation % 3 == 2:
                    collection.trim()
                for asked in generations:
                    stated = feed.survey(asked, Deadline.after(SOON), expired=asked.keys())
                    gone |= stated.gone.keys()
                    there = {each.partition_id for each in stated.present}
                    assert not there & gone, "a partition that was gone exists"
                    for name in gone:
                        kept = there & ancestors.get(name, set())
                        assert not kept, f"{name} is gone, but not its ancestors {sorted(kept)}"

    @pytest.mark.needs("trim")
    def test_what_can_be_read_is_not_gone(self, collection: Collection) -> None:
        refused = dict[str, Cursor]()
        with _feed_of(collection) as feed:
            for _ in range(2):
                positions = _positions(feed)
                children = collection.split()
                positions |= _positions(feed)
                collection.fill(20)
                for child in children:
                    collection.split(child)
                asked = {**refused, **positions}
                expired = refused.keys() - positions.keys()
                for whole in (True, False):
                    stated = feed.survey(asked, Deadline.after(SOON), expired=expired, whole=whole)
                    assert not stated.gone.keys() & positions.keys()
                refused = positions
                collection.trim()

    @pytest.mark.needs("merge")
    @pytest.mark.needs("merged_children")
    def test_no_position_before_an_older_change_has_the_moment_of_a_merge(
        self, collection: Collection
    ) -> None:
        with _feed_of(collection) as feed:
            collection.split()
            pair = collection.split()
            positions = _positions(feed)
            collection.fill(30)
            collection.merge(pair)
            before, moments = list[int | None](), set[int | None]()
            for name in (_name(feed, each) for each in pair):
                cursors, outcome = _read(feed, name, positions[name])
                before += map(feed.moment, cursors)
                assert isinstance(outcome, Drained)
                moments |= {feed.moment(child.cursor) for child in outcome.children}
            assert before
            for moment in moments:
                assert moment is not None
                assert all(one is not None and one < moment for one in before)

    @pytest.mark.needs("merge")
    @pytest.mark.needs("merged_children")
    def test_an_idle_partition_passes_the_moment_of_a_merge(self, collection: Collection) -> None:
        with _feed_of(collection) as feed:
            collection.split()
            pair = collection.split()
            positions = _positions(feed)
            collection.merge(pair)
            parents = [_name(feed, each) for each in pair]
            _, outcome = _read(feed, parents[0], positions[parents[0]])
            assert isinstance(outcome, Drained)
            (begins,) = {feed.moment(child.cursor) for child in outcome.children}
            assert begins is not None
            idle = positions.keys() - set(parents)
            assert idle
            for name in idle:
                reader = feed.open(name, positions[name])

                def has_passed(reader: Reader = reader, begins: int = begins) -> bool:
                    _, cursor, _ = _step(reader)
                    moment = feed.moment(cursor)
                    assert moment is not None
                    return moment >= begins

                wait_until(has_passed, min(SOON, 10 * collection.harness.patience_seconds))
                reader.close()
