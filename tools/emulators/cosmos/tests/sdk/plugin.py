"""Runs azure-cosmos' own test files, in another process, against the server whose port is in the environment.

The files belong to a repository with further tools. What they import from there is replaced here.
"""

import json
import os
import sys
import types
from pathlib import Path

HERE = "https://localhost:8081/"
found = {"failed": set(), "passed": set(), "skipped": set()}


def module(name, **contents):
    made = sys.modules[name] = types.ModuleType(name)
    vars(made).update(contents)
    return made


def is_live():
    return False


module("devtools_testutils")
module("devtools_testutils.helpers", is_live=is_live)
module("devtools_testutils.azure_recorded_testcase", get_credential=lambda **_: None)

# The files know only one address of an emulator, which another program may use.
config = module("test_config", __file__="test_config.py")
text = Path("test_config.py").read_text(encoding="utf-8").replace(HERE, os.environ["SDK_TESTS_ENDPOINT"])
exec(compile(text, "test_config.py", "exec"), vars(config))


def pytest_runtest_logreport(report):
    """Note the outcome of a test; a failure of its setup or teardown is a failure."""
    if report.failed:
        found["failed"].add(report.nodeid)
    elif report.skipped:
        found["skipped"].add(report.nodeid)
    elif report.when == "call":
        found["passed"].add(report.nodeid)


def pytest_collectreport(report):
    """Note a file that cannot be imported."""
    if report.failed:
        found["failed"].add(report.nodeid)


def pytest_sessionfinish():
    """Write the outcomes where the test expects them."""
    found["passed"] -= found["failed"]
    outcomes = {name: sorted(tests) for name, tests in found.items()}
    Path(os.environ["SDK_TESTS_OUTCOMES"]).write_text(json.dumps(outcomes), encoding="utf-8")
