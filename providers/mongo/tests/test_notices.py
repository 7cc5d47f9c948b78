"""Tests on a real server that a notice keeps its place between earlier and later events."""

import pytest

from multiclouddb_api import (
    ChangeFeedRequest,
    ClientConfig,
    Dropped,
    EntireCluster,
    EntireDatabase,
    FromContinuationToken,
    Invalidated,
    Now,
    OperationOptions,
    Renamed,
    ResourceAddress,
    connect,
)
from multiclouddb_mongo import MongoOptions
from multiclouddb_mongo.provider import PLUGIN
from multiclouddb_spi import Deadline, FeedSpec, Planner, read_range

FOLLOW = MongoOptions(after_invalidate="follow")


class Reading:
    """Reads one feed page by page."""

    # The reader returns each page as a list of ids and notices, in the order that the documentation
    # guarantees.

    def __init__(self, uri, address, size=0, **asked):
        self.uri, self.address, self.size, self.asked = uri, address, size, asked

    def page(self, client, start):
        position = FromContinuationToken(start) if isinstance(start, str) else start
        request = ChangeFeedRequest(self.address, position, max_page_size=self.size, **self.asked)
        page = client.read_changes(request, OperationOptions(30.0, 0.0))
        return [event.key.components["_id"] for event in page.events], list(page.notices), page

    def begin(self):
        """Return a token that was made before the first write."""
        with connect(self.uri) as client:
            return self.page(client, Now())[2].continuation_token

    def pages(self, token, *, restart=False):
        """Read up to the first idle page."""
        # Return the pages that are not empty, each with the token before it.
        found, client = [], connect(self.uri)
        try:
            for _ in range(200):
                ids, notices, page = self.page(client, token)
                if ids or notices:
                    found.append((token, ids, notices))
                if page.idle:
                    return found
                token = page.continuation_token
                if restart:
                    client.close()
                    client = connect(self.uri)
        finally:
            client.close()
        raise AssertionError("not idle")


def in_order(pages):
    return [each for _, ids, notices in pages for each in (*ids, *notices)]


def check_every_token(reading, pages):
    """Check that a new process can start from any token and gets the rest in the same order."""
    for number, (token, *_) in enumerate(pages):
        assert in_order(reading.pages(token)) == in_order(pages[number:])


@pytest.mark.parametrize(
    ("size", "restart", "scope"), [(0, False, EntireDatabase()), (1, True, EntireCluster())], ids=str
)
class TestDatabase:
    def reading(self, one, database, size, scope):
        address = (
            ResourceAddress(database=database) if isinstance(scope, EntireDatabase) else ResourceAddress()
        )
        return Reading(one.uri(), address, size, scope=scope)

    def test_each_of_several_facts_keeps_its_place(self, one, database, size, restart, scope):
        native = one.client()[database]
        native.create_collection("c")
        native.create_collection("stays")  # a database without a collection does not exist
        reading = self.reading(one, database, size, scope)
        begin = reading.begin()
        native["c"].insert_many([{"_id": 1}, {"_id": 2}])
        native["c"].rename("d")
        native["d"].insert_one({"_id": 3})
        native["d"].drop()
        native["c"].insert_one({"_id": 4})
        native["c"].drop()
        pages = reading.pages(begin, restart=restart)
        told = [Renamed(f"{database}/c", f"{database}/d"), Dropped(f"{database}/d"), Dropped(f"{database}/c")]
        assert in_order(pages) == [1, 2, told[0], 3, told[1], 4, told[2]]
        check_every_token(reading, pages)


class TestPlanned:
    """Tests ranges that are planned and read as Spark does: they contain all events, each exactly once."""

    @pytest.mark.parametrize("most", [1])
    def test_events_on_both_sides_of_a_notice_are_read(self, one, database, most):
        native = one.client()[database]
        native.create_collection("c")
        provider = PLUGIN.connect(ClientConfig("mongo", {"url": one.uri()}), None)
        try:
            spec = FeedSpec(ResourceAddress(database=database), EntireDatabase(), options=MongoOptions())
            feed = provider.open_feed(spec, Deadline.after(60))
            planner = Planner(provider, feed)
            at = planner.start(Now(), Deadline.after(60))
            native["c"].insert_many([{"_id": 1}, {"_id": 2}])
            native["c"].drop()
            native["c"].insert_one({"_id": 3})
            native["c"].drop()
            native["c"].insert_one({"_id": 4})
            read = []
            while (step := planner.advance(at, most, Deadline.after(60))).moved:
                found = [
                    event.key.components["_id"]
                    for part in step.ranges()
                    for batch in read_range(provider, feed, part)
                    for event in batch.events(0, len(batch))
                ]
                assert len(found) <= (most or 4)
                read += found
                at = step.after
            assert read == [1, 2, 3, 4]
        finally:
            provider.close()


class TestFollow:
    def lives(self, one, database, reading):
        """Make three collections with one name, one after another."""
        native = one.client()[database]
        native.create_collection("c")
        begin = reading.begin()
        for life in range(3):
            native["c"].insert_many([{"_id": f"{life}.{number}"} for number in range(2)])
            if life < 2:
                native["c"].drop()
                native.create_collection("c")
        return begin

    @pytest.mark.parametrize("size", [1, 0])
    def test_a_process_a_page_has_every_notice_in_its_place(self, one, database, size):
        reading = Reading(one.uri(), ResourceAddress(database, "c"), size, provider_options=FOLLOW)
        begin = self.lives(one, database, reading)
        pages = reading.pages(begin, restart=True)
        gone = [Dropped(f"{database}/c"), Invalidated("the server invalidated the stream")]
        assert in_order(pages) == ["0.0", "0.1", *gone, "1.0", "1.1", *gone, "2.0", "2.1"]
        check_every_token(reading, pages)
