"""Tests faults on demand, and the number of requests that the unmodified azure-cosmos makes for one call.

Each test proves one row of the table in `tools/emulators/cosmos/COVERAGE.md`.
"""

import time
from contextlib import contextmanager

import pytest
from azure.core.exceptions import (
    IncompleteReadError,
    ServiceRequestError,
    ServiceResponseError,
    ServiceResponseTimeoutError,
)
from azure.cosmos import CosmosClient, documents
from azure.cosmos._retry_options import RetryOptions
from azure.cosmos.exceptions import CosmosClientTimeoutError, CosmosHttpResponseError

from multiclouddb_cosmos_emulator import Act, Drop, Fail, Slow

FEED = "ReadChangeFeed"


@pytest.fixture
def items(shop):
    """Write three items to read."""
    container = shop.create()
    for number in range(3):
        container.create_item({"id": str(number), "pk": "a", "n": number})
    return container


@contextmanager
def connected(shop, **settings):
    """Return the container through a client with other settings."""
    with shop.connect(**settings) as client:
        yield client.get_database_client("shop").get_container_client("orders")


def read(container, **more):
    """Return one page of the change feed from the beginning."""
    pages = container.query_items_change_feed(start_time="Beginning", **more).by_page()
    return list(next(pages))


def status(call, *arguments, **named):
    with pytest.raises(CosmosHttpResponseError) as caught:
        call(*arguments, **named)
    return caught.value.status_code, caught.value.sub_status or 0


class TestChangeFeedPage:
    """Tests requests for a page that always fail."""

    def test_429_is_tried_a_hundred_times(self, server, items):
        server.faults.add(Fail(429, 3200), FEED, times=None)
        assert status(read, items) == (429, 3200)
        assert server.journal.count(FEED) == 100

    @pytest.mark.parametrize(("total", "requests"), [(1, 4), (2, 9), (0, 100)])
    def test_429_in_two_loops_of_so_many_tries(self, shop, items, total, requests):
        shop.server.faults.add(Fail(429, 3200), FEED, times=None)
        with connected(shop, retry_throttle_total=total) as container:
            assert status(read, container) == (429, 3200)
        assert shop.server.journal.count(FEED) == requests

    def test_429_once_without_retries(self, shop, items):
        policy = documents.ConnectionPolicy()
        policy.RetryOptions = RetryOptions(0)
        shop.server.faults.add(Fail(429, 3200), FEED, times=None)
        with connected(shop, connection_policy=policy) as container:
            assert status(read, container) == (429, 3200)
        assert shop.server.journal.count(FEED) == 1

    def test_429_waits_as_it_is_told(self, server, items):
        server.faults.add(Fail(429, 3200, retry_after=0.1), FEED, times=3)
        began = time.monotonic()
        assert len(read(items)) == 3
        assert time.monotonic() - began >= 0.3
        assert server.journal.count(FEED) == 4

    @pytest.mark.parametrize("code", [503, 500, 408])
    def test_it_is_tried_four_times(self, server, items, code):
        server.faults.add(Fail(code), FEED, times=None)
        assert status(read, items) == (code, 0)
        assert server.journal.count(FEED) == 4

    @pytest.mark.parametrize("code", [503, 500, 408])
    def test_and_once_without_endpoint_discovery(self, shop, items, code):
        shop.server.faults.add(Fail(code), FEED, times=None)
        with connected(shop, enable_endpoint_discovery=False) as container:
            assert status(read, container) == (code, 0)
        assert shop.server.journal.count(FEED) == 1

    @pytest.mark.parametrize("substatus", [3, 1008])
    def test_403_of_a_lost_region_is_tried_again_after_a_second(self, server, items, substatus):
        server.faults.add(Fail(403, substatus), FEED, times=1)
        assert len(read(items)) == 3
        assert server.journal.count(FEED) == 2

    @pytest.mark.parametrize("substatus", [3, 1008])
    def test_and_once_without_endpoint_discovery_as_well(self, shop, items, substatus):
        shop.server.faults.add(Fail(403, substatus), FEED, times=None)
        with connected(shop, enable_endpoint_discovery=False) as container:
            assert status(read, container) == (403, substatus)
        assert shop.server.journal.count(FEED) == 1

    @pytest.mark.parametrize(
        ("code", "substatus"), [(403, 0), (403, 5300), (401, 0), (400, 0), (404, 0), (404, 1003), (449, 0)]
    )
    def test_it_is_not_tried_again(self, server, items, code, substatus):
        server.faults.add(Fail(code, substatus), FEED, times=None)
        assert status(read, items) == (code, substatus)
        assert server.journal.count(FEED) == 1

    def test_404_of_a_session_is_tried_twice(self, server, items):
        server.faults.add(Fail(404, 1002), FEED, times=None)
        assert status(read, items) == (404, 1002)
        assert server.journal.count(FEED) == 2

    @pytest.mark.parametrize("substatus", [1002, 1007])
    def test_410_of_a_split_is_tried_without_end(self, server, items, substatus):
        server.faults.add(Fail(410, substatus), FEED, times=None)
        # The SDK's tries are nested calls, which may reach Python's limit before the time is over.
        with pytest.raises((CosmosClientTimeoutError, CosmosHttpResponseError, RecursionError)):
            read(items, timeout=2)
        assert server.journal.count(FEED) >= 20

    @pytest.mark.parametrize("substatus", [0, 1000, 1008])
    def test_410_of_another_kind_is_not(self, server, items, substatus):
        server.faults.add(Fail(410, substatus), FEED, times=None)
        assert status(read, items) == (410, substatus)
        assert server.journal.count(FEED) == 1

    def test_a_broken_connection_is_tried_four_times(self, server, items):
        server.faults.add(Drop(), FEED, times=None)
        with pytest.raises(ServiceResponseError):
            read(items)
        assert server.journal.count(FEED) == 4

    def test_one_that_breaks_in_the_middle_of_an_answer_is_as_well(self, server, items):
        server.faults.add(Drop(mid_body=True), FEED, times=None)
        with pytest.raises(IncompleteReadError):
            read(items)
        assert server.journal.count(FEED) == 4

    def test_and_once_without_retries_of_reads(self, shop, items):
        shop.server.faults.add(Drop(), FEED, times=None)
        with connected(shop, retry_read=0) as container, pytest.raises(ServiceResponseError):
            read(container)
        assert shop.server.journal.count(FEED) == 1

    def test_a_slow_answer_is_waited_for(self, server, items):
        server.faults.add(Slow(0.2), FEED)
        began = time.monotonic()
        assert len(read(items)) == 3
        assert time.monotonic() - began >= 0.2
        assert server.journal.count(FEED) == 1

    def test_one_that_is_too_slow_is_tried_four_times(self, shop, items):
        slow = shop.server.faults.add(Slow(2.0), FEED, times=None)
        with connected(shop, read_timeout=0.1) as container, pytest.raises(ServiceResponseTimeoutError):
            read(container)
        assert slow.happened == 4


