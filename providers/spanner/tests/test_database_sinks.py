"""Tests what a table of one collection does with the pages of a whole database."""

import pytest

from multiclouddb_api import (
    BackfillDone,
    Beginning,
    ErrorCategory,
    FeedEnded,
    ResourceAddress,
    Snapshot,
    SnapshotOrder,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_tables.sqlite import merge_into_sqlite

from .feeds import Feed
from .test_database import database


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "copy.db"


def merge(copy, page):
    merge_into_sqlite(page, None, copy, "items", None)


def refused(copy, page, *words):
    refusal(ErrorCategory.INVALID_REQUEST, lambda: merge(copy, page), *words)


def test_a_page_of_two_tables_is_refused_by_their_names(copy):
    with database() as shop:
        shop.both(1)
        refused(copy, shop.page(Beginning()), f"{shop.scripted.name}/items", f"{shop.scripted.name}/orders")


def test_a_page_of_another_table_is_refused_by_its_name(copy):
    with database() as shop:
        shop.write("items", ("k1", 1))
        first = shop.page(Beginning())
        merge(copy, first)
        shop.write("orders", ("k1", 1, 1), names=("a", "b", "n"))
        names = f"{shop.scripted.name}/items", f"{shop.scripted.name}/orders"
        refused(copy, shop.page(first.continuation_token), *names)


def test_changes_of_a_database_do_not_follow_the_rows_of_a_table_alone(copy):
    """The rows are of the table's feed, and the changes are of the feed of its database."""
    with database() as shop:
        shop.write("items", ("k1", 1))
        token = shop.token()
        shop.address = ResourceAddress(shop.scripted.name, "items")
        page = Feed.page(shop, Snapshot(changes=False))
        merge(copy, page)
        while not any(isinstance(notice, FeedEnded) for notice in page.notices):
            page = Feed.page(shop, page.continuation_token)
            merge(copy, page)
        shop.write("items", ("k2", 2))
        refused(copy, shop.page(token), f"spanner {shop.scripted.name}", "is filled from", "items")


def test_the_rows_of_a_database_are_refused_and_none_is_buried(copy):
    """The table is never told that the scan is complete."""
    with database() as shop:
        shop.both(1)
        shop.both(2)
        pages = list(shop.pages(Snapshot(SnapshotOrder.ORDERED), 1))
        started, first, *others = (page for page in pages if page.events or page.notices)
        merge(copy, started)
        merge(copy, first)
        assert [notice for page in (started, first) for notice in page.notices] == [*started.notices]
        assert any(isinstance(notice, BackfillDone) for notice in others[-1].notices)
        for page in others:
            refused(copy, page, f"spanner {shop.scripted.name}", "fill a new table for each collection")
