"""Tests that no event is lost, wherever a consumer is killed and whatever the servers do."""

import itertools
import threading
import time
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
from pymongo import WriteConcern

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    EntireCollection,
    EntireDatabase,
    ErrorCategory,
    FromContinuationToken,
    Now,
    OperationOptions,
    ResourceAddress,
    Snapshot,
    connect,
)
from multiclouddb_conformance.loss import (
    Act,
    Author,
    LossOracle,
    Read,
    ReadUntilIdle,
    iterator_consumer,
    page_consumer,
    page_consumer_with,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.waiting import assert_prompt, wait_until
from multiclouddb_mongo import MongoOptions, members

from .monitor import deaf, ids, read, walk, watched
from .servers.mongod import shared

OWN_SETS = ("pair", "proxied", "brisk")
APPLICATION = "a-consumer"
KEYS = 9
LABEL = "ResumableChangeStreamError"
UNREACHABLE, TIME_LIMIT = 6, 262
CALL = 15.0
WORLDS = itertools.count()


class World:
    def __init__(self, server, scope):
        self.server, self.scope, self.name = server, scope, f"life-{next(WORLDS)}"
        self.client = server.client()
        majority = WriteConcern("majority")
        self.items = self.client[self.name].create_collection("items", write_concern=majority)
        self.down = None

    def request(self, start, size):
        collection = None if isinstance(self.scope, EntireDatabase) else "items"
        address = ResourceAddress(self.name, collection)
        return ChangeFeedRequest(address, start, scope=self.scope, max_page_size=size)

    def consumer_client(self):
        # A call to a silent member ends after one second instead of twenty.
        return connect(self.server.uri(appName=APPLICATION, connectTimeoutMS=1000))

    def write(self, writes):
        if len(writes) == 1:
            self._write(*writes[0], None)
            return
        # The call is retried if a restart has cut its connection.
        with self.client.start_session() as session:
            session.with_transaction(
                lambda session: [self._write(key, document, session) for key, document in writes]
            )

    def _write(self, key, document, session):
        if document is None:
            self.items.delete_one({"_id": key}, session=session)
        else:
            # The event of an update might contain a later version of the document.
            self.items.replace_one({"_id": key}, document, upsert=True, session=session)

    def noise(self):
        """Write changes that appear in the oplog but not in the feed."""
        self.client[f"{self.name}-beside"].others.insert_many([{} for _ in range(50)])

    def fail(self, command, **how):
        """Make the consumer's next command with this name fail."""
        data = {"failCommands": [command], "appName": APPLICATION, **how}
        self.client.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data})

    def forget_cursors(self):
        self.client.admin.command({"killAllSessions": []})

    def restart(self):
        (member,) = self.server.members
        self.server.kill(member)
        self.server.restart(member)
        self.server.wait_primary()

    def kill(self):
        self.down = self.server.wait_primary()
        self.server.kill(self.down)

    def hang(self):
        self.down = self.server.wait_primary()
        self.server.pause(self.down)

    def come_back(self):
        if self.down in self.server.alive():
            self.server.resume(self.down)
        else:
            self.server.restart(self.down)
        self.server.wait_healthy()

    def disturb(self, how):
        for proxy in self.server.proxies.values():
            getattr(proxy, how)()

    def step_down(self):
        self.server.stand(self.server.step_down())
        self.server.wait_healthy()

    def close(self):
        self.client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
        for name in (self.name, f"{self.name}-beside"):
            self.client.drop_database(name)


@contextmanager
def a_world(server, scope):
    made = World(server, scope)
    try:
        yield made
    finally:
        made.close()


def fail(command, **how):
    return Act(f"{command} fails with {how}", lambda world: world.fail(command, **how))


NOISE = Act("other collections change", World.noise)
NO_CURSORS = Act("all cursors are forgotten", World.forget_cursors)
RESTART = Act("kill -9, and a restart", World.restart)


