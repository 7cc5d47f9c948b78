"""Tests three members, of which one always has a fault.

No consumer loses an event or receives an event twice.
"""

import logging
import queue
import threading
import time
from contextlib import ExitStack, contextmanager

import attrs
import pytest
from pymongo import MongoClient, WriteConcern

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
from multiclouddb_conformance.loss import Pause, iterator_consumer
from multiclouddb_conformance.waiting import assert_prompt, wait_until

from .servers.mongod import NATIVE, QUICK_ELECTION_MS, ReplicaSet
from .workload import COLLECTION, LONG, MAJORITY, Application, Writer, assert_kept, finish, pages, seen

CALL = 15.0
"""The maximum number of seconds for a read."""
MARGIN = 10.0
"""The number of additional seconds that are allowed on a busy machine."""


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Provide three members, which quickly replace a killed primary."""
    with ReplicaSet(tmp_path_factory.mktemp("three"), 3, election_ms=QUICK_ELECTION_MS) as made:
        yield made


@pytest.fixture(scope="module")
def proxied(tmp_path_factory):
    """Provide three members, each behind a proxy that the writer does not use."""
    # Members that replicate from a hanging member soon choose another member.
    soon = {"oplogNetworkTimeoutBufferSeconds": 1}
    folder, quick = tmp_path_factory.mktemp("proxied"), QUICK_ELECTION_MS
    with ReplicaSet(folder, 3, proxied=True, election_ms=quick, parameters=soon) as made:
        yield made


def url(cluster, **options):
    """Return a URL with options that end a call to a silent member after one second instead of twenty."""
    return cluster.uri(connectTimeoutMS=1000, **options)


def crowd(cluster, database):
    """Make applications of many kinds, which all start before the first change is written."""

    def one(name, size, consumer=None, **others):
        request = ChangeFeedRequest(ResourceAddress(database, COLLECTION), Now(), max_page_size=size)
        return Application(name, others.pop("at", url(cluster)), request, consumer or pages(CALL), **others)

    def iterator():
        return iterator_consumer(timeout_seconds=CALL, wait_seconds=0.2)

    return [
        one("small pages, always lagging", 2, lagging(pages(CALL))),
        one("pages of a secondary", 20, at=url(cluster, readPreference="secondary")),
        one("pages, dies often", 5, deaths=0.004, far=10),
        one("an iterator, dies often", 10, iterator(), deaths=0.004),
    ]


def lagging(consumer):
    """Make an application that is slower than the writer, so that part of a batch is always unread."""

    def consume(client, request, token):
        for step in consumer(client, request, token):
            yield step
            if isinstance(step, Pause) and not step.idle:
                time.sleep(0.01)

    return consume


@contextmanager
def load(cluster, database):
    """Run a writer, and applications that read in the meantime."""
    # At the end, check that each application has received every change.
    with MongoClient(url(cluster, appName=NATIVE)) as client:
        writer = Writer(client, database, pause=0.005)
        applications = crowd(cluster, database)
        with writer:
            for application in applications:
                application.start()
            writer.wait_for(50)
            yield writer, applications
            writer.wait_for(50)
    cluster.wait_healthy()
    finish(applications, len(writer.truth))
    late = [application.start() for application in applications[0].resumed(3)]
    finish(late, len(writer.truth))
    assert_kept(writer.truth, applications + late)
    for application in applications:
        assert application.slowest < CALL + MARGIN, application.name
    logging.getLogger(__name__).info(
        "written %d, delivered %d, deaths %d, failures %s, slowest %s s",
        len(writer.truth),
        sum(application.delivered for application in applications),
        sum(len(application.lives) - 1 for application in applications),
        [len(application.failures) for application in applications],
        [round(application.slowest, 1) for application in applications],
    )


@contextmanager
def killed(cluster):
    """Kill the current primary. At the end, all members are running again."""
    member = cluster.wait_primary()
    cluster.kill(member)
    try:
        yield
    finally:
        cluster.restart(member)
        cluster.wait_healthy()


@contextmanager
def paused(cluster):
    """Pause the current primary, and resume it at the end of the block."""
    member = cluster.wait_primary()
    cluster.pause(member)
    try:
        yield
    finally:
        cluster.resume(member)


def go_on(writer, applications):
    """Continue until every application has reached the writer's position."""
    place = len(writer.truth)
    wait_until(lambda: all(each.error or each.place >= place for each in applications), LONG)


