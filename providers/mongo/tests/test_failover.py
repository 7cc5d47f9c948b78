"""Tests outages of all members, and a change that a member loses; for other faults see `test_loss.py`."""

import queue
import threading
import time
from contextlib import ExitStack, contextmanager

import attrs
import pytest
from pymongo import WriteConcern

from multiclouddb_api import (
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    OperationOptions,
    ResourceAddress,
    connect,
)
from multiclouddb_conformance.waiting import assert_prompt, wait_until

COLLECTION = "items"
MAJORITY = WriteConcern("majority")
CALL = 15.0
"""The maximum number of seconds for a read."""
MARGIN = 10.0
"""The number of additional seconds that are allowed on a busy machine."""


@pytest.mark.parametrize("trouble", ["cut", "drop"])
class TestOutage:
    """Tests an outage of all members: connections are reset, or stay open and lose all bytes."""

    @pytest.fixture
    def client(self, proxied):
        with connect(ClientConfig("mongo", {"url": proxied.uri()})) as made:
            yield made
            self.heal(proxied)

    def heal(self, proxied):
        for proxy in proxied.proxies.values():
            proxy.heal()

    @pytest.fixture
    def items(self, proxied, database):
        return proxied.client()[database].create_collection(COLLECTION)

    def begin(self, proxied, client, items, trouble):
        """Return a request that continues in the middle of a feed, and stop all members from answering."""
        start = ChangeFeedRequest(ResourceAddress(items.database.name, COLLECTION), Now())
        token = client.read_changes(start).continuation_token
        items.insert_one({})
        page = client.read_changes(attrs.evolve(start, start_position=FromContinuationToken(token)))
        for proxy in proxied.proxies.values():
            getattr(proxy, trouble)()
        return attrs.evolve(start, start_position=FromContinuationToken(page.continuation_token))

    def test_fails_at_the_deadline_and_can_be_tried_again(self, proxied, client, items, trouble):
        request = self.begin(proxied, client, items, trouble)
        items.insert_one({"_id": 2})

        def attempt():
            began = time.monotonic()
            with pytest.raises(MulticloudDbError) as caught:
                client.read_changes(request, OperationOptions(1.0, 0.5))
            assert caught.value.category is ErrorCategory.TRANSIENT_FAILURE
            assert caught.value.retryable
            return time.monotonic() - began

        for _ in range(2):
            assert_prompt(3.0, attempt, at_most=1.0 + MARGIN)
        self.heal(proxied)
        page = client.read_changes(request, OperationOptions(CALL, CALL))
        assert [event.key.components["_id"] for event in page.events] == [2]

    @pytest.mark.usefixtures("client")  # the fixture heals the members at the end
    def test_does_not_hold_up_a_close(self, proxied, items, trouble):
        before = set(threading.enumerate())

        def attempt():
            self.heal(proxied)
            client, said = connect(ClientConfig("mongo", {"url": proxied.uri()})), queue.Queue()
            request = self.begin(proxied, client, items, trouble)

            def read():
                try:
                    client.read_changes(request, OperationOptions(CALL, CALL))
                except MulticloudDbError as error:
                    said.put(error)

            reader = threading.Thread(target=read)
            reader.start()
            time.sleep(0.5)  # the call is waiting inside the driver now
            began = time.monotonic()
            client.close()
            reader.join(CALL)
            took = time.monotonic() - began
            assert "closed" in str(said.get_nowait())
            return took

        assert_prompt(3.0, attempt, at_most=1.0 + MARGIN)
        # The end of the program does not wait for this thread.
        wait_until(lambda: not [each for each in self.ours() if each not in before], 30.0)

    def ours(self):
        return [thread for thread in threading.enumerate() if thread.name.startswith("multiclouddb")]


@contextmanager
def deaf(member):
    """Provide a secondary that votes but does not replicate for some time."""
    command = {"configureFailPoint": "stopReplProducer"}
    member.admin.command({**command, "mode": "alwaysOn"})
    try:
        yield
    finally:
        member.admin.command({**command, "mode": "off"})


def test_a_change_that_is_rolled_back_is_never_seen(proxied, database):
    """The change is never delivered, because only a primary that is cut off from the other members has it."""
    items = proxied.client()[database].create_collection(COLLECTION, write_concern=MAJORITY)
    start = ChangeFeedRequest(ResourceAddress(database, COLLECTION), Now())
    with connect(ClientConfig("mongo", {"url": proxied.uri(connectTimeoutMS=1000)})) as client:
        token = client.read_changes(start).continuation_token

        def read(wait):
            request = attrs.evolve(start, start_position=FromContinuationToken(token))
            page = client.read_changes(request, OperationOptions(CALL, wait))
            return [event.key.components["_id"] for event in page.events], page.continuation_token

        primary = proxied.wait_primary()
        alone = proxied.direct(primary)[database].get_collection(COLLECTION, write_concern=WriteConcern(w=1))
        with ExitStack() as stack:
            for member in proxied.members:
                if member != primary:
                    stack.enter_context(deaf(proxied.direct(member)))
            alone.insert_one({"_id": "lost"})
            assert alone.find_one({"_id": "lost"})
            found, token = read(0.5)
            assert found == []
            proxied.kill(primary)
        proxied.wait_primary()
        items.insert_one({"_id": "kept"})
        proxied.restart(primary)
        proxied.wait_healthy()
        assert read(CALL)[0] == ["kept"]
        assert [document["_id"] for document in items.find()] == ["kept"]
