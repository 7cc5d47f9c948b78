"""Tests snapshots of a database: its collections are dropped, renamed and created while they are scanned."""

from collections import Counter

import bson
import pytest
from bson import Int64, ObjectId

from multiclouddb_api import (
    BackfillDone,
    ClientConfig,
    Dropped,
    EntireDatabase,
    ErrorCategory,
    ErrorReason,
    Renamed,
    Resnapshot,
    ResourceAddress,
    Snapshot,
    SnapshotOrder,
    SnapshotStarted,
    connect,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_mongo import MongoOptions
from multiclouddb_mongo.provider import PLUGIN, MongoProvider
from multiclouddb_spi import Deadline, FeedSpec, InvalidCursor

from .monitor import read, walk

ORDERED = Snapshot(SnapshotOrder.ORDERED)
SCOPE = {"scope": EntireDatabase()}
NAMES = ("a", "b", "c")


@pytest.fixture
def native(one, database):
    """Return a database of three collections with three documents each."""
    made = one.client()[database]
    for name in NAMES:
        made[name].insert_many({"_id": number, "of": name} for number in range(3))
    return made


@pytest.fixture
def whole(native):
    return ResourceAddress(database=native.name)


def scan(one, whole, between, *, fresh, size=1, **asked):
    """Read until the feed is idle, and call `between` after each page; return the events and the notices."""
    events, notices, place = [], [], ORDERED
    client = connect(one.uri())
    try:
        for number in range(500):
            page = read(client, whole, place, size, **SCOPE, **asked)
            place, events, notices = (
                page.continuation_token,
                [*events, *page.events],
                [*notices, *page.notices],
            )
            if page.idle:
                return events, notices
            if fresh:
                client.close()
                client = connect(one.uri())
            between(number)
    finally:
        client.close()
    raise AssertionError("not idle")


def found_in(events):
    """Return the documents of each collection."""
    found = {}
    for event in events:
        found.setdefault(event.address.collection, {})[event.key["_id"]] = event.new_item_state
    return found


def documents(native):
    return {
        name: {each["_id"]: each for each in native[name].find()} for name in native.list_collection_names()
    }


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("after", range(0, 10, 2))
def test_a_collection_is_dropped_after_any_page(one, native, whole, after, fresh):
    def drop(number):
        if number == after:
            native["b"].drop()

    events, notices = scan(one, whole, drop, fresh=fresh)
    found, wanted = found_in(events), documents(native)
    assert {name: found[name] for name in wanted} == wanted
    assert [notice for notice in notices if isinstance(notice, Dropped)] == [Dropped(f"{native.name}/b")]
    assert sum(isinstance(notice, BackfillDone) for notice in notices) == 1


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("after", range(0, 10, 2))
def test_a_collection_is_created_again_after_any_page(one, native, whole, after, fresh):
    def again(number):
        if number == after:
            native["b"].drop()
            native["b"].insert_many([{"_id": 1, "of": "new"}, {"_id": 9, "of": "new"}])

    events, _ = scan(one, whole, again, fresh=fresh)
    found, wanted = found_in(events), documents(native)
    assert {name: found[name] for name in "ac"} == {name: wanted[name] for name in "ac"}
    assert wanted["b"].items() <= found["b"].items()


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("after", range(0, 10, 2))
def test_a_renamed_collection_has_each_document_under_one_name_or_another_snapshot_begins(
    one, native, whole, after, fresh
):
    """Names do not decide what is scanned next, so no document is left out."""

    def rename(number):
        if number == after:
            native["b"].rename("0")

    events, notices = scan(one, whole, rename, fresh=fresh, on_expired=Resnapshot(ORDERED))
    seen = {(event.new_item_state["of"], event.key["_id"]) for event in events}
    assert seen == {(name, number) for name in NAMES for number in range(3)}
    begun = sum(isinstance(notice, SnapshotStarted) for notice in notices)
    assert (Renamed(f"{native.name}/b", f"{native.name}/0") in notices) == (begun == 1)
    if begun == 2:
        assert found_in(events[-9:]) == documents(native)


@pytest.mark.parametrize("fresh", [False, True])
def test_collections_that_are_renamed_before_their_turn_have_their_documents(one, native, whole, fresh):
    """Their new names come before those that were scanned already."""
    for number in range(20):
        native[f"m{number:02}"].insert_one({"_id": number})
    listed = {each["info"]["uuid"]: each["name"] for each in native.list_collections()}
    last = [listed[uuid] for uuid in sorted(listed, key=bytes)[-6:]]

    def rename(number):
        if number == 2:
            for name in last:
                native[name].rename(f"0{name}")

    events, notices = scan(one, whole, rename, fresh=fresh)
    assert found_in(events) == documents(native)
    assert sum(isinstance(notice, Renamed) for notice in notices) == len(last)


def test_a_rename_within_a_collection_that_is_read_ends_the_snapshot(one, native, whole):
    """Nothing of the old name can be read any more, and the rows after the position have another name."""

    def rename(number):
        if number == 1:
            for name in NAMES:
                native[name].rename(f"{name}2")

    error = refusal(
        ErrorCategory.CHECKPOINT_EXPIRED, lambda: scan(one, whole, rename, fresh=True), "was renamed"
    )
    assert error.detail.reason is ErrorReason.REPLACED


@pytest.mark.parametrize("size", [1, 0])
def test_names_and_ids_of_all_kinds(one, database, reader, size):
    native = one.client()[database]
    ids = [1, Int64(2**40), "x", ObjectId(), b"b", {"a": 1}, 1.5]
    for name in ("a/b", "a.b", "a:b", "é x", 'q"uote', "0"):
        native[name].insert_many({"_id": each} for each in ids)
    native.create_collection("clustered", clusteredIndex={"key": {"_id": 1}, "unique": True})
    native["clustered"].insert_many({"_id": number} for number in range(5))
    pages = list(walk(reader, ResourceAddress(database=database), Snapshot(segments=3), size, **SCOPE))
    rows = [event for page in pages for event in page.events]
    assert Counter(event.address.collection for event in rows) == {
        **dict.fromkeys(("a/b", "a.b", "a:b", "é x", 'q"uote', "0"), len(ids)),
        "clustered": 5,
    }
    assert len({event.event_id for event in rows}) == len(rows)


def test_what_the_stream_does_not_have_is_not_scanned(native, whole, reader):
    native.create_collection("view", viewOn="a", pipeline=[])
    native.create_collection("times", timeseries={"timeField": "t"})
    native["times"].insert_one({"t": bson.datetime.datetime(2026, 1, 1)})
    pages = list(walk(reader, whole, Snapshot(), **SCOPE))
    assert set(found_in(event for page in pages for event in page.events)) == set(NAMES)


def test_a_database_that_does_not_exist_yet(one, database, reader):
    whole, options = ResourceAddress(database=database), MongoOptions(allow_missing=True)
    asked = {**SCOPE, "provider_options": options}
    *_, last = walk(reader, whole, Snapshot(), **asked)
    one.client()[database]["c"].insert_one({"_id": 1})
    pages = list(walk(reader, whole, last.continuation_token, **asked))
    assert [event.key["_id"] for page in pages for event in page.events] == [1]


def test_many_collections_need_small_tokens_and_a_few_commands_each(one, database, ours):
    client, commands = ours
    native = one.client()[database]
    for number in range(200):
        native[f"collection_with_a_long_name_{number:03}"].insert_one({"_id": number})
    pages = list(walk(client, ResourceAddress(database=database), ORDERED, 7, **SCOPE))
    assert sorted(event.key["_id"] for page in pages for event in page.events) == list(range(200))
    assert max(len(page.continuation_token) for page in pages) < 1500
    assert len(commands.bodies("find")) < 200 * 3
    assert len(commands.bodies("listCollections")) < 200 * 1.5


@pytest.mark.parametrize(
    "rest",
    [
        None, [], [0, ""], [0, "", 7], [-1, "", None], [True, "", None], [0, "x", None],
        [0, "", ["", 0, 1, 0]], [0, "", ["", 0, 1, 0, "c"]], [0, "", ["", 0, 1, 0, "c", "x"]],
    ],
)  # fmt: skip
def test_a_rest_of_another_shape_is_refused(one, native, whole, rest):
    provider = PLUGIN.connect(ClientConfig("mongo", {"url": one.uri()}), None)
    spec = FeedSpec(whole, EntireDatabase(), options=MongoOptions())
    feed = provider.open_feed(spec, Deadline.after(30))
    plan = feed.snapshot(None, Deadline.after(30))
    with pytest.raises(InvalidCursor):
        feed.segments(plan.scan, rest, 1, Deadline.after(30))
    with pytest.raises(InvalidCursor):
        feed.open_segment(plan.scan.segment("0"))
    provider.close()


@pytest.mark.parametrize("segments", [1, 3])
def test_each_collection_has_its_own_shard_key(one, native, whole, reader, segments, monkeypatch):
    monkeypatch.setattr(MongoProvider, "_server", lambda provider: (False, True))
    keys = {"a": {"of": 1, "_id": 1}, "b": {"x/y": 1}}
    config = native.client.config.collections
    config.insert_many({"_id": f"{native.name}.{name}", "key": key} for name, key in keys.items())
    try:
        pages = list(walk(reader, whole, Snapshot(segments=segments), 2, **SCOPE))
    finally:
        config.delete_many({"_id": {"$in": [f"{native.name}.{name}" for name in keys]}})
    rows = [event for page in pages for event in page.events]
    assert found_in(rows) == documents(native)
    assert {event.address.collection: list(event.key.components) for event in rows} == {
        "a": ["of", "_id"],
        "b": ["_id"],
        "c": ["_id"],
    }