@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=pytest.mark.soak)])
def test_kills_of_a_primary_under_load_lose_nothing(three, database, kills):
    with load(three, database) as (writer, _):
        for _ in range(kills):
            with killed(three):
                writer.wait_for(30)


def test_a_primary_that_hangs_stops_nobody(proxied, database):
    """The connections of the primary stay open, but nothing is sent."""
    # While the primary hangs, the applications read from another member.
    with load(proxied, database) as (writer, applications):
        with paused(proxied):
            writer.wait_for(30)
            go_on(writer, applications)
        # The former primary had not noticed the election.
        writer.wait_for(30)
        go_on(writer, applications)


@pytest.mark.parametrize("trouble", ["cut", "drop"])
def test_a_network_that_fails_loses_nothing(proxied, database, trouble):
    """Connections are reset, or stay open and lose all bytes."""
    # No event is lost, and the writer is not affected.
    with load(proxied, database) as (writer, applications):
        for _ in range(2):
            for proxy in proxied.proxies.values():
                getattr(proxy, trouble)()
            writer.wait_for(30)
            for proxy in proxied.proxies.values():
                proxy.heal()
            go_on(writer, applications)


def test_a_primary_that_dies_between_two_pages_costs_nothing(three, database):
    """The primary is killed after only a part of the server's batch was returned. No call fails."""
    writer, events = Writer(three.client(), database), []
    with connect(ClientConfig("mongo", {"url": url(three)})) as client:
        start = ChangeFeedRequest(ResourceAddress(database, COLLECTION), Now(), max_page_size=7)
        token = client.read_changes(start).continuation_token

        def read():
            request = attrs.evolve(start, start_position=FromContinuationToken(token))
            page = client.read_changes(request, OperationOptions(CALL, 0.2))
            events.extend(page.events)
            return page.continuation_token

        writer.write(300)
        token = read()
        with killed(three):
            writer.write(10)
            until = time.monotonic() + LONG
            while len(events) < len(writer.truth) and time.monotonic() < until:
                token = read()
    assert [seen(event) for event in events] == writer.truth


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


def test_a_change_that_is_rolled_back_is_never_seen(three, database):
    """The change is never delivered, because only a primary that is cut off from the other members has it."""
    items = three.client()[database].create_collection(COLLECTION, write_concern=MAJORITY)
    start = ChangeFeedRequest(ResourceAddress(database, COLLECTION), Now())
    with connect(ClientConfig("mongo", {"url": url(three)})) as client:
        token = client.read_changes(start).continuation_token

        def read(wait):
            request = attrs.evolve(start, start_position=FromContinuationToken(token))
            page = client.read_changes(request, OperationOptions(CALL, wait))
            return [event.key.components["_id"] for event in page.events], page.continuation_token

        primary = three.wait_primary()
        alone = three.direct(primary)[database].get_collection(COLLECTION, write_concern=WriteConcern(w=1))
        with ExitStack() as stack:
            for member in three.members:
                if member != primary:
                    stack.enter_context(deaf(three.direct(member)))
            alone.insert_one({"_id": "lost"})
            assert alone.find_one({"_id": "lost"})
            found, token = read(0.5)
            assert found == []
            three.kill(primary)
        three.wait_primary()
        items.insert_one({"_id": "kept"})
        three.restart(primary)
        three.wait_healthy()
        assert read(CALL)[0] == ["kept"]
        assert [document["_id"] for document in items.find()] == ["kept"]
