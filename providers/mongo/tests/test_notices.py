"""Tests on a real server that a notice keeps its place, and that many consumers share one client."""

import functools
from contextlib import ExitStack

import pytest

from multiclouddb_api import (
    BackfillDone,
    Dropped,
    EntireCluster,
    EntireDatabase,
    ErrorCategory,
    Gap,
    Invalidated,
    Now,
    Renamed,
    Resnapshot,
    ResourceAddress,
    SkipToOldest,
    connect,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_mongo import MongoOptions

from .monitor import in_scope, keys, read, walk

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


def by_out(native, name):
    native["other"].aggregate([{"$out": name}])


def by_rename(native, name):
    native["other"].rename(name, dropTarget=True)


def by_rename_of_another_database(native, name):
    elsewhere = native.client[f"{native.name}-2"]["other"]
    elsewhere.insert_many(native["other"].find())
    native.client.admin.command(
        {"renameCollection": f"{native.name}-2.other", "to": f"{native.name}.{name}", "dropTarget": True}
    )
    native.client.drop_database(f"{native.name}-2")


def by_convert_to_capped(native, name):
    native.command({"convertToCapped": name, "size": 100_000})


class TestAnotherCollectionTakesTheName:
    """The documents of a collection that is renamed over the watched one have no changes."""

    HOWS = (by_out, by_rename, by_rename_of_another_database, by_convert_to_capped)

    @pytest.fixture(params=HOWS, ids=lambda how: how.__name__)
    def replaced(self, one, database, request):
        """Return the address, and a token before the collection was replaced."""
        native = one.client()[database]
        native["c"].insert_many({"_id": number} for number in range(3))
        native["other"].insert_many({"_id": number, "n": 1} for number in range(2, 5))
        address = ResourceAddress(database, "c")
        with connect(one.uri()) as client:
            token = read(client, address, Now(), provider_options=FOLLOW).continuation_token
        native["c"].insert_one({"_id": "before"})
        request.param(native, "c")
        native["c"].insert_one({"_id": "after"})
        return address, token, {document["_id"] for document in native["c"].find()}

    def test_it_is_told_and_the_feed_does_not_go_on_as_if_it_had_everything(self, one, replaced):
        address, token, _ = replaced
        with connect(one.uri()) as client:
            page = read(client, address, token, provider_options=FOLLOW)
            assert keys(page.events) == ["before"]
            while not page.notices:
                page = read(client, address, page.continuation_token, provider_options=FOLLOW)
        (notice,) = page.notices
        assert isinstance(notice, Renamed)
        assert notice.new_name == f"{address.database}/{address.collection}"
        for _ in range(2):
            with connect(one.uri()) as client:
                act = functools.partial(
                    read, client, address, page.continuation_token, provider_options=FOLLOW
                )
                refusal(ErrorCategory.CHECKPOINT_EXPIRED, act, "renamed", "Resnapshot")

    @pytest.mark.parametrize("how", HOWS, ids=lambda how: how.__name__)
    def test_a_new_snapshot_has_its_documents(self, one, database, how):
        """The client that has read the earlier collection reads the other one."""
        native, address = one.client()[database], ResourceAddress(database, "c")
        native["c"].insert_many({"_id": number} for number in range(3))
        native["other"].insert_many({"_id": number, "n": 1} for number in range(2, 5))
        asked = {"provider_options": FOLLOW, "on_expired": Resnapshot()}
        with connect(one.uri()) as client:
            token = read(client, address, Now(), **asked).continuation_token
            how(native, "c")
            native["c"].insert_one({"_id": "after"})
            pages = list(walk(client, address, token, **asked))
        seen = {event.key["_id"] for page in pages for event in page.events}
        assert {document["_id"] for document in native["c"].find()} <= seen
        assert any(isinstance(notice, BackfillDone) for page in pages for notice in page.notices)

    def test_it_may_have_been_renamed_away_before(self, one, database):
        native, address = one.client()[database], ResourceAddress(database, "c")
        native["c"].insert_one({"_id": 1})
        native["other"].insert_one({"_id": 2})
        asked = {"provider_options": FOLLOW, "on_expired": Resnapshot()}
        with connect(one.uri()) as client:
            token = read(client, address, Now(), **asked).continuation_token
            native["c"].rename("old")
            native["other"].rename("c")
            pages = list(walk(client, address, token, **asked))
        assert 2 in keys(event for page in pages for event in page.events)
        renamed = [
            notice.new_name for page in pages for notice in page.notices if isinstance(notice, Renamed)
        ]
        assert renamed == [f"{database}/old", f"{database}/c"]

    def test_who_wants_to_skip_is_told_of_the_gap_once(self, one, replaced):
        address, token, _ = replaced
        asked = {"provider_options": FOLLOW, "on_expired": SkipToOldest()}
        with connect(one.uri()) as client:
            pages = list(walk(client, address, token, **asked))
        assert keys(pages[-1].events) in ([], ["after"])
        assert "after" in [key for page in pages for key in keys(page.events)]
        assert sum(isinstance(notice, Gap) for page in pages for notice in page.notices) == 1
