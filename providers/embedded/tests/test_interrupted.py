"""Tests that a store can be read on after Ctrl-C in any line of a call, which runs in the caller's thread."""

import gc
import sqlite3
from pathlib import Path

import pytest

import multiclouddb_embedded
from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    FromContinuationToken,
    OperationOptions,
    Snapshot,
    connect,
)
from multiclouddb_conformance.interrupting import ROOMS, interrupted_at, lines_of
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_embedded.provider import EmbeddedProvider

LIMIT = OperationOptions(3.0)  # a lock that is held for ever shows soon
EVERYWHERE = (*ROOMS, str(Path(multiclouddb_embedded.__file__).parent))


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr("multiclouddb_embedded.reader.AT_ONCE_SECONDS", 10.0)  # also on a busy machine
    with EmbeddedStore(tmp_path / "store.db", durable=False) as made:
        address = made.create_collection("orders", partitions=1)
        for number in range(30):
            made.put("orders", f"o-{number}", {"n": number})
        yield made.path, address


class Client:
    """A client that has lived for a while, and the request of its next call."""

    def __init__(self, store, start):
        path, address = store
        self.client = connect(f"embedded://{path}")
        self.request = ChangeFeedRequest(address, start, max_page_size=3)
        token = self.client.read_changes(self.request).continuation_token
        self.request = ChangeFeedRequest(address, FromContinuationToken(token), max_page_size=3)

    def call(self):
        self.client.read_changes(self.request)
        self.client.list_physical_partitions(self.request.address)

    def ids(self, request):
        return [event.event_id for event in self.client.read_changes(request, LIMIT).events]

    def check(self, line, cold):
        interrupted_at(line, self.call, EVERYWHERE)
        assert self.ids(self.request) == cold.ids(self.request)
        assert gc.isenabled()
        self.client.close()


def check_all(store, start):
    client, cold = Client(store, start), Client(store, start)
    lines = dict.fromkeys(lines_of(client.call, EVERYWHERE))
    client.client.close()
    for line in lines:
        Client(store, start).check(lambda place, line=line: place == line, cold)
    cold.client.close()
    return len(lines)


def open_connections():
    # Not files: SQLite keeps those of closed connections for the next ones, while it has locks on them.
    gc.collect()
    # By type: isinstance asks a weak proxy for what it points to, which may be gone.
    return sum(issubclass(type(each), sqlite3.Connection) for each in gc.get_objects())


@pytest.mark.parametrize(
    "start",
    [pytest.param(Beginning(), id="changes"), pytest.param(Snapshot(), marks=pytest.mark.soak, id="scan")],
)
def test_the_next_call_goes_on(store, start):
    before = open_connections()
    assert check_all(store, start) > 500
    assert open_connections() == before


def test_a_lock_that_stays_held_is_found(store, monkeypatch):
    monkeypatch.setattr(EmbeddedProvider, "interrupted", lambda provider: None)
    with pytest.raises(Exception, match="before the deadline"):
        check_all(store, Beginning())