def life(*, restarts):
    """Return a random script."""
    # Transactions may be larger than a page, and the stream may fail at any place.
    write = Author(keys=KEYS).write
    return [
        write(2), Read(1), NOISE, write(1), write(5), Read(1), NO_CURSORS, write(3), Read(2),
        fail("getMore", closeConnection=True), write(4), Read(1), write(1), NOISE, ReadUntilIdle(),
        # The stream breaks while it is idle. The next answer must not be mistaken for the end of the stream.
        NO_CURSORS, write(3), ReadUntilIdle(), fail("getMore", errorCode=UNREACHABLE, errorLabels=[LABEL]),
        write(2), ReadUntilIdle(), RESTART if restarts else NO_CURSORS, write(6), Read(1),
        fail("aggregate", closeConnection=True), NO_CURSORS, write(2), NOISE, ReadUntilIdle(), write(1),
        # Without the label PyMongo does not resume the stream, so the caller reads again from its token.
        fail("getMore", errorCode=TIME_LIMIT), write(4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("start", "consumer", "size", "scope", "restarts"),
    [
        (Beginning(), page_consumer, 0, EntireCollection(), True),
        (Beginning(), iterator_consumer(), 3, EntireDatabase(), False),
        pytest.param(Now(), page_consumer, 1, EntireDatabase(), False, marks=pytest.mark.soak),
        pytest.param(Now(), page_consumer, 2, EntireCollection(), False, marks=pytest.mark.soak),
        pytest.param(Now(), iterator_consumer(), 0, EntireCollection(), False, marks=pytest.mark.soak),
    ],
    ids=["pages", "iterator of a database", "single events of a database", "small pages", "iterator"],
)
def test_a_consumer_that_is_killed_loses_nothing(brisk, start, consumer, size, scope, restarts):
    report = LossOracle(
        world=lambda: a_world(brisk, scope),
        client=World.consumer_client,
        request=lambda world: world.request(start, size),
        life=life(restarts=restarts),
        consumer=consumer,
    ).run(max_kills=2)
    report.assert_all_kept()
    assert report.kills > 3


def failover():
    """Return a script in which one member after the other has a fault, and then the network."""
    write, back = Author(keys=KEYS).write, Act("the member comes back", World.come_back)
    heal = Act("the network heals", lambda world: world.disturb("heal"))

    def network(how):
        return Act(f"the network: {how}", lambda world: world.disturb(how))

    return [
        write(3), Read(1), Act("the primary is killed", World.kill), write(4), Read(1), back, write(2),
        Read(1), Act("the primary hangs", World.hang), write(3), ReadUntilIdle(), back, write(5), Read(1),
        network("cut"), write(2), heal, Read(1), Act("an election", World.step_down), write(3),
        ReadUntilIdle(), network("drop"), write(1), heal, write(1), ReadUntilIdle(),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("consumer", "size", "kills"),
    [
        (page_consumer_with(OperationOptions(15.0, 0.2)), 2, 0),
        pytest.param(
            iterator_consumer(timeout_seconds=15.0, wait_seconds=0.2), 10, 20, marks=pytest.mark.soak
        ),
    ],
    ids=["pages", "iterator"],
)
def test_a_failover_loses_nothing(proxied, consumer, size, kills):
    report = LossOracle(
        world=lambda: a_world(proxied, EntireCollection()),
        client=World.consumer_client,
        request=lambda world: world.request(Now(), size),
        life=failover(),
        consumer=consumer,
    ).run(max_kills=kills)
    report.assert_all_kept()


@pytest.mark.parametrize("trouble", ["cut", "drop"])
def test_a_call_without_servers_fails_at_the_deadline_and_can_be_tried_again(proxied, database, trouble):
    """All members are out of reach: connections are reset, or stay open and lose all bytes."""
    items, address = proxied.client()[database].create_collection("c"), ResourceAddress(database, "c")
    with connect(proxied.uri()) as client, ExitStack() as stack:
        token = read(client, address, Now()).continuation_token
        items.insert_one({})
        token = read(client, address, token).continuation_token
        for proxy in proxied.proxies.values():
            stack.callback(proxy.heal)
            getattr(proxy, trouble)()
        items.insert_one({"_id": 2})

        def attempt():
            began, act = time.monotonic(), lambda: read(client, address, token, timeout=1.0, wait=0.5)
            assert refusal(ErrorCategory.TRANSIENT_FAILURE, act).retryable
            return time.monotonic() - began

        for _ in range(2):
            assert_prompt(3.0, attempt, at_most=11.0)
        stack.close()
        assert ids(read(client, address, token, timeout=CALL, wait=CALL)) == [2]


class TestEnd:
    """A page is idle only after every change that a majority had acknowledged before the call."""

    @pytest.fixture
    def items(self, proxied, database):
        proxied.wait_healthy()
        yield proxied.client()[database].create_collection("c", write_concern=WriteConcern("majority"))
        proxied.wait_healthy()

    @pytest.mark.parametrize("monitoring", ["stream", "poll"])
    def test_a_former_primary_is_left(self, proxied, items, monitoring):
        """In the mode `poll`, the client does not learn for a minute that there was an election."""
        options = {"serverMonitoringMode": monitoring, "heartbeatFrequencyMS": 60_000}
        # With this option, a stream is never replaced by one that waits longer.
        asked = {"provider_options": MongoOptions(max_await_time_ms=10)}
        address = ResourceAddress(items.database.name, "c")
        with connect(proxied.uri(**options)) as client:
            *_, page = walk(client, address, Now(), **asked)
            former = proxied.wait_primary()
            with deaf(proxied.direct(former)):
                proxied.step_down()
                proxied.wait_primary()
                items.insert_one({"_id": 1})
                until = time.monotonic() + CALL
                while not page.events and time.monotonic() < until:
                    page = read(client, address, page.continuation_token, timeout=5.0, **asked)
                    assert page.events or not page.idle
                assert ids(page) == [1]
            proxied.stand(former)

    def test_a_lagging_secondary_does_not_show_it(self, proxied, items):
        address = ResourceAddress(items.database.name, "c")
        with watched(proxied.uri(readPreference="secondary")) as (client, commands):
            *_, page = walk(client, address, Now())
            member = "{}:{}".format(*commands.opening()[-1].connection_id)
            with deaf(proxied.direct(member)):
                items.insert_one({"_id": 1})
                assert ids(*walk(client, address, page.continuation_token)) == [1]

    def test_that_of_a_secondary_that_is_connected_directly_is_what_it_has(self, proxied, items):
        primary = proxied.wait_primary()
        member = next(each for each in proxied.members if each != primary)
        address = ResourceAddress(items.database.name, "c")
        own = proxied.direct(member)[address.database]
        wait_until(lambda: own.list_collection_names())  # the member has the collection
        with connect(f"mongodb://{member}/?directConnection=true") as client:
            page = read(client, address, Now())
            items.with_options(write_concern=WriteConcern(3)).insert_one({"_id": 1})
            pages = [page]
            while not (pages[-1].idle and ids(*pages)) and len(pages) < 10:
                pages.append(read(client, address, pages[-1].continuation_token))
            assert (pages[-1].idle, ids(*pages)) == (True, [1])
            with deaf(proxied.direct(member)):
                items.insert_one({"_id": 2})
                assert read(client, address, pages[-1].continuation_token).idle
            wait_until(lambda: own["c"].find_one({"_id": 2}))
            assert ids(*walk(client, address, pages[-1].continuation_token)) == [2]

    def test_a_write_that_no_majority_has_is_not_the_end(self, proxied, items, monkeypatch):
        """The primary acknowledges writes with w: 1 while the other members take none."""
        monkeypatch.setattr(members, "_MAJORITY_SECONDS", 0.0)
        monkeypatch.setattr(members, "_BEHIND_SECONDS", 0.5)
        address, primary = ResourceAddress(items.database.name, "c"), proxied.wait_primary()
        alone = items.with_options(write_concern=WriteConcern(w=1))
        others = [member for member in proxied.members if member != primary]
        with connect(proxied.uri()) as client:
            *_, page = walk(client, address, Now())
            with ExitStack() as stack:
                for member in others:
                    stack.enter_context(deaf(proxied.direct(member)))
                alone.insert_one({"_id": "unread"})
                with connect(proxied.uri()) as new:  # such as a job that starts now
                    for each in (client, new):
                        assert not read(each, address, page.continuation_token).idle
                # After some time, this is an outage. A heartbeat has to tell that the members are behind.
                monkeypatch.setattr(members, "_STALLED_SECONDS", 1.0)
                time_limit = time.monotonic() + 2 * CALL
                said = ""
                while not all(f"{member} is " in said for member in others) and time.monotonic() < time_limit:
                    alone.insert_one({})
                    call = partial(read, client, address, page.continuation_token)
                    said = str(refusal(ErrorCategory.TRANSIENT_FAILURE, call, "majority", "s behind"))
                assert all(f"{member} is " in said for member in others)
                assert f"{primary} is" not in said
                request = ChangeFeedRequest(address, FromContinuationToken(page.continuation_token))
                job = client.iterate_changes(request, until_idle=True, max_outage_seconds=1.0)
                refusal(ErrorCategory.TRANSIENT_FAILURE, lambda: list(job), "majority")
            *pages, last = walk(client, address, page.continuation_token)
            assert ids(*pages, last)[0] == "unread"


@pytest.fixture(scope="module")
def pair():
    return shared("pair", 3, arbiter=True)


@pytest.mark.slow
class TestTwoMembersAndAnArbiter:
    """The arbiter votes, so there is a primary; but without the secondary no majority has its writes."""

    @pytest.fixture
    def items(self, pair, database, monkeypatch):
        monkeypatch.setattr(members, "_MAJORITY_SECONDS", 0.0)
        pair.wait_healthy()
        yield pair.client()[database].create_collection("c")
        pair.wait_healthy()

    def test_without_the_secondary_a_page_is_not_idle(self, pair, items, monkeypatch):
        address, primary = ResourceAddress(items.database.name, "c"), pair.wait_primary()
        (secondary,) = {*pair.members[:-1]} - {primary}
        items.with_options(write_concern=WriteConcern("majority")).insert_one({"_id": 0})
        with connect(pair.uri()) as client:
            token = read(client, address, Now()).continuation_token
            pair.kill(secondary)
            try:
                items.with_options(write_concern=WriteConcern(w=1)).insert_one({"_id": 1})
                with connect(pair.uri()) as new:
                    for each in (client, new):
                        page = read(each, address, token)
                        assert (page.idle, page.events) == (False, ())
                monkeypatch.setattr(members, "_STALLED_SECONDS", 1.0)
                request = ChangeFeedRequest(address, FromContinuationToken(token))
                job = client.iterate_changes(request, until_idle=True, max_outage_seconds=1.0)
                said = refusal(ErrorCategory.TRANSIENT_FAILURE, lambda: list(job), "majority")
                assert f"{secondary} cannot be reached" in str(said)
            finally:
                pair.restart(secondary)
            assert ids(*walk(client, address, token)) == [1]

    def test_a_secondary_that_is_locked_is_not_a_majority(self, pair, items):
        """`fsyncLock` stops a member from taking writes, for example during a backup."""
        address, primary = ResourceAddress(items.database.name, "c"), pair.wait_primary()
        (secondary,) = {*pair.members[:-1]} - {primary}
        items.with_options(write_concern=WriteConcern("majority")).insert_one({"_id": 0})
        with connect(pair.uri()) as client:
            token = read(client, address, Now()).continuation_token
            pair.direct(secondary).admin.command("fsync", lock=True)
            try:
                # The locked member may still take what it has already received.
                page, number = read(client, address, token), 0
                while page.idle:
                    number += 1
                    items.with_options(write_concern=WriteConcern(w=1)).insert_one({"_id": number})
                    page = read(client, address, token)
                    assert number < 50
            finally:
                pair.direct(secondary).admin.command("fsyncUnlock")
            assert ids(*walk(client, address, token)) == list(range(1, number + 1))


def test_a_change_that_is_rolled_back_is_never_seen(proxied, database):
    """The change is never delivered, because only a primary that is cut off from the other members has it."""
    items = proxied.client()[database].create_collection("c", write_concern=WriteConcern("majority"))
    address = ResourceAddress(database, "c")
    with connect(proxied.uri(connectTimeoutMS=1000)) as client:
        token = read(client, address, Now()).continuation_token
        primary = proxied.wait_primary()
        alone = proxied.direct(primary)[database].get_collection("c", write_concern=WriteConcern(w=1))
        with ExitStack() as stack:
            for member in proxied.members:
                if member != primary:
                    stack.enter_context(deaf(proxied.direct(member)))
            alone.insert_one({"_id": "lost"})
            assert alone.find_one({"_id": "lost"})
            page = read(client, address, token, timeout=CALL, wait=0.5)
            assert ids(page) == []
            proxied.kill(primary)
        proxied.wait_primary()
        items.insert_one({"_id": "kept"})
        proxied.restart(primary)
        proxied.wait_healthy()
        assert ids(read(client, address, page.continuation_token, timeout=CALL, wait=CALL)) == ["kept"]
        assert [document["_id"] for document in items.find()] == ["kept"]


@contextmanager
def committing(one, database):
    """Let a write hang that has its place in the order, while one with a later place is committed."""
    items = one.client()[database]["c"]
    point = {"configureFailPoint": "hangAfterCollectionInserts"}
    admin = one.direct(one.primary()).admin
    count = admin.command({**point, "mode": "alwaysOn", "data": {"collectionNS": f"{database}.c"}})["count"]
    slow = threading.Thread(target=items.insert_one, args=({"_id": "slow"},))
    try:
        slow.start()
        admin.command(
            {"waitForFailPoint": point["configureFailPoint"], "timesEntered": count + 1, "maxTimeMS": 30_000}
        )
        other = one.client()[database].get_collection("other", write_concern=WriteConcern(w=1))
        other.insert_one({"_id": "other"})
        yield
    finally:
        admin.command({**point, "mode": "off"})
        slow.join()


def test_now_is_before_a_write_that_is_still_being_committed(one, reader, database):
    """A write gets its place in the order before it is committed; one with a later place may be faster."""
    here = ResourceAddress(database, "c")
    one.client()[database]["c"].insert_one({"_id": 0})
    with committing(one, database):
        token = read(reader, here, Now()).continuation_token
    assert ids(*walk(reader, here, token)) == ["slow"]


@pytest.mark.parametrize("scope", [EntireCollection(), EntireDatabase()])
def test_a_snapshot_begins_before_a_write_that_is_still_being_committed(one, reader, database, scope):
    here = ResourceAddress(database, "c" if scope == EntireCollection() else None)
    one.client()[database]["c"].insert_one({"_id": 0})
    with committing(one, database):
        page = read(reader, here, Snapshot(), scope=scope)
    pages = [page, *walk(reader, here, page.continuation_token, scope=scope)]
    events = [event for page in pages for event in page.events if event.address.collection == "c"]
    assert {event.key["_id"] for event in events} == {0, "slow"}
    assert [event.key["_id"] for event in events if not event.backfilled] == ["slow"]
