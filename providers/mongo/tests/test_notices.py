"""Tests on a real server that a notice keeps its place, and that many consumers share one client."""

from contextlib import ExitStack

import pytest

from multiclouddb_api import (
    Dropped,
    EntireCluster,
    EntireDatabase,
    Invalidated,
    Now,
    Renamed,
    ResourceAddress,
    connect,
)
from multiclouddb_mongo import MongoOptions

from .monitor import in_scope, keys, read

FOLLOW = MongoOptions(after_invalidate="follow")


def pages_of(uri, token, *, restart=False, **asked):
    """Return the pages that are not empty, each with the token before it, up to the first idle page."""
    found = []
    with ExitStack() as stack:
        reader = stack.enter_context(connect(uri))
        for _ in range(200):
            page = read(reader, place=token, **asked)
            if page.events or page.notices:
                found.append((token, [*keys(page.events), *page.notices]))
            if page.idle:
                return found
            token = page.continuation_token
            if restart:
                stack.close()
                reader = stack.enter_context(connect(uri))
    raise AssertionError("not idle")


def in_order(pages):
    return [each for _, told in pages for each in told]


def check_every_token(uri, pages, **asked):
    """Check that a new process can start from any token and gets the rest in the same order."""
    for number, (token, _) in enumerate(pages):
        assert in_order(pages_of(uri, token, **asked)) == in_order(pages[number:])


@pytest.mark.parametrize(
    ("size", "restart", "scope"), [(0, False, EntireDatabase()), (1, True, EntireCluster())], ids=str
)
def test_each_of_several_facts_keeps_its_place(one, reader, database, size, restart, scope):
    native = one.client()[database]
    native.create_collection("c")
    native.create_collection("stays")  # a database without a collection does not exist
    asked = in_scope(scope, ResourceAddress(database, "c")) | {"size": size}
    begin = read(reader, place=Now(), **asked).continuation_token
    native["c"].insert_many([{"_id": 1}, {"_id": 2}])
    native["c"].rename("d")
    native["d"].insert_one({"_id": 3})
    native["d"].drop()
    native["c"].insert_one({"_id": 4})
    native["c"].drop()
    pages = pages_of(one.uri(), begin, restart=restart, **asked)
    told = [Renamed(f"{database}/c", f"{database}/d"), Dropped(f"{database}/d"), Dropped(f"{database}/c")]
    assert in_order(pages) == [1, 2, told[0], 3, told[1], 4, told[2]]
    check_every_token(one.uri(), pages, **asked)


@pytest.mark.parametrize("size", [1, 0])
def test_a_process_a_page_has_every_notice_in_its_place(one, reader, database, size):
    """Three collections have one name, one after another."""
    native = one.client()[database]
    native.create_collection("c")
    asked = {"address": ResourceAddress(database, "c"), "size": size, "provider_options": FOLLOW}
    begin = read(reader, place=Now(), **asked).continuation_token
    for life in range(3):
        native["c"].insert_many([{"_id": f"{life}.{number}"} for number in range(2)])
        if life < 2:
            native["c"].drop()
            native.create_collection("c")
    pages = pages_of(one.uri(), begin, restart=True, **asked)
    gone = [Dropped(f"{database}/c"), Invalidated("the server invalidated the stream")]
    assert in_order(pages) == ["0.0", "0.1", *gone, "1.0", "1.1", *gone, "2.0", "2.1"]
    check_every_token(one.uri(), pages, **asked)
