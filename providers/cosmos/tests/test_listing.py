"""Tests what happens while azure-cosmos lists the partitions of a container.

All clients of azure-cosmos in a process share the list and the lock that protects it.
"""

import os
import signal
import threading
import time

import pytest
from azure.core.exceptions import AzureError
from azure.cosmos import PartitionKey
from azure.cosmos._routing.routing_map_provider import PartitionKeyRangeCache

from multiclouddb_api import ErrorCategory, ResourceAddress
from multiclouddb_conformance.refusals import refused
from multiclouddb_cosmos_emulator import service
from multiclouddb_cosmos_emulator.faults import Act, Fail, Slow
from multiclouddb_cosmos_emulator.ids import new_etag

from .world import DATABASE, seconds, soon

pytestmark = pytest.mark.usefixtures("hasty")

LIST = "ListPartitions"


class TestAnswers:
    """A failed listing is tried again, and never blocks the container in this process."""

    @pytest.mark.parametrize(("status", "substatus"), [(500, 0), (204, 0), (410, 0), (410, 1002)])
    def test_a_failure_that_passes_loses_nothing(self, world, status, substatus):
        consumer = world.consumer()
        written = world.fill(10)
        world.split("0")
        world.server.faults.add(Fail(status, substatus), LIST, times=2)
        consumer.until_idle()
        assert sorted(consumer.markers) == written

    def test_a_failure_that_stays_is_transient(self, lone):
        consumer = lone.consumer()
        lone.split("0")
        lone.server.faults.add(Fail(410, 1002), LIST, times=None)
        with refused(ErrorCategory.TRANSIENT_FAILURE, "answered 410") as caught:
            consumer.read(seconds(1))
        assert caught.value.retryable

    def test_a_failure_is_transient_with_the_application_s_own_client(self, world, own):
        consumer = world.consumer(client=own)
        world.split("0")
        world.server.faults.add(Fail(500), LIST, times=None)
        page = consumer.read(seconds(1))
        assert "answered 500" in "".join(page.diagnostics.partition_errors.values())
        assert not page.idle

    def test_a_listing_that_never_ends_is_given_up(self, world, monkeypatch):
        """azure-cosmos asks until the service answers that nothing has changed."""
        monkeypatch.setattr("multiclouddb_cosmos.client._LISTING_SECONDS", 0.2)
        listed = service._CALLS[LIST]

        def changed(call):
            call.container().version = new_etag()
            return listed(call)

        _, feed = world.feed()
        monkeypatch.setitem(service._CALLS, LIST, changed)
        with pytest.raises(AzureError):  # of the listing, or of its last request
            feed.survey({}, soon())

    def test_a_listing_without_an_answer_is_given_up(self, world, monkeypatch):
        """azure-cosmos passes no time limit to the requests of a listing."""
        monkeypatch.setattr("multiclouddb_cosmos.client._LISTING_SECONDS", 0.2)
        _, feed = world.feed()
        world.server.faults.add(Slow(8), LIST)
        begun = time.monotonic()
        with pytest.raises(AzureError):
            feed.survey({}, soon())
        assert time.monotonic() - begun < 6

    def test_a_container_may_be_called_like_a_page(self, world):
        """The path of a page ends with `docs`, and so does the path of this container."""
        world.database.create_container("docs", PartitionKey("/pk"))
        with world.client() as client:
            assert client.list_physical_partitions(ResourceAddress(DATABASE, "docs"))


class TestForks:
    def test_a_child_of_a_process_that_has_read_is_told_at_once_to_start_in_another_way(self, world):
        """A thread of the parent holds a lock that all clients share, and the child has no such thread."""
        consumer = world.consumer()
        written = world.fill(10)
        world.split("0")
        listing, forked = threading.Event(), threading.Event()
        world.server.faults.add(Act(lambda: (listing.set(), forked.wait(30))), LIST)
        thread = threading.Thread(target=consumer.read)
        thread.start()
        assert listing.wait(10)
        child = os.fork()
        if not child:
            code = 1
            try:
                signal.alarm(20)  # ends a child that waits for the lock
                with refused(ErrorCategory.INVALID_REQUEST, "another process: connect here"):
                    consumer.read()
                with refused(ErrorCategory.INVALID_REQUEST, "after its parent had used azure-cosmos"):
                    world.client()
                code = 0
            finally:
                os._exit(code)
        forked.set()
        thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        consumer.until_idle()
        assert sorted(consumer.markers) == written


class TestOtherClients:
    def test_a_lock_that_the_application_s_client_never_releases_does_not_stop_a_read(self, world, native):
        """After the answer 410/1002 to a listing, azure-cosmos waits for the lock that it holds."""
        consumer = world.consumer()
        written = world.fill(10)
        container = native.get_database_client(DATABASE).get_container_client(world.container.id)
        list(container.read_feed_ranges(force_refresh=True))
        locks = list(native.client_connection._routing_map_provider._collection_locks.values())
        assert locks
        world.split("0")
        for lock in locks:
            lock.acquire()
        try:
            consumer.until_idle()
        finally:
            for lock in locks:
                lock.release()
        assert sorted(consumer.markers) == written


class TestThreads:
    def test_headers_can_be_extended_while_they_are_copied(self, world):
        """azure-cosmos adds entries to the headers that the client's last call has received.

        Meanwhile, the thread of that call may still copy the headers.
        """
        provider, feed = world.feed()
        feed.survey({}, soon())
        headers = provider._calls._connected().client_connection.last_response_headers
        copied = {}
        for name in headers:
            copied[name] = headers[name]
            headers[f"x-ms-throttle-retry-count-{len(copied)}"] = 0
        assert copied["etag"] == headers["etag"]

    def test_a_list_that_another_thread_has_deleted_is_fetched_again(self, world, monkeypatch):
        """A thread that lists partitions deletes the lists of all containers. At that time, another thread
        may look up a partition."""
        consumer = world.consumer()
        written = world.fill(10)
        found, deleted = PartitionKeyRangeCache.get_routing_map, [None]

        def looked_up(self, *arguments, **settings):
            return deleted.pop() if deleted else found(self, *arguments, **settings)

        monkeypatch.setattr(PartitionKeyRangeCache, "get_routing_map", looked_up)
        consumer.until_idle()
        assert not deleted
        assert sorted(consumer.markers) == written
