"""Provides Google's emulator in addition to the scripted server, if it is installed."""

import os

import pytest

from .native import program

GOOGLE = "google"
DESELECTED = pytest.StashKey[int]()


def pytest_configure(config):
    config.stash[DESELECTED] = 0


def pytest_collection_modifyitems(config, items):
    """Deselect tests that need Google's emulator if it is not installed.

    If CI is set, the emulator must be available; otherwise these tests fail.
    """
    if os.environ.get("CI") == "true" or program() is not None:
        return
    gone = [
        item for item in items if GOOGLE in getattr(getattr(item, "callspec", None), "params", {}).values()
    ]
    if gone:
        items[:] = [item for item in items if item not in gone]
        config.stash[DESELECTED] = len(gone)
        config.hook.pytest_deselected(items=gone)


def pytest_terminal_summary(terminalreporter, config):
    if config.stash[DESELECTED]:
        terminalreporter.write_line(
            f"{config.stash[DESELECTED]} tests of parity were left out: Google's Cloud Spanner emulator is "
            "not installed here (gcloud components install cloud-spanner-emulator)"
        )
