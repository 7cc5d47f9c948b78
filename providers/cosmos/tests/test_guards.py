"""Tests the guards against defects of azure-cosmos that lose events, repeat events or retry forever."""

import base64
import logging
import traceback

import pytest
from azure.cosmos.exceptions import CosmosHttpResponseError
from azure.cosmos.partition_key import NonePartitionKeyValue
from requests.exceptions import ProxyError
from urllib3.exceptions import MaxRetryError
from urllib3.exceptions import ProxyError as URLProxyError

from multiclouddb_api import (
    Beginning,
    ErrorCategory,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    Now,
)
from multiclouddb_conformance.refusals import refused
from multiclouddb_cosmos.position import KeyRange
from multiclouddb_cosmos.transport import Adapter, MovedError, ranges_in
from multiclouddb_cosmos_emulator.faults import Act, Fail
from multiclouddb_spi import FeedSpec, ProviderFault

from .test_keys import drained
from .test_reports import BOTH
from .world import ADDRESS, READ, seconds, soon

pytestmark = pytest.mark.usefixtures("hasty")


def moved(world):
    """Return the range of the first partition, and a position before all written changes."""
    (span, *_) = [KeyRange(each["low"], each["high"]) for each in world.partitions()]
    rid = world.container.read()["_rid"]
    return span, rid


@pytest.mark.parametrize("continuation", [b'{"v": "v3"}', b'{"v": "v2"}', b"[]", b"nothing"], ids=repr)
def test_a_continuation_of_another_form_is_refused_by_its_version(continuation):
    """What it says of a split partition would not be known."""
    with pytest.raises(ProviderFault, match=r"version .* azure-cosmos 4\.17") as caught:
        ranges_in(base64.b64encode(continuation).decode())
    assert caught.value.fault.category == ErrorCategory.PROVIDER_ERROR


@pytest.mark.parametrize("value", ["", 0, None])
def test_a_key_that_is_false_in_python_has_its_changes_only(world, value):
    consumer = world.consumer(scope=LogicalPartition(MulticloudDbKey({"pk": value})))
    world.fill(20)
    for marker in range(3):
        world.upsert(pk=value, n=100 + marker)
    assert consumer.until_idle() == [100, 101, 102]


class TestWidening:
    """A read of a range never returns changes from outside the range."""

    @pytest.mark.parametrize("written", [0, 20])
    def test_ours_stops_after_the_first_partition_of_a_wide_range(self, world, written):
        """If a partition has nothing new, azure-cosmos asks the next partition in the same call."""
        _, feed = world.feed()
        _, rid = moved(world)
        world.fill(written)
        world.server.journal.clear()
        with pytest.raises(MovedError):
            feed._source.calls.read(ADDRESS, rid, KeyRange("10", "30"), 1, 100, soon())
        assert len(world.requests()) == 1

    def test_a_merge_and_a_split_elsewhere_give_every_event_once(self, world):
        consumer = world.consumer()
        written = world.fill(30)
        child = world.merge("0", "1")
        world.split(child, boundary="10" + "0" * 30)
        written += world.fill(30)
        consumer.until_idle()
        assert sorted(consumer.markers) == written


def test_the_application_s_own_client_refuses_a_recreated_container(world, own):
    consumer = world.consumer(client=own)
    world.fill(10)
    consumer.until_idle()
    world.recreate(2)
    world.fill(30)
    for _ in range(2):
        with refused(ErrorCategory.INVALID_REQUEST, "recreated"):
            consumer.read()


def test_what_azure_cosmos_logs_names_items_and_has_no_fields(world, caplog):
    """SECURITY.md says so; if azure-cosmos logs less, it can say less."""
    world.put("a-marked-key", text="a-marked-field")
    caplog.set_level(logging.INFO)
    caplog.clear()
    client, key = world.client(), MulticloudDbKey({"pk": "a-marked-key", "id": "a-marked-key"}, 1)
    assert client.lookup(ADDRESS, [key])[key].new_item_state["text"] == "a-marked-field"
    logged = [each for each in caplog.records if "a-marked-key" in each.getMessage()]
    assert {(each.name.partition(".")[0], each.levelname) for each in logged} == {("azure", "INFO")}
    assert "a-marked-field" not in caplog.text


def test_a_look_up_that_cannot_be_sent_does_not_name_its_item(world, monkeypatch):
    """urllib3 quotes the path of a request that no connection could be made for."""

    def refused(adapter, request, **settings):
        reason = OSError("Tunnel connection failed: 503 Service Unavailable")
        raise ProxyError(MaxRetryError(None, request.path_url, URLProxyError("no proxy", reason)))

    client, key = world.client(), MulticloudDbKey({"pk": "a-marked-key", "id": "a-marked-key"}, 1)
    client.lookup(ADDRESS, [key])
    monkeypatch.setattr(Adapter, "send", refused)
    with pytest.raises(MulticloudDbError) as caught:
        client.lookup(ADDRESS, [key], seconds(1))
    assert "503 Service Unavailable" in caught.value.message
    shown = repr(caught.value.detail) + "".join(traceback.format_exception(caught.value))
    assert "a-marked-key" not in shown.replace(__file__, "")


def test_a_lookup_refuses_a_recreated_container(world):
    _, feed = world.feed()
    world.recreate()
    world.put("a")
    with pytest.raises(ProviderFault, match="recreated"):
        feed.lookup([MulticloudDbKey({"pk": "a", "id": "a"}, 1)], soon())


ODD_IDS = [
    "a/b",
    "a/",
    "/a",
    "a//",
    "a#",
    "a?b",
    "a%20",
    "a%2Fb",
    " a",
    "a ",
    "a\tb",
    "a\rb",
    "a\nb",
    "..",
    "é",
    "a",
]


