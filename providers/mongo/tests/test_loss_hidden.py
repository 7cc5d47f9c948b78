"""Runs the tests of lost events, and finds no private name of PyMongo."""

import pytest

from .test_loss import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("hidden")
