"""Runs the tests of slow and silent links, and finds no private name of PyMongo."""

import pytest

from .test_slow_link import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("hidden")
