"""Tests that the oplog rolls over: an expired position is an error, and no read jumps silently."""

import time

import pytest

from multiclouddb_api import (
    Beginning,
    ErrorCategory,
    Gap,
    MulticloudDbError,
    ResourceAddress,
    SkipToOldest,
    connect,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.waiting import wait_until

from .monitor import PATIENCE, Feed, ids, keys, told, walk, watched
from .servers.mongod import shared, wait_uncut

NOTE = "x" * 100_000
LONG = 180.0
"""The time limit in seconds.

A server truncates its oplog once a second, but a busy server does it less often.
"""


class World:
    def __init__(self, server, database):
        self.server, self.address = server, ResourceAddress(database, "items")
        self.admin, self.log = server.client().admin, server.client().local["oplog.rs"]
        self.items = server.client()[database].create_collection("items")
        self.others = server.client()[database].create_collection("others")

    def write(self, *numbers):
        for number in numbers:
            self.items.insert_one({"_id": number})

    def ends(self):
        entries = [self.log.find_one({}, ["ts"], sort=[("$natural", way)]) for way in (1, -1)]
        return [entry["ts"] for entry in entries]

    def roll_over(self, fill=None, *, wholly=True):
        """Fill the oplog until its current entries have been removed."""
        # With `wholly`, wait until it is no longer truncated. By default the oplog is filled with notes,
        # which no change stream contains.
        note = {"appendOplogNote": 1, "data": {"note": NOTE}, "writeConcern": {"w": 1}}
        _, newest = self.ends()
        until = time.monotonic() + LONG
        while self.ends()[0] <= newest:
            assert time.monotonic() < until
            for _ in range(12):
                fill() if fill else self.admin.command(note)
            # The server removes only entries that a checkpoint covers, and looks for them once a second.
            self.admin.command("fsync")
        if wholly:
            wait_uncut(lambda: self.ends()[0])


@pytest.fixture
def world(small, database):
    return World(small, database)


def test_a_live_reader_hands_out_what_it_has(world):
    """The position of its open stream is no longer in the oplog."""
    found = []
    with watched(world.server.uri()) as (client, commands):
        feed = Feed(client, world.address, max_page_size=2)
        feed.read()
        world.write(1, 2, 3, 4, 5, 6)
        assert keys(feed.events(2)) == [1, 2]
        world.roll_over()
        world.write(7, 8)

        def read_to_the_end():
            while not (page := feed.read()).idle:
                found.extend([*page.notices, *ids(page)])

        # The server has already sent some of the changes.
        assert refusal(ErrorCategory.CHECKPOINT_EXPIRED, read_to_the_end).detail.oldest_position
    assert found == [3, 4, 5, 6]
    # CappedPositionLost for the open stream, and ChangeStreamHistoryLost for a stream that starts from its
    # token.
    failed = [(event.command_name, event.failure["code"]) for event in commands.events("failed")]
    assert failed[:2] == [("getMore", 136), ("aggregate", 286)]


def test_an_idle_feed_moves_along_and_survives(world):
    """The collection has no changes while many changes are made elsewhere on the server."""
    with connect(world.server.uri()) as client:
        feed = Feed(client, world.address)
        feed.read()
        first = feed.request

        def fill_and_read():
            world.others.insert_one({"note": NOTE})
            assert feed.read().events == ()

        world.roll_over(fill_and_read)
        world.write(1)
        assert keys(feed.events()) == [1]
        # This proves that the position had to move: its first position has expired.
        error = refusal(ErrorCategory.CHECKPOINT_EXPIRED, lambda: client.read_changes(first))
        assert not error.retryable


def test_a_start_at_the_beginning_jumps_over_nothing_while_the_log_is_cut(world):
    """While the oplog is truncated, its first entry changes all the time, which alone proves no loss."""
    with connect(world.server.uri()) as client:
        for number in range(4):
            world.roll_over(wholly=False)
            world.write(number)
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until:
                try:
                    page = next(page for page in walk(client, world.address, Beginning()) if page.events)
                    break
                except MulticloudDbError as error:
                    if not (error.retryable or error.category is ErrorCategory.CHECKPOINT_EXPIRED):
                        raise
            assert ids(page)[-1] == number


def test_a_log_that_begins_within_a_transaction_is_read_from_its_end_on(database):
    """The server cannot send a transaction whose first part was removed (SERVER-112253)."""
    # Each document has an entry of its own. After a restart, the server also cuts within the transaction.
    parts = {"maxNumberOfTransactionOperationsInSingleOplogEntry": 1}
    server = shared("parts", oplog_mb=10, parameters=parts)
    world = World(server, database)
    with connect(server.uri()) as client:
        token = Feed(client, world.address).read().continuation_token
    session = server.client().start_session()
    with session, session.start_transaction():
        for number in range(40):
            world.items.insert_one({"_id": number, "note": 2 * NOTE}, session=session)
    world.admin.command("fsync")
    server.kill(server.members[0])
    server.restart(server.members[0])
    server.wait_primary()
    world.write("after")
    note = {"appendOplogNote": 1, "data": {"note": 4 * NOTE}, "writeConcern": {"w": 1}}

    def left():
        return world.log.count_documents({"o.applyOps.ns": world.items.full_name})

    def covered():
        world.admin.command("fsync")
        return world.admin.command("replSetGetStatus")["lastStableRecoveryTimestamp"] >= world.ends()[1]

    # A log of 10 MB keeps at least its last 9 MB, and these notes have 8 MB, so it keeps the end of the
    # transaction. Notes wake the truncation, which removes only what a checkpoint covers. If they were not
    # counted, a quick machine would write so many before a checkpoint that all of it was removed.
    for _ in range(20):
        if left() < 40:
            break
        world.admin.command(note)
        wait_until(covered)
    wait_until(lambda: left() < 40, LONG)
    wait_uncut(lambda: world.ends()[0])
    assert left()
    with connect(server.uri()) as client:
        assert ids(*walk(client, world.address, Beginning())) == ["after"]
        pages = list(walk(client, world.address, token, on_expired=SkipToOldest()))
        assert ids(*pages) == ["after"]
        assert Gap in told(*pages)
