"""Tests that a notice keeps its place: after earlier events and before later events, on every read."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from multiclouddb_api import Capability, ChangeFeedPage, Gap, MulticloudDbError, RecordSkipped, SkipToOldest
from multiclouddb_conformance.collection import Collection, ids

__all__ = ["TestNotices"]


def _walk(
    collection: Collection, token: str, size: int = 0, *, restart: bool = False, **settings: Any
) -> list[tuple[str, ChangeFeedPage]]:
    """Return every page up to the current end, each with the token from which it was read."""
    found = []
    for page in collection.pages(token, size, **settings):
        found.append((token, page))
        token = page.continuation_token
        if restart:
            collection.restart()
    return found


def _gaps(page: ChangeFeedPage) -> set[str]:
    return {notice.partition_id for notice in page.notices if isinstance(notice, Gap)}


def _skipped(page: ChangeFeedPage) -> list[RecordSkipped]:
    return [notice for notice in page.notices if isinstance(notice, RecordSkipped)]


def _text(*pages: ChangeFeedPage) -> str:
    """Return the first letter of each event's key, and `!` for each notice, in order of delivery."""
    keys = [
        [str(value)[0] for event in page.events for value in event.key.components.values()] for page in pages
    ]
    return "".join(
        "".join(letters) + "!" * len(page.notices) for letters, page in zip(keys, pages, strict=True)
    )


def _skip_token(collection: Collection) -> str:
    """Return a token after a record that cannot be decoded."""
    collection.put("a", n=0)
    collection.harness.poison(collection.address, "a")
    collection.put("a", n=1)
    with pytest.raises(MulticloudDbError) as caught:
        collection.drain(collection.begin)
    token = caught.value.detail.skip_token
    assert token is not None
    return token


@pytest.mark.shows("Promise 13")
class TestNotices:
    """Events that come after a notice in a partition are never returned with the notice or before it."""

    @pytest.mark.needs("notices", "still")
    @pytest.mark.parametrize("restart", [False, True], ids=["one client", "a client a page"])
    @pytest.mark.parametrize("size", [1, 3, 0])
    def test_a_notice_comes_between_the_events_around_it(
        self, make_collection: Callable[..., Collection], size: int, restart: bool
    ) -> None:
        collection = make_collection(partitions=1)
        for name in ("a1", "a2", "!", "b1", "b2", "b3", "!", "!", "c1"):
            if name == "!":
                collection.harness.announce(collection.address)
            else:
                collection.put(name, n=1)
        walked = _walk(collection, collection.begin, size, restart=restart)
        pages = [page for _, page in walked]
        assert _text(*pages) == "aa!bbb!!c"
        for number, (token, _) in enumerate(walked):
            collection.restart()
            assert _text(*collection.pages(token)) == _text(*pages[number:])

    @pytest.mark.needs("trim")
    @pytest.mark.parametrize("size", [1, 0])
    def test_what_is_read_after_a_gap_comes_on_a_later_page(self, collection: Collection, size: int) -> None:
        collection.fill(10)
        collection.trim()
        collection.fill(10, start=10)
        pages = list(collection.pages(collection.begin, size, on_expired=SkipToOldest()))
        assert any(_gaps(page) for page in pages)
        assert sum(len(page.events) for page in pages) >= 10
        for page in pages:
            assert not _gaps(page) & {event.partition_id for event in page.events}

    @pytest.mark.needs("trim")
    def test_every_token_in_front_of_a_gap_reports_it_and_none_after_it_does(
        self, collection: Collection
    ) -> None:
        collection.fill(10)
        collection.trim()
        collection.fill(10, start=10)
        walked = _walk(collection, collection.begin, 3, restart=True, on_expired=SkipToOldest())
        with_gaps = [(token, page) for token, page in walked if _gaps(page)]
        assert with_gaps
        for token, page in with_gaps:
            before = [_gaps(each) for each in collection.pages(token, on_expired=SkipToOldest())]
            assert set().union(*before) >= _gaps(page)
            rest = collection.pages(page.continuation_token, on_expired=SkipToOldest())
            later = [_gaps(each) for each in rest]
            assert not set().union(*later) & _gaps(page)

    @pytest.mark.needs("poison", "key_order")
    @pytest.mark.requires(Capability.CHANGE_FEED_ALL_VERSIONS)
    def test_a_skipped_record_is_reported_before_anything_after_it_is_read(
        self, collection: Collection
    ) -> None:
        token = _skip_token(collection)
        skipped = []
        for _ in range(2):  # a consumer that crashes while it processes the page receives the page again
            collection.restart()
            page = collection.page(token)
            skipped.append(_skipped(page))
            assert {notice.partition_id for notice in skipped[-1]}.isdisjoint(
                event.partition_id for event in page.events
            )
            assert not page.idle
        assert skipped[0] == skipped[1]
        assert len(skipped[0]) == 1
        rest = list(collection.pages(page.continuation_token))
        assert [_skipped(each) for each in rest] == [[] for _ in rest]
        assert len({name for each in rest for name in ids(each.events)}) == 1