@pytest.mark.parametrize("key", [None, "p"])
def test_an_item_whose_id_a_gateway_refuses_is_looked_up(world, key):
    """The service accepts these ids in a write, and answers a point read with 400, 401 or 404."""
    named = {} if key is None else {"pk": key}
    partition = NonePartitionKeyValue if key is None else key
    for item_id in ODD_IDS:  # azure-cosmos checks the ids of items, but not those in a batch
        world.container.execute_item_batch(
            [("upsert", ({"id": item_id, "who": item_id, **named},))], partition
        )
    keys = [MulticloudDbKey({**named, "id": item_id}) for item_id in ODD_IDS]
    with world.client() as client:
        rows = client.lookup(ADDRESS, keys)
        assert {each["id"]: row.new_item_state["who"] for each, row in rows.items()} == {
            item_id: item_id for item_id in ODD_IDS
        }
        world.container.execute_item_batch([("delete", (item_id,)) for item_id in ODD_IDS], partition)
        assert set(client.lookup(ADDRESS, keys).values()) == {None}


@pytest.mark.parametrize("item_id", ["plain", "a/b"])
def test_a_refused_lookup_is_an_error(world, item_id):
    world.put("a")
    asked = MulticloudDbKey({"pk": "a", "id": item_id}, 1)
    for operation in ("ReadItem", "QueryItems"):
        world.server.faults.add(Fail(403), operation, times=None)
    with refused(ErrorCategory.AUTHORIZATION_FAILED), world.client() as client:
        client.lookup(ADDRESS, [asked])


class TestEndlessRetries:
    """No answer from the service may make azure-cosmos repeat a request forever."""

    def test_a_throttled_container_is_asked_for_once_a_try(self, world):
        provider, _ = world.feed()
        world.server.journal.clear()
        world.server.faults.add(Fail(429, 3200, 0.01), "ReadContainer", times=None)
        with pytest.raises(Exception, match="rate is large"):
            provider.open_feed(FeedSpec(ADDRESS), soon())
        assert len(world.requests("ReadContainer")) == 1

    @pytest.mark.parametrize("fault", [Fail(410), Fail(410, 1002), Fail(429, 3200, 0.01)], ids=str)
    def test_ours_takes_one_request_a_try(self, world, fault):
        _, feed = world.feed()
        (seed, *_) = feed.start(Now(), None, soon())
        world.server.journal.clear()
        world.server.faults.add(fault, READ, times=None)
        with pytest.raises(CosmosHttpResponseError) as caught:
            feed.open(seed.partition_id, seed.cursor).fetch(10, 1 << 20, 0.0, soon())
        assert caught.value.status_code == fault.status
        assert len(world.requests()) == 1

    def test_the_application_s_own_client_is_bounded_by_the_deadline(self, world, own):
        consumer = world.consumer(client=own)
        world.server.faults.add(Fail(410, 1002), READ, times=None)
        with refused(ErrorCategory.TRANSIENT_FAILURE):
            consumer.read(seconds(1))

    @pytest.mark.parametrize(("delay", "operation"), [(0.01, READ), (20, READ), (0.3, "ReadContainer")])
    def test_the_application_s_own_client_that_is_throttled_is_told(self, world, own, delay, operation):
        consumer = world.consumer(Now(), own)
        world.server.faults.add(Fail(429, 3200, delay), operation, times=None)
        told = set()
        for _ in range(5):  # on a busy machine, a request may still run at the deadline
            with pytest.raises(MulticloudDbError) as caught:
                consumer.read(seconds(1))
            told.add(caught.value.category)
            if ErrorCategory.THROTTLED in told:
                break
        assert ErrorCategory.THROTTLED in told


@pytest.mark.parametrize("status", [202, 204, 302])
def test_a_page_with_a_status_of_a_proxy_is_asked_for_again(world, status):
    """Cosmos DB never sends these statuses, but a proxy between the client and the service can send them."""
    consumer = world.consumer()
    written = world.fill(10)
    world.server.faults.add(Fail(status), READ, times=2)
    consumer.until_idle()
    assert sorted(consumer.markers) == written
    world.server.faults.add(Fail(status), READ, times=None)
    with refused(ErrorCategory.TRANSIENT_FAILURE, f"answered {status}", "proxy"):
        consumer.read(seconds(1))


class TestSplitWhileReading:
    """After a split, azure-cosmos returns the page of only one child partition.

    The provider must not treat a child's page as a page of the whole range.
    """

    def test_a_split_under_a_request_of_the_application_s_own_client_loses_nothing(self, world, own):
        consumer = world.consumer(client=own)
        written = world.fill(40)
        world.server.faults.add(Act(lambda: world.split("0")), READ)
        consumer.until_idle()
        written += world.fill(20)
        consumer.until_idle()
        assert sorted(consumer.markers) == written

    def test_a_split_that_azure_cosmos_knows_and_we_do_not(self, world):
        consumer = world.consumer()
        written = world.fill(40)
        world.split("0")
        # In a process, all azure-cosmos clients of an account share one map of ranges.
        list(world.container.read_feed_ranges(force_refresh=True))
        consumer.until_idle()
        assert sorted(consumer.markers) == written


@BOTH
def test_splits_of_two_generations_while_nobody_reads(lone, options):
    """Azure/azure-cosmos-dotnet-v3 PR 6079 (2026-09): then a reader forgot its position, and began anew."""
    consumer = lone.consumer(Beginning(), provider_options=options, max_page_size=3)
    written = lone.fill(10)
    consumer.read()
    lone.split()
    written += lone.fill(10)
    for each in [each["id"] for each in lone.partitions()]:
        lone.split(each)
    written += lone.fill(10)
    consumer.restart()
    drained(consumer)
    assert sorted(consumer.markers) == sorted(written)
