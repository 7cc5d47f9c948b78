"""Tests that batches of Azure Functions' trigger give the events that a reader gives of the same items."""

import json
import random
from collections import UserDict

import attrs
import pyarrow as pa
import pytest

from multiclouddb_api import Beginning, ErrorCategory, encode_json
from multiclouddb_api.arrow import events_to_arrow
from multiclouddb_conformance.refusals import refusal
from multiclouddb_cosmos import CosmosOptions, events_from_function
from multiclouddb_tables.sqlite import SqliteTable, merge_into_sqlite

from .world import ADDRESS

pytestmark = pytest.mark.usefixtures("hasty")
INVALID, UNREADABLE = ErrorCategory.INVALID_REQUEST, ErrorCategory.PROVIDER_ERROR
VALUES = [
    "", "é\U0001f600", "2023-07-04T12:00:00+00:00", 0, -1, 2**53, 1.5, 1e300, True, False, None, [], {},
    [1, [2.5, {"a": None}]], {"$map": {"$x": 1}, "b": ["c"]},
]  # fmt: skip
KEYS = ["a", "é", "", 1, -0.0, 1.5, True, None]


def pushed_of(world):
    """Return all documents as the trigger passes them, in `Document`s of azure.functions."""
    text = json.dumps(list(world.container.query_items_change_feed(start_time="Beginning")))
    return [UserDict(each) for each in json.loads(text)]


def read(world, **options):
    consumer = world.consumer(Beginning(), provider_options=CosmosOptions(mode="latest", **options))
    consumer.until_idle()
    return consumer


def fields(event):
    """Return the fields of an event that are claimed to be equal, and the texts of its documents and key."""
    plain = {
        field.name: getattr(event, field.name)
        for field in attrs.fields(type(event))
        if field.name != "partition_id"
    }
    documents = (event.key.components, event.new_item_state, event.old_item_state)
    return plain, [encode_json(each) for each in documents]


def written(world, count):
    """Write items of all types, some of them several times, and some marked as deleted."""
    chance = random.Random(76)
    for number in range(count):
        item = {"id": f"i{number}", "pk": chance.choice(KEYS), "n": number, "value": chance.choice(VALUES)}
        if chance.random() < 0.2:
            item["deleted"] = chance.random() < 0.5
        for _ in range(chance.choice([1, 1, 2])):
            world.container.upsert_item(item)


def by_id(events):
    return sorted(events, key=lambda event: event.event_id)


class TestEquality:
    @pytest.mark.parametrize("marker", [None, "/deleted"])
    def test_a_thousand_items_of_all_types(self, world, marker):
        written(world, 1000)
        pushed = events_from_function(pushed_of(world), "shop/orders", "/pk", delete_marker=marker)
        found = read(world, delete_marker=marker).events
        assert len(pushed) == len(found) == 1000
        assert list(map(fields, by_id(pushed))) == list(map(fields, by_id(found)))
        assert (sum(event.type == "DELETE" for event in found) > 50) is (marker is not None)
        name = {event.partition_id.rpartition(":")[0] for event in found}
        assert {event.partition_id for event in pushed} == {f"{each}:" for each in name}

    def test_a_nested_and_hierarchical_key(self, make_world):
        world = make_world(1, ["/tenant/name", "/user"])
        world.container.upsert_item({"id": "1", "n": 1, "tenant": {"name": "t"}, "user": 7.0})
        pushed = events_from_function(pushed_of(world), ADDRESS, ["/tenant/name", "/user"])
        assert list(map(fields, pushed)) == list(map(fields, read(world).events))
        assert pushed[0].key.components == {"tenant/name": "t", "user": 7, "id": "1"}


class TestRefusals:
    @pytest.mark.parametrize(
        "spoil",
        [
            lambda item: item.pop("_lsn"),
            lambda item: item.update(_lsn="7"),
            lambda item: item.pop("_etag"),
            lambda item: item.update(_ts="now"),
            lambda item: item.update(id=7),
            lambda item: item.update(deleted="yes"),
            lambda item: item.update(x="\ud83d"),
        ],
        ids=range(7),
    )
    def test_a_document_that_cannot_be_decoded(self, lone, spoil):
        lone.put("secret-1", "secret-2")
        documents = pushed_of(lone)
        spoil(documents[1])
        refused = refusal(
            UNREADABLE,
            lambda: events_from_function(documents, ADDRESS, "/pk", delete_marker="/deleted"),
            hidden=["secret"],
        )
        assert "nothing of the batch was returned" in refused.message

    def test_other_batches(self, lone):
        lone.put("a")
        documents = pushed_of(lone)
        lone.recreate()
        lone.put("a")
        change = {"current": dict(documents[0]), "metadata": {"operationType": "create", "lsn": 7}}
        for other, problem in [
            ([*documents, *pushed_of(lone)], "several containers"),
            ([change], "all versions"),
        ]:
            refusal(INVALID, lambda o=other: events_from_function(o, ADDRESS, "/pk"), problem)
        refusal(INVALID, lambda: events_from_function([7], ADDRESS, "/pk"), "documents", "int")
        assert events_from_function([], ADDRESS, "/pk") == []

    def test_other_arguments(self, lone):
        for key in ("", "pk", [], ["/pk", "x"]):
            refusal(INVALID, lambda k=key: events_from_function([], ADDRESS, k), "no path of a partition key")
        for name in ("orders", "shop/"):
            refusal(INVALID, lambda n=name: events_from_function([], n, "/pk"))
        refusal(INVALID, lambda: events_from_function([], ADDRESS, "/pk", delete_marker="x"), "delete_marker")


def rows(path):
    table = SqliteTable(path, "orders")
    found = [row for part in table.rows() for row in part.to_pylist()]
    return sorted((row["key"], row["state"], row["deleted"]) for row in found)


def test_a_page_sink_takes_pushed_events_and_then_pages(lone, tmp_path):
    path, other = tmp_path / "pushed.db", tmp_path / "read.db"

    def pushed(documents):
        events = events_from_function(documents, ADDRESS, "/pk", delete_marker="/deleted")
        merge_into_sqlite(pa.Table.from_batches([events_to_arrow(events)]), None, path, "orders", None)

    written(lone, 30)
    early = pushed_of(lone)
    pushed(early)
    lone.container.upsert_item({"id": "i1", "pk": early[1]["pk"], "n": 99, "deleted": True})
    pushed(pushed_of(lone))
    pushed(early)  # the trigger passes a batch again after a failure
    consumer = read(lone, delete_marker="/deleted")
    for page in consumer.pages:
        merge_into_sqlite(page, None, other, "orders", None)
    assert rows(path) == rows(other)
    merge_into_sqlite(consumer.pages[0], None, path, "orders", None)  # the mark names the same container
    lone.recreate()
    lone.put("a")
    refusal(INVALID, lambda: pushed(pushed_of(lone)), "created again")
