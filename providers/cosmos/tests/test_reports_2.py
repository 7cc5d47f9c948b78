"""Tries what was reported and announced in 2025 and 2026. Each test names its source."""

import orjson
import pytest
from azure.cosmos import PartitionKey

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ChangeType,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbKey,
    Now,
    ResourceAddress,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_cosmos import CosmosOptions, events_from_function
from multiclouddb_cosmos import client as client_room
from multiclouddb_cosmos_emulator import Fail, service

from .test_keys import drained
from .test_reports import LATEST, everything, ids
from .world import ADDRESS, DATABASE, READ

pytestmark = pytest.mark.usefixtures("hasty")
IMAGE = {"id": "other", "pk": "other", "_rid": "rid", "_etag": '"etag"', "_ts": 1}


@pytest.fixture
def changed(monkeypatch):
    """Return a function that changes the items of each page."""

    def install(change):
        parsed = client_room._parsed

        def told(text):
            body = parsed(text)
            body["Documents"] = [change(item) for item in body["Documents"]]
            return body

        monkeypatch.setattr(client_room, "_parsed", told)

    return install


def test_previous_images_are_no_documents_of_the_event(lone, changed):
    """Azure/azure-sdk-for-python issue 49054 and PR 49063: a preview adds them to replaces and deletes."""

    def with_image(item):
        kind = item["metadata"]["operationType"]
        kept = {name: value for name, value in item.items() if name != "current" or kind != "delete"}
        return kept if kind == "create" else {**kept, "previous": IMAGE}

    lone.put("a", "b")
    consumer = lone.consumer(include_native=True)
    lone.put("a", "c")
    lone.container.delete_item("b", "b")
    changed(with_image)
    found = {event.key["id"]: event for event in drained(consumer)}
    assert {name: event.type for name, event in found.items()} == {
        "a": ChangeType.UPDATE,
        "b": ChangeType.DELETE,
        "c": ChangeType.CREATE,
    }
    assert {name: event.new_item_state and event.new_item_state["n"] for name, event in found.items()} == {
        "a": 3,
        "b": None,
        "c": 4,
    }
    assert {name: event.native.get("previous") for name, event in found.items()} == {
        "a": IMAGE,
        "b": IMAGE,
        "c": None,
    }


@pytest.mark.parametrize("name", ["my orders", "größe", "a+b", "a%20b", "docs", "a'b", "x;y&z=1", "日本"])
def test_a_container_may_have_any_name(world, name):
    """Azure/azure-sdk-for-python issue 47503 and PR 49119: a space in it made the signature a wrong one."""
    container = world.database.create_container(name, PartitionKey("/pk"), offer_throughput=12_000)
    for number in range(10):
        container.upsert_item({"id": f"{number}", "pk": f"{number}"})
    address, client = ResourceAddress(DATABASE, name), world.client()
    start = client.read_changes(ChangeFeedRequest(address, Now())).continuation_token
    container.delete_item("1", "1")
    request = ChangeFeedRequest(address, FromContinuationToken(start))
    assert ids(client.iterate_changes(request, until_idle=True)) == ["1"]
    request = ChangeFeedRequest(address, Beginning(), provider_options=LATEST)
    assert len(list(client.iterate_changes(request, until_idle=True))) == 9
    keys = [MulticloudDbKey({"pk": "3", "id": each}, 1) for each in ("3", "3#", "4")]
    assert [row is not None for row in client.lookup(address, keys).values()] == [True, False, False]


def test_a_range_may_be_listed_in_several_revisions(world, monkeypatch):
    """Azure/azure-sdk-for-go issue 27246: during a split, a range came in two revisions."""
    listed = service._CALLS["ListPartitions"]

    def twice(call):
        reply = listed(call)
        if reply.body:
            body = orjson.loads(reply.body)
            first, *others = body["PartitionKeyRanges"]
            older = {**first, "maxExclusive": others[0]["maxExclusive"]}
            body["PartitionKeyRanges"] = [older, first, *others]
            reply.body = orjson.dumps(body)
        return reply

    monkeypatch.setattr(service, "_CALLS", {**service._CALLS, "ListPartitions": twice})
    written = world.fill(20)
    assert sorted(event.new_item_state["n"] for event in everything(world)) == written