class TestOtherCalls:
    def test_a_server_that_is_not_there_is_told_at_once(self, make_shop):
        gone = make_shop()
        gone.server.stop()
        with pytest.raises(ServiceRequestError):
            CosmosClient(gone.server.endpoint, gone.server.key, retry_connect=0)

    def test_a_server_that_goes_away_is_told(self, make_shop):
        gone = make_shop()
        container = gone.create()
        gone.server.stop()
        with pytest.raises(ServiceRequestError):
            read(container)

    @pytest.mark.parametrize(("code", "requests"), [(429, 10), (503, 2), (500, 1), (449, 1)])
    def test_create_item_is_tried_so_often(self, server, items, code, requests):
        server.journal.clear()
        server.faults.add(Fail(code), "CreateItem", times=None)
        assert status(items.create_item, {"id": "9", "pk": "a"}) == (code, 0)
        assert server.journal.count("CreateItem") == requests

    def test_create_item_is_not_tried_again_when_nobody_knows_what_became_of_it(self, server, items):
        server.journal.clear()
        server.faults.add(Drop(), "CreateItem", times=None)
        with pytest.raises(ServiceResponseError):
            items.create_item({"id": "9", "pk": "a"})
        assert server.journal.count("CreateItem") == 1

    def test_an_answer_that_broke_off_was_a_write_all_the_same(self, server, items):
        server.faults.add(Drop(mid_body=True), "CreateItem")
        with pytest.raises(IncompleteReadError):
            items.create_item({"id": "9", "pk": "a"})
        assert items.read_item("9", "a")["id"] == "9"

    def test_the_list_of_partitions_is_tried_four_times(self, server, items):
        server.faults.add(Fail(503), "ListPartitions", times=None)
        assert status(list, items.read_feed_ranges()) == (503, 0)
        assert server.journal.count("ListPartitions") == 4

    def test_the_account_is_tried_four_times(self, shop):
        with shop.connect():
            """Wait until no thread of a client is requesting the account."""
        shop.server.journal.clear()
        shop.server.faults.add(Fail(401), "ReadAccount", times=None)
        with pytest.raises(CosmosHttpResponseError), shop.connect():
            pass
        assert shop.server.journal.count("ReadAccount") == 4


class TestScripts:
    def test_one_happens_so_often_and_then_no_more(self, server, items):
        fault = server.faults.add(Fail(449), "ReadItem", times=2)
        for _ in range(2):
            assert status(items.read_item, "1", "a") == (449, 0)
        assert items.read_item("1", "a")["n"] == 1
        assert fault.happened == 2

    def test_it_can_spare_the_first(self, server, items):
        """After a 410 in the middle of a feed with several pages, the client lists the partitions and
        continues."""
        server.faults.add(Fail(410, 1002), FEED, after=1)
        found = items.query_items_change_feed(start_time="Beginning", max_item_count=1)
        assert [each["n"] for each in found] == [0, 1, 2]
        assert [each.status for each in server.journal.entries(FEED)] == [200, 410, 200, 200, 304]

    def test_it_can_be_for_one_container_or_one_partition(self, shop, server, items):
        other = shop.create("other")
        server.faults.add(Fail(449), container="other", times=None)
        assert status(other.create_item, {"id": "1", "pk": "a"}) == (449, 0)
        assert items.read_item("1", "a")["n"] == 1
        server.faults.clear()
        server.faults.add(Fail(449), FEED, partition="7", times=None)
        assert len(read(items)) == 3

    def test_something_can_happen_before_an_answer(self, shop, server, items):
        server.faults.add(Act(lambda: shop.split()), FEED, after=1)
        found = items.query_items_change_feed(start_time="Beginning", max_item_count=1)
        assert sorted(each["n"] for each in found) == [0, 1, 2]
        assert len(shop.partitions()) == 2

    def test_they_are_cleared(self, server, items):
        server.faults.add(Fail(400), times=None)
        server.faults.clear()
        assert items.read_item("1", "a")["n"] == 1

    def test_a_message_of_one_s_own(self, server, items):
        server.faults.add(Fail(400, message="No, thank you"), "ReadItem")
        with pytest.raises(CosmosHttpResponseError, match="No, thank you"):
            items.read_item("1", "a")
