"""Sets the environment variables that azure-cosmos reads in the tests of this provider."""

import orjson
import pytest
from azure.cosmos import CosmosClient

from multiclouddb_api import connect
from multiclouddb_cosmos.feed import CosmosFeed
from multiclouddb_cosmos_emulator.auth import WELL_KNOWN_KEY
from multiclouddb_cosmos_emulator.writes import Transaction

from .harness import close_client
from .world import DATABASE, NAME, World


@pytest.fixture(autouse=True)
def key(monkeypatch):
    """Put the emulator's key into the environment, as an application does."""
    monkeypatch.setenv("AZURE_COSMOS_KEY", WELL_KNOWN_KEY)


@pytest.fixture
def hasty(monkeypatch):
    """Make the reader poll idle ranges after only a short pause, because calls to the emulator are cheap."""
    monkeypatch.setattr("multiclouddb_cosmos.reader._FIRST_PAUSE", 0.005)
    monkeypatch.setattr("multiclouddb_cosmos.reader._MOST_PAUSE", 0.02)


@pytest.fixture
def hidden(monkeypatch):
    """Hide the private names of azure-cosmos, as if a version had none of them."""
    monkeypatch.setattr("multiclouddb_cosmos.transport.separate_locks", lambda client: None)


@pytest.fixture
def prompt(monkeypatch):
    """Let a change be in the feed as soon as it is committed, as in the emulator."""
    monkeypatch.setattr(CosmosFeed, "visible_after", lambda feed: 0.02)
    monkeypatch.setattr("multiclouddb_verify.source._CLOCK_ERROR", 0.0)


@pytest.fixture
def make_world():
    """Provide a factory of worlds, which are closed after the test."""
    made = []

    def make(*arguments, **settings):
        made.append(World(*arguments, **settings))
        return made[-1]

    yield make
    for each in made:
        each.__exit__(None, None, None)


@pytest.fixture
def world(make_world):
    return make_world(2)


@pytest.fixture
def lone(make_world):
    return make_world(1)


@pytest.fixture
def native(world):
    made = CosmosClient(world.server.endpoint, world.server.key, enable_endpoint_discovery=False)
    yield made
    world.server.faults.clear()
    close_client(made)


@pytest.fixture
def own(world, native):
    with connect(world.config(), native_client=native) as client:
        yield client


@pytest.fixture
def put_text():
    """Return a function that writes or deletes an item given as JSON, whose numbers keep their spelling."""

    def put(world, text, *, delete=False):
        with world.server._lock:
            container = world.server._container(DATABASE, NAME)
            document = orjson.loads(text)
            transaction = Transaction(container, container.definition.of_document(document))
            if delete:
                transaction.delete(document["id"])
            else:
                transaction.upsert(document)
            transaction.commit()

    return put
