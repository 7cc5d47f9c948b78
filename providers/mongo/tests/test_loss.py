"""Tests that no event is lost, wherever a consumer is killed and whatever a server does."""

import itertools
from contextlib import contextmanager

import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    EntireCollection,
    EntireDatabase,
    Now,
    ResourceAddress,
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
)

APPLICATION = "a-consumer"
KEYS = 9
LABEL = "ResumableChangeStreamError"
UNREACHABLE, TIME_LIMIT = 6, 262
WORLDS = itertools.count()


class World:
    """One collection in its own database."""

    def __init__(self, server, scope):
        self.server, self.scope, self.name = server, scope, f"life-{next(WORLDS)}"
        self.client = server.client()
        self.items = self.client[self.name].create_collection("items")

    def request(self, start, size):
        collection = None if isinstance(self.scope, EntireDatabase) else "items"
        address = ResourceAddress(self.name, collection)
        return ChangeFeedRequest(address, start, scope=self.scope, max_page_size=size)

    def consumer_client(self):
        return connect(ClientConfig("mongo", {"url": self.server.uri(appName=APPLICATION)}))

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

    def close(self):
        self.client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
        for name in (self.name, f"{self.name}-beside"):
            self.client.drop_database(name)


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
def test_a_consumer_that_is_killed_loses_nothing(one, start, consumer, size, scope, restarts):
    @contextmanager
    def world():
        made = World(one, scope)
        try:
            yield made
        finally:
            made.close()

    report = LossOracle(
        world=world,
        client=World.consumer_client,
        request=lambda world: world.request(start, size),
        life=life(restarts=restarts),
        consumer=consumer,
    ).run(max_kills=2)
    report.assert_all_kept()
    assert report.kills > 3
