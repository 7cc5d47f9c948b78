"""Provides a table on a scripted server with the library's client, and checks of its events."""

from contextlib import contextmanager

import pytest

from multiclouddb_api import (
    ChangeFeedRequest,
    ClientConfig,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    OperationOptions,
    ResourceAddress,
)
from multiclouddb_spanner.provider import PLUGIN
from multiclouddb_spanner_emulator import Habits
from multiclouddb_spi import Deadline, FeedSpec

from .scripted import Scripted

MINUTE, HOUR, DAY = 60, 3600, 86400
TABLE = "CREATE TABLE items (id STRING(MAX) NOT NULL, n INT64, text STRING(MAX), f FLOAT64) PRIMARY KEY (id)"
STREAM = "CREATE CHANGE STREAM items_stream FOR items OPTIONS (value_capture_type = 'NEW_ROW_AND_OLD_VALUES')"
POSTGRES = (
    "CREATE TABLE items (id varchar NOT NULL, n bigint, PRIMARY KEY (id))",
    "CREATE CHANGE STREAM items_stream FOR items WITH (value_capture_type = 'NEW_ROW')",
)


class Feed:
    """A table on a scripted server, with the library's client."""

    def __init__(self, *statements, postgres=False, **habits):
        made = statements or (POSTGRES if postgres else (TABLE, STREAM))
        self.scripted = Scripted(*made, habits=Habits(**habits), postgres=postgres)
        self.server = self.scripted.server
        self.address = ResourceAddress(self.scripted.name, "items")
        self.client = self.scripted.connect()

    def put(self, *rows, names=("id", "n")):
        return self.scripted.write("items", *rows, names=names)

    def fill(self, count, start=0):
        for number in range(start, start + count):
            self.put((f"k{number}", number))

    def run(self, *statements):
        self.server.execute(self.scripted.database, *statements)

    def open_partitions(self):
        return self.server.open_partitions(self.scripted.database, "items_stream")

    def page(self, start, size=0, *, timeout=30.0, wait=0.0, client=None, **settings):
        position = FromContinuationToken(start) if isinstance(start, str) else start
        request = ChangeFeedRequest(self.address, position, max_page_size=size, **settings)
        return (client or self.client).read_changes(request, OperationOptions(timeout, wait))

    def tried(self, *arguments, **settings):
        """Try to read a page. Return None if the call must be repeated."""
        try:
            return self.page(*arguments, **settings)
        except MulticloudDbError as error:
            if not error.retryable:
                raise
            return None

    def refused(self, category, start, **settings):
        """Check that a drain ends in an error of a category; return its message."""
        with pytest.raises(MulticloudDbError) as caught:
            self.drain(start, **settings)
        assert caught.value.category == category, caught.value
        assert "; " in caught.value.message
        return caught.value.message

    def token(self, **settings):
        return self.page(Now(), **settings).continuation_token

    def pages(self, start, size=0, *, fresh=False, **settings):
        """Read every page up to the current end. If `fresh` is set, read each page with a new client."""
        for _ in range(5000):
            page = self.page(start, size, **settings)
            yield page
            start = page.continuation_token
            if page.idle or page.partition_retired:
                return
            if fresh:
                self.restart()
        pytest.fail("never idle")

    def drain(self, start, size=0, **settings):
        return [event for page in self.pages(start, size, **settings) for event in page.events]

    def restart(self):
        self.client.close()
        self.client = self.scripted.connect()

    def close(self):
        self.client.close()
        self.scripted.close()


@contextmanager
def feed(*statements, **habits):
    made = Feed(*statements, **habits)
    try:
        yield made
    finally:
        made.close()


class Opened:
    def __init__(self, items, host=None):
        url = f"spanner://tests/tests?emulator_host={host}" if host else items.scripted.url
        self.provider = PLUGIN.connect(ClientConfig("spanner", {"url": url}), None)
        self.feed = self.provider.open_feed(FeedSpec(items.address), self.soon())

    def soon(self):
        return Deadline.after(60)

    def starts(self, position):
        return {seed.partition_id: seed.cursor for seed in self.feed.start(position, None, self.soon())}

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.provider.close()


def numbers(events):
    return [event.new_item_state["n"] for event in events if event.new_item_state is not None]


def once(events, count):
    """Check that the given number of events arrived, and that each event arrived once."""
    assert len({event.event_id for event in events}) == len(events) == count


def in_order(events):
    """Check that the changes of each key are in the order of `n`, which counts them."""
    last = {}
    for event in events:
        number = event.new_item_state["n"]
        assert number > last.get(str(event.key), -1), event
        last[str(event.key)] = number
