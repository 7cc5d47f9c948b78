"""Tests that the oplog rolls over: an expired position is an error, and no read jumps silently."""

import itertools
import time

import attrs
import pytest
from pymongo import MongoClient

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    FromContinuationToken,
    Gap,
    MulticloudDbError,
    Now,
    ResourceAddress,
    SkipToOldest,
    connect,
)

from .monitor import PATIENCE, Commands
from .servers.oplog import wait_uncut

NOTE = "x" * 100_000
LONG = 180.0
"""The time limit in seconds.

A server truncates its oplog once a second, but a busy server does it less often.
"""


class World:
    """One collection, and the oplog with its changes."""

    def __init__(self, server, database):
        self.server, self.database = server, database
        self.admin, self.log = server.client().admin, server.client().local["oplog.rs"]
        self.items = server.client()[database].create_collection("items")
        self.others = server.client()[database].create_collection("others")

    def connect(self, **settings):
        return connect(ClientConfig("mongo", {"url": self.server.uri()}), **settings)

    def request(self, start=None, **others):
        start = FromContinuationToken(start) if isinstance(start, str) else start or Now()
        return ChangeFeedRequest(ResourceAddress(self.database, "items"), start, **others)

    def write(self, *numbers):
        for number in numbers:
            self.items.insert_one({"_id": number})

    def ends(self):
        """Return the oldest and the newest time in the oplog."""
        entries = [self.log.find_one(sort=[("$natural", way)]) for way in (1, -1)]
        return [entry["ts"] for entry in entries]

    def roll_over(self, fill=None, *, wholly=True):
        """Fill the oplog until its current entries have been removed."""
        # With `wholly`, wait until it is no longer truncated. By default the oplog is filled with notes,
        # which no change stream contains.
        _, newest = self.ends()
        until = time.monotonic() + LONG
        while self.ends()[0] <= newest:
            assert time.monotonic() < until
            for _ in range(12):
                (fill or self._note)()
            # The server removes only entries that a checkpoint covers, and looks for them once a second.
            self.admin.command("fsync")
        if wholly:
            wait_uncut(lambda: self.ends()[0])

    def _note(self):
        self.admin.command({"appendOplogNote": 1, "data": {"note": NOTE}, "writeConcern": {"w": 1}})


@pytest.fixture
def world(small, database):
    return World(small, database)


def keys(page):
    return [event.key.components["_id"] for event in page.events]


def read(client, request):
    """Return the next page that has content, and its position."""
    until = time.monotonic() + PATIENCE
    while True:
        page = client.read_changes(request)
        if page.events or page.notices:
            return page
        assert time.monotonic() < until
        request = attrs.evolve(request, start_position=FromContinuationToken(page.continuation_token))


def expired(client, request):
    with pytest.raises(MulticloudDbError) as caught:
        client.read_changes(request)
    assert caught.value.category is ErrorCategory.CHECKPOINT_EXPIRED
    assert not caught.value.retryable
    return caught.value


class TestLiveReader:
    """Tests an open stream whose position is no longer in the oplog."""

    def overtaken(self, world, client, **others):
        """Return a request that continues after two of six changes."""
        # The server has already sent some of the other changes.
        token = client.read_changes(world.request()).continuation_token
        world.write(1, 2, 3, 4, 5, 6)
        page = read(client, world.request(token, max_page_size=2))
        assert keys(page) == [1, 2]
        world.roll_over()
        world.write(7, 8)
        return world.request(page.continuation_token, max_page_size=2, **others)

    def to_the_end(self, client, request, found):
        """Return pages until there are no more pages, or until an error is raised."""
        while True:
            page = client.read_changes(request)
            found += [*page.notices, *keys(page)]
            if page.idle:
                return
            request = attrs.evolve(request, start_position=FromContinuationToken(page.continuation_token))

    def test_hands_out_what_it_has_and_then_has_expired(self, world):
        commands, found = Commands(), []
        with (
            MongoClient(world.server.uri(), event_listeners=[commands]) as native,
            world.connect(native_client=native) as client,
        ):
            request = self.overtaken(world, client)
            with pytest.raises(MulticloudDbError) as caught:
                self.to_the_end(client, request, found)
        assert caught.value.category is ErrorCategory.CHECKPOINT_EXPIRED
        assert caught.value.detail.oldest_position
        assert found == [3, 4, 5, 6]
        # CappedPositionLost for the open stream, and ChangeStreamHistoryLost for a stream that starts from
        # its token.
        failed = [(event.command_name, event.failure["code"]) for event in commands.events("failed")]
        assert failed[:2] == [("getMore", 136), ("aggregate", 286)]

    @pytest.mark.soak
    def test_that_is_too_slow_never_jumps_in_silence(self, world):
        """If a reader is slower than the rollover of the oplog, it reports each gap."""
        written, found = 0, [0]

        def write_more():
            nonlocal written
            written += 1
            world.items.insert_one({"_id": written, "note": NOTE})

        with world.connect() as client:
            token = client.read_changes(world.request()).continuation_token
            for _ in range(3):
                world.roll_over(write_more)
                for _ in range(4):
                    page = read(client, world.request(token, max_page_size=1, on_expired=SkipToOldest()))
                    found += [*page.notices, *keys(page)]
                    token = page.continuation_token
            later = world.request(token, max_page_size=1, on_expired=SkipToOldest())
            self.to_the_end(client, later, found)
        for before, later in itertools.pairwise(found):
            if not isinstance(before, Gap) and not isinstance(later, Gap):
                assert later == before + 1
        assert any(isinstance(each, Gap) for each in found)
        numbers = [each for each in found if not isinstance(each, Gap)]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == written  # it continued after each gap
        assert len(numbers) <= written  # and there was at least one gap


class TestIdleFeed:
    """Tests a collection without changes while many changes are made elsewhere on the server."""

    def fill(self, world):
        world.others.insert_one({"note": NOTE})

    def test_moves_along_and_survives(self, world):
        with world.connect() as client:
            tokens = [client.read_changes(world.request()).continuation_token]

            def fill_and_read():
                self.fill(world)
                page = client.read_changes(world.request(tokens[-1]))
                assert page.events == ()
                tokens.append(page.continuation_token)

            world.roll_over(fill_and_read)
            world.write(1)
            assert keys(read(client, world.request(tokens[-1]))) == [1]
            # This proves that the position had to move: its first position has expired.
            expired(client, world.request(tokens[0]))


class TestStart:
    def test_at_a_time_before_the_log_begins_has_expired(self, world):
        """A start at a time before the beginning of the log has expired."""
        # It must not be treated as a start at the beginning.
        world.write(1)
        moment = world.ends()[1].as_datetime()
        world.roll_over()
        with world.connect() as client:
            assert "AtTime" in str(expired(client, world.request(AtTime(moment))))

    def test_at_the_beginning_jumps_over_nothing_while_the_log_is_cut(self, world):
        """While the oplog is truncated, its first entry changes all the time."""
        # A changed first entry alone does not prove a loss.
        with world.connect() as client:
            for number in range(4):
                world.roll_over(wholly=False)
                world.write(number)
                until = time.monotonic() + PATIENCE
                while time.monotonic() < until:
                    try:
                        page = read(client, world.request(Beginning()))
                        break
                    except MulticloudDbError as error:
                        if not (error.retryable or error.category is ErrorCategory.CHECKPOINT_EXPIRED):
                            raise
                assert keys(page)[-1] == number
