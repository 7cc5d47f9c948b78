"""Provides emulators for the tests of this provider. All tests of a worker share its emulators."""

import os
import signal

import pytest

from multiclouddb_api import ResourceAddress, connect

from .servers.emulator import HASTY, STILL, Emulator, is_available, shared, stop
from .table import Table


def pytest_configure(config):
    config.addinivalue_line("markers", "emulator(*flags): needs Google's Cloud Spanner emulator")


def pytest_collection_modifyitems(config, items):
    """Deselect tests that need Google's emulator if it is not installed.

    If CI is set, the emulator must be available; otherwise these tests fail.
    """
    if os.environ.get("CI") == "true":
        return
    marks = {item: item.get_closest_marker("emulator") for item in items}
    gone = [item for item, mark in marks.items() if mark is not None and not is_available(mark.args)]
    if gone:
        items[:] = [item for item in items if item not in set(gone)]
        config.hook.pytest_deselected(items=gone)


def pytest_terminal_summary(terminalreporter):
    if not is_available(STILL) and os.environ.get("CI") != "true":
        terminalreporter.write_line(
            "The tests of Spanner that need Google's emulator were left out: it is not installed here "
            "(gcloud components install cloud-spanner-emulator), nor named by SPANNER_EMULATOR_HOST"
        )


@pytest.fixture(scope="session", autouse=True)
def _emulators():
    yield
    stop()


@pytest.fixture
def still():
    return shared(STILL)


@pytest.fixture
def table(still):
    made = Table(still)
    yield made
    made.drop()


@pytest.fixture
def items():
    """Provide a table on an emulator whose partitions move, split and merge all the time."""
    made = Table(shared(HASTY))
    yield made
    made.drop()


@pytest.fixture
def ours(still):
    with connect(still.url) as client:
        yield client


@pytest.fixture
def here(table):
    return ResourceAddress(table.database.database_id, table.name)


@pytest.fixture
def made(still):
    """Provide a function that makes a table, and returns the table and its address."""
    tables = []

    def make(**settings):
        tables.append(Table(still, **settings))
        return tables[-1], ResourceAddress(tables[-1].database.database_id, tables[-1].name)

    yield make
    for table in tables:
        table.drop()


@pytest.fixture
def own():
    """Provide an emulator that no other test uses, so that the test may stop it."""
    made = Emulator(STILL)
    if made.process is None:
        pytest.fail("an emulator that runs already cannot be stopped")
    yield made
    made.process.send_signal(signal.SIGCONT)
    made.stop()