@pytest.mark.parametrize("counts", [(2, 5), (5, 2), (1, 4), (4, 1)], ids=str)
@pytest.mark.parametrize("same_client", [True, False])
def test_partitions_of_an_earlier_container_are_not_read(make_world, counts, same_client):
    """Azure/azure-sdk-for-python PR 44080: the clients of a process share their lists of partitions."""
    world = make_world(counts[0])
    world.fill(20)
    first = world.client()
    request = ChangeFeedRequest(ADDRESS, Beginning(), provider_options=LATEST)
    assert len(list(first.iterate_changes(request, until_idle=True))) == 20
    world.recreate(counts[1])
    written = world.fill(40)
    client = first if same_client else world.client()
    found = client.iterate_changes(request, until_idle=True)
    assert sorted(event.new_item_state["n"] for event in found) == written


def test_a_latest_version_in_an_envelope_is_told(lone, changed):
    """Azure/azure-sdk-for-rust PR 4723: with another header, the service answers so."""
    lone.put("a")
    changed(lambda item: {"current": item, "metadata": {"lsn": item.pop("_lsn"), "crts": item["_ts"]}})
    refused = refusal(ErrorCategory.PROVIDER_ERROR, lambda: everything(lone), "cannot be decoded")
    assert refused.detail.skip_token


def test_an_index_container_has_its_own_ids(lone):
    """Microsoft Learn, Global secondary indexes (2025-05): `id` is the index's, `_id` that of the source."""
    lone.upsert(id="made", pk="p", _id="source")
    (event,) = everything(lone)
    assert event.new_item_state == {"id": "made", "pk": "p", "_id": "source"}
    assert dict(event.key) == {"pk": "p", "id": "made"}
    (row,) = lone.client().lookup(ADDRESS, [event.key]).values()
    assert row.new_item_state == event.new_item_state


@pytest.mark.parametrize("options", [None, LATEST], ids=["all_versions", "latest"])
@pytest.mark.parametrize("failure", [Fail(429, 3200, 0.01), Fail(404, 1002)], ids=["throttled", "session"])
def test_pages_between_refusals_are_whole(world, options, failure):
    """Azure/azure-sdk-for-java issue 43701: what was fetched before a 429 was skipped.

    Azure/azure-sdk-for-python issue 43914: 404/1002 from a region to which a partition has failed over.
    """
    consumer = world.consumer(provider_options=options or CosmosOptions(), max_page_size=3)
    written = world.fill(40)
    for number in range(8):
        world.server.faults.add(failure, READ, times=2, after=4 * number)
    for _ in range(60):
        page = consumer.read()
        consumer.restart()
        if page.idle:
            break
    assert sorted(consumer.markers) == written


@pytest.mark.parametrize(
    "change",
    [
        {"current": None, "previous": None, "metadata": {"operationType": "delete", "lsn": 7, "id": "a"}},
        {"metadata": {"operationType": "delete", "lsn": 7, "id": "a", "partitionKey": {"pk": "a"}}},
    ],
)
def test_changes_of_a_trigger_of_all_versions_are_told_from_documents(change):
    """Azure/azure-webjobs-sdk-extensions PR 1000, in 4.16.1: it is no preview any more."""
    problem = "are changes of the trigger's mode of all versions, which are not mapped"
    refusal(ErrorCategory.INVALID_REQUEST, lambda: events_from_function([change], ADDRESS, "/pk"), problem)


@pytest.mark.parametrize("failure", [Fail(403, 5300, message="Request blocked by Auth"), Fail(404, 1003)])
def test_a_refused_list_of_partitions_keeps_its_reason(world, failure):
    """Azure/azure-sdk-for-rust PR 4918: it became an error of the client's own, without a status."""
    world.server.faults.add(failure, "ListPartitions", times=None)
    category = {403: ErrorCategory.AUTHORIZATION_FAILED, 404: ErrorCategory.NOT_FOUND}[failure.status]
    code = f"{failure.status}/{failure.substatus}"
    refusal(category, lambda: world.client().read_changes(ChangeFeedRequest(ADDRESS, Now())), code)
