"""Runs the suite on the emulator, and finds no private name of azure-cosmos."""

import pytest

from multiclouddb_certify.suites.cosmos import *  # noqa: F403

from .test_us8 import HARNESS  # noqa: F401

pytestmark = pytest.mark.usefixtures("hasty", "hidden")

# Without the names, all clients of an account share a lock while one of them lists a container's ranges.
FORM = {
    "TestClosing": "a client is closed while others may list",
    "TestDeadline": "a listing waits for that of another client",
    "TestEndlessTrouble": "a listing that does not end holds up other clients",
    "TestLoss": "the oracle's clients list at once",
    "TestSharing": "threads list at once",
    "TestTrouble": "a listing fails while others wait for it",
}
