"""Tests that a look-up finds each item of a feed, whatever its key."""

import contextlib
import itertools

import orjson
import pytest
from azure.cosmos import ContainerProxy

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    MulticloudDbError,
    MulticloudDbKey,
    NotKnown,
    Now,
    connect,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_cosmos.transport import Adapter, Headers
from multiclouddb_cosmos_emulator import Fail, service

from .world import ADDRESS, DATABASE, NAME, READ

pytestmark = pytest.mark.usefixtures("hasty")
LATEST = CosmosOptions(mode="latest")
A, ODD = (MulticloudDbKey({"pk": "a", "id": item_id}, 1) for item_id in ("a", "a#"))
IDS = ["x", "with space", "y%41", "z#1", "q/"]
VALUES = ['"pk": null', '"pk": ""', '"pk": 0', '"pk": false', '"pk": {"a": 1}', '"pk": 1.5e300']
VALUES += [
    '"pk": -5',
    f'"pk": "{"long" * 99}"',
    f'"pk": "{"😀" * 60}"',
    '"pk": 5000000000',
    '"pk": 9007199254740993',
    '"pk": 1',
]


def keys_of(world):
    request = ChangeFeedRequest(ADDRESS, Beginning(), provider_options=LATEST)
    return [event.key for event in world.client().iterate_changes(request, until_idle=True)]


def found(world, keys):
    rows = world.client().lookup(ADDRESS, keys, provider_options=LATEST)
    return {asked: row and row.key for asked, row in rows.items()}


@pytest.mark.parametrize("version", [1, 2])
def test_every_value_of_a_partition_key_with_every_form_of_an_id(make_world, put_text, version):
    """Azure/azure-sdk-for-python issue 48420, PR 48422: a query failed for a missing and for an empty key."""
    world = make_world(2, version=version)
    for item_id, value in itertools.product(IDS, VALUES):
        put_text(world, f'{{"id": "{item_id}", {value}}}')
    keys = keys_of(world)
    assert len(set(keys)) == len(IDS) * len(VALUES)
    assert found(world, keys) == {key: key for key in keys}
    absent = [MulticloudDbKey({"pk": None, "id": f"{item_id}-"}, 1) for item_id in IDS]
    assert found(world, absent) == dict.fromkeys(absent)


@pytest.mark.parametrize(("value", "placed"), [("-5", False), ("null", False), ('"x"', True), ("true", True)])
def test_with_the_first_version_of_the_hash_azure_cosmos_places_few_keys(
    make_world, put_text, monkeypatch, value, placed
):
    """Azure/azure-sdk-for-python issue 48209: some versions ask a place that they have computed."""
    world, asked, query = make_world(1, version=1), [], ContainerProxy.query_items

    def noting(container, *args, **settings):
        asked.append(settings.keys() & {"partition_key", "feed_range"})
        return query(container, *args, **settings)

    put_text(world, f'{{"id": "z#1", "pk": {value}}}')
    monkeypatch.setattr(ContainerProxy, "query_items", noting)
    key = MulticloudDbKey({"pk": orjson.loads(value), "id": "z#1"}, 1)
    assert found(world, [key]) == {key: key}
    assert asked == [{"partition_key"} if placed else set()]


@pytest.mark.parametrize("times", [1, 2, None])
@pytest.mark.parametrize("operation", ["ReadAccount", "ReadContainer", "ListPartitions"])
def test_only_the_answer_about_an_item_says_that_it_is_not_there(lone, operation, times):
    """azure-cosmos asks for more than the item, and may get a 404 without a substatus for each."""
    lone.put("a")
    client, key = lone.client(), MulticloudDbKey({"pk": "a", "id": "a"}, 1)
    client.read_changes(ChangeFeedRequest(ADDRESS, Now()))
    lone.server.faults.add(Fail(404), operation, times=times)
    with contextlib.suppress(MulticloudDbError):
        assert client.lookup(ADDRESS, [key])[key] is not None


def test_only_the_service_says_that_an_item_is_not_there(lone, monkeypatch):
    """A proxy's own 404, for example of a private endpoint's gateway, has no header of the service."""
    client, key = lone.client(), MulticloudDbKey({"pk": "a", "id": "a"}, 1)
    assert client.lookup(ADDRESS, [key]) == {key: None}
    build = Adapter.build_response

    def bare(self, request, response):
        answer = build(self, request, response)
        if "/docs/" in request.url:
            answer.headers = Headers({"Content-Type": "text/html"})
        return answer

    monkeypatch.setattr(Adapter, "build_response", bare)
    refusal(ErrorCategory.NOT_FOUND, lambda: client.lookup(ADDRESS, [key]), "404")


