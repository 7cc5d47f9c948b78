"""Provides real servers for the tests of this provider, shared by the tests of a worker."""

import itertools
from pathlib import Path

import pytest
from pymongo import MongoClient
from pymongo.errors import AutoReconnect

from multiclouddb_api import ResourceAddress, connect
from multiclouddb_conformance.waiting import wait_until

from .monitor import Commands, Feed, watched
from .servers.mongod import QUICK_ELECTION_MS, running, shared, stop

COUNTER = itertools.count()
HERE = Path(__file__).parent
# The modules that read from the set `us8 one`, and from the other sets of the suite.
ON_US8_SETS = ("test_us8", "test_bad_input", "test_deployment")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Let the tests of a set run in one worker, because servers at rest cost time in every other one."""
    for item in items:
        if item.path.parent == HERE and item.get_closest_marker("xdist_group") is None:
            group = "mongod us8" if item.path.name.startswith(ON_US8_SETS) else "mongod"
            # These mostly wait for members that were ended, so they run beside the others.
            group = "mongod hidden" if item.path.stem.endswith("_hidden") else group
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem):
    """End all sets when the tests of another folder follow."""
    if nextitem is None or nextitem.path.parent != HERE:
        stop()


@pytest.fixture(scope="module", autouse=True)
def _own_sets(request):
    """End the sets that only this module uses, when its tests have run."""
    yield
    if own := getattr(request.module, "OWN_SETS", ()):
        stop(*own)


@pytest.fixture(scope="module")
def hidden():
    """Hide the private names of PyMongo, as if a version had none of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multiclouddb_mongo.driver._cursor_of", lambda stream: None)
        yield


@pytest.fixture(scope="module")
def one():
    return shared("one")


# An idle server writes an empty operation every ten seconds, and twenty may pass until the first one. Where
# PyMongo does not say which server answers, a page is idle only after one.
EACH_SECOND = {"periodicNoopIntervalSecs": 1}


@pytest.fixture(scope="module")
def brisk():
    """Provide a member that writes an empty operation every second, as the shards of a cluster do."""
    return shared("brisk", 1, parameters=EACH_SECOND)


@pytest.fixture(scope="module")
def three():
    # A test that disturbs a node must leave the set in a healthy state.
    return shared("three", 3)


@pytest.fixture(scope="module")
def proxied():
    """Provide three members that soon replace a primary, each behind a proxy that the writer does not use."""
    # Members that replicate from a hanging member soon choose another member.
    soon = {"oplogNetworkTimeoutBufferSeconds": 1, **EACH_SECOND}
    return shared("proxied", 3, proxied=True, election_ms=QUICK_ELECTION_MS, parameters=soon)


@pytest.fixture(scope="module")
def small():
    return shared("small", oplog_mb=1)


def dropped(server, name):
    """Drop the database. Retry if another member is now the primary, because the driver does not retry."""
    try:
        server.client().drop_database(name)
    except AutoReconnect:
        return False
    return True


@pytest.fixture
def database():
    """Return the name of a database that only this test uses."""
    name = f"test-{next(COUNTER)}"
    yield name
    for server in running():
        wait_until(lambda server=server: dropped(server, name))


@pytest.fixture
def app():
    """Return an `appName` that only a client of this test uses, so that only its commands fail."""
    return f"app-{next(COUNTER)}"


@pytest.fixture
def here(one, database):
    """Return the address of a collection that contains one document."""
    one.client()[database]["c"].insert_one({"_id": 0})
    return ResourceAddress(database, "c")


@pytest.fixture
def written(one, here):
    return one.client()[here.database]["c"]


@pytest.fixture
def reader(one, app):
    with connect(one.uri(appName=app)) as made:
        yield made


@pytest.fixture
def plain(one, app):
    """Provide a client of the driver that does not use the library, and the commands that it sends."""
    commands = Commands()
    with MongoClient(one.uri(appName=app), event_listeners=[commands]) as client:
        yield client, commands


@pytest.fixture
def ours(one, app):
    """Provide the library's client, and the commands that it sends."""
    with watched(one.uri(appName=app)) as both:
        yield both


@pytest.fixture
def warm(ours, here):
    """Provide a feed with an open cursor, and the commands that the feed sends afterwards."""
    client, commands = ours
    feed = Feed(client, here)
    feed.read()
    commands.clear()
    return feed, commands
