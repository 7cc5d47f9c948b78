"""Real servers for the tests of this provider, shared by the tests of a worker."""

import itertools

import pytest

from .servers.shared import running, shared, stop

COUNTER = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def _servers():
    yield
    stop()


@pytest.fixture(scope="session")
def one():
    """A replica set of one node."""
    return shared("one")


@pytest.fixture(scope="session")
def three():
    """A replica set of three nodes. A test that troubles one leaves the set healthy."""
    return shared("three", 3)


@pytest.fixture
def database():
    """The name of a database that no other test has."""
    name = f"test-{next(COUNTER)}"
    yield name
    for server in running():
        server.client().drop_database(name)