@pytest.mark.parametrize("mode", ["Lazy", "none", "Consistent"])
def test_an_index_that_lacks_items_proves_no_absence(make_world, put_text, monkeypatch, mode):
    """The vendor's reference of IndexingMode: a lazy index is updated when the container is idle."""
    world = make_world(1, indexing_policy={"indexingMode": mode, "automatic": mode != "none"})
    searched, scanned = service._CALLS["QueryItems"], []

    def lacking(call):
        scanned.append(call.request.headers.get("x-ms-documentdb-query-enable-scan"))
        reply = searched(call)
        reply.body = orjson.dumps({"_rid": "rid", "Documents": [], "_count": 0})
        return reply

    put_text(world, '{"id": "x#", "pk": "a"}')
    keys = [MulticloudDbKey({"pk": "a", "id": item_id}, 1) for item_id in ("x#", "y")]
    assert world.client().lookup(ADDRESS, keys)[keys[0]].key == keys[0]
    monkeypatch.setattr(service, "_CALLS", {**service._CALLS, "QueryItems": lacking})
    answers = world.client().lookup(ADDRESS, keys)
    known = mode == "Consistent"
    assert [isinstance(answers[key], NotKnown) for key in keys] == [not known, False]
    assert answers[keys[1]] is None
    assert scanned == [None if known else "True"]


@pytest.mark.parametrize("paths", [["/id", "/b", "/c"], ["/a", "/id", "/c"], ["/a", "/b", "/id"]], ids=str)
def test_the_id_may_be_any_level_of_a_hierarchical_key(make_world, put_text, paths):
    """Azure/azure-cosmos-dotnet-v3 issue 4946: items that lack levels of their key were not found."""
    world = make_world(2, key=paths)
    others = [path[1:] for path in paths if path != "/id"]
    number = 0
    for given in itertools.chain.from_iterable(itertools.combinations(others, count) for count in range(3)):
        for value in ('"x"', "null", "1"):
            number += 1
            members = ", ".join([f'"id": "i{number}"', *(f'"{each}": {value}' for each in given)])
            put_text(world, f"{{{members}}}")
    keys = keys_of(world)
    assert len(keys) == number
    assert found(world, keys) == {key: key for key in keys}


def test_a_level_may_have_any_value_or_none(make_world, put_text):
    """An object is no value of a partition key. With a missing level, all partitions are asked."""
    world = make_world(2, key=["/a", "/b"])
    values = ["", "null", '""', '"x"', "1", "true", "1.5", '{"c": 1}', "0", "-9007199254740993"]
    for number, (first, second) in enumerate(itertools.product(values, repeat=2)):
        levels = [f'"{name}": {value}' for name, value in (("a", first), ("b", second)) if value]
        put_text(world, "{" + ", ".join([f'"id": "i{number}#"', *levels]) + "}")
    # The same id under keys that Python takes for equal, or that differ in a missing level.
    for level in ("", '"b": null, ', '"b": 1, ', '"b": true, '):
        put_text(world, f'{{{level}"id": "same#"}}')
    keys = keys_of(world)
    assert len(set(keys)) == len(values) ** 2 + 4
    assert found(world, keys) == {key: key for key in keys}


@pytest.mark.parametrize(
    "fault", [(429, 3200), (503, 0), (500, 0), (408, 0), (410, 1002), (404, 1002)], ids=str
)
@pytest.mark.parametrize("whose", ["library", "application"])
def test_a_query_that_is_refused_once_proves_no_absence(lone, put_text, whose, fault):
    """Azure/azure-sdk-for-python issues 35021, 38984: a query that was throttled returned nothing."""
    put_text(lone, '{"id": "a#", "pk": "a"}')
    with connect(lone.config(), native_client=lone.native if whose == "application" else None) as client:
        client.lookup(ADDRESS, [A])
        lone.server.faults.add(Fail(*fault, retry_after=0.01), "QueryItems")
        # Of what an application's own client gives up, the error is told.
        with contextlib.suppress(*[MulticloudDbError] * (whose == "application")):
            assert client.lookup(ADDRESS, [ODD])[ODD].key == ODD


@pytest.mark.parametrize("policy", [None, {"isPolicyEnabled": False}, {"isPolicyEnabled": True}], ids=str)
@pytest.mark.parametrize("refused", [False, True], ids=["unmasked", "masked"])
def test_a_look_up_returns_no_masked_values(lone, policy, refused):
    """Microsoft Learn, Dynamic data masking (2026-04): the feed is refused to whom values are masked for."""
    lone.put("a")
    client, key = lone.client(), MulticloudDbKey({"pk": "a", "id": "a"}, 1)
    assert client.lookup(ADDRESS, [key])[key] is not None
    with lone.server._lock:
        if policy is not None:
            lone.server._container(DATABASE, NAME).properties["dataMaskingPolicy"] = policy
    if refused:
        lone.server.faults.add(Fail(403), READ, times=None)
    look = lambda: client.lookup(ADDRESS, [key])[key]  # noqa: E731
    if refused and policy and policy["isPolicyEnabled"]:
        refusal(ErrorCategory.AUTHORIZATION_FAILED, look, "403")
    else:
        assert look() is not None
