"""Contains the pytest settings and fixtures for every distribution."""

import gc
import os
import re
import runpy
import tomllib
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from multiclouddb_cosmos_emulator.auth import WELL_KNOWN_KEY

# The tests of the suites are not in modules that are named like tests.
pytest.register_assert_rewrite("multiclouddb_certify.suites")

# Examples have no time limit, because the machine may be busy. If CI is set, Hypothesis tries the same
# examples in every run by default. Here, it always tries new examples, and prints how to repeat a failed one.
settings.register_profile(
    "busy",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=False,
    print_blob=True,
)
settings.load_profile("busy")

# This file makes the settings of Spark's JVM for tests. Programs on pages do not contain these settings;
# their JVM reads the settings from the environment.
JVM_SETTINGS = Path(__file__).parent / "spark" / "tests" / "jvm_settings.py"

# The public key of Cosmos DB emulators. Spark's workers also read the key from this variable, because their
# JVM outlives a test.
os.environ.setdefault("AZURE_COSMOS_KEY", WELL_KNOWN_KEY)

# The marks of tests that `make test` leaves out, and the targets that run them.
APART = {"soak": "soak"}

# Tests that need a JVM run in two workers, because a small machine has not enough memory for more JVMs: the
# group is `jvm`, and `jvm apart` for tests that start Spark in separate processes. The tests in these folders
# are in the group `jvm`, unless their file names another group.
JVM_FOLDERS = ("demo/", "spark/")
# The end of the node ids of tests for pages that start a JVM; see docs/tests/test_blocks.py.
JVM_PAGE = "-jvm]"
# Classes of the conformance suite that wait with every harness; `make check` omits them.
WAITING_CLASSES = ("::TestDeadline::", "::TestEndlessTrouble::", "::TestLongPoll::", "::TestTrouble::")
# The maximum number of workers for waiting tests; each needs about a gigabyte for its servers.
MOST_WAITING = 3
MOST_COMPUTING = 6
GROUP = re.compile(r'^pytestmark = .*\bxdist_group\("([^"]+)"\)', re.MULTILINE)


class GroupScheduling(LoadScopeScheduling):
    """Runs each group of tests in one worker: the largest group first, and by default the tests of a file.

    Objects that take a long time to make, such as a server, are made once, and files that wait run beside
    files that compute. (`--dist loadgroup` needs `xdist_group` to work, which it does not in pytest 9.2:
    https://github.com/pytest-dev/pytest-xdist/issues/1386.)
    """

    def _split_scope(self, nodeid):
        return group_of(nodeid)


@cache
def group_of_file(file):
    """Return the group that a test file names in its `pytestmark`, or None."""
    found = GROUP.search((Path(__file__).parent / file).read_text())
    return found and found[1]


def group_of(nodeid):
    """Return the group of a test; the tests of a group run in one worker."""
    file = nodeid.partition("::")[0]
    is_jvm = file.startswith(JVM_FOLDERS) or nodeid.endswith(JVM_PAGE)
    return group_of_file(file) or ("jvm" if is_jvm else file)


def pytest_addoption(parser):
    parser.addoption(
        "--quick",
        action="store_true",
        help="omit tests that wait, need a JVM or take long; for `make check`",
    )
    for name, target in APART.items():
        parser.addoption(
            f"--{name}", action="store_true", help=f"run only the tests marked `{name}`; for `make {target}`"
        )


def pytest_collection_modifyitems(config, items):
    wanted, quick = {name for name in APART if config.getoption(name)}, config.getoption("quick")

    def is_chosen(item):
        if {name for name in APART if item.get_closest_marker(name) is not None} != wanted:
            return False
        return not quick or is_quick(item)

    config.hook.pytest_deselected(items=[item for item in items if not is_chosen(item)])
    items[:] = [item for item in items if is_chosen(item)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection():
    """Turn off the garbage collector during test collection, because nearly all new objects stay in use."""
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Exclude the collected tests and their modules from garbage collection.

    These objects stay in use until the end of the test run.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if group_of(item.nodeid).startswith("jvm") and "SPARK_SUBMIT_OPTS" not in os.environ:
        os.environ.update(runpy.run_path(str(JVM_SETTINGS))["environment"]())


def is_quick(item):
    """Return whether a test is quick enough for `make check`."""
    waits = any(name in item.nodeid for name in WAITING_CLASSES)
    return not (waits or group_of(item.nodeid).startswith("jvm") or item.get_closest_marker("slow"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return GroupScheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Return the number of workers: one for each core, up to a limit, and more because many tests wait."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    computing = min(cores or 1, MOST_COMPUTING)
    return computing + min(computing, MOST_WAITING)


@pytest.fixture(scope="session")
def spark():
    """Provide the one Spark session of a process."""
    if "SPARK_REMOTE" in os.environ:
        from pyspark.sql import SparkSession

        # A client of Spark Connect; the server belongs to the test that started this process.
        yield SparkSession.builder.getOrCreate()
        return
    from benchmarks.servers import server_module
    from pyspark_multiclouddb import local_session

    with pytest.MonkeyPatch.context() as patch:
        # Spark's workers keep the environment of this moment.
        for name, value in server_module("dynamo", "server").CREDENTIALS.items():
            patch.setenv(name, value)
        session = local_session(
            "tests",
            **{
                "spark.master": os.environ.get("SPARK_TESTS_MASTER", "local[*,2]"),
                "spark.sql.shuffle.partitions": 2,
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            },
        )
    # A query that is meant to fail prints a stack of a hundred lines.
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """Provide a folder with the wheel of every distribution, built from the working tree."""
    from hatchling.builders.wheel import WheelBuilder

    root = Path(__file__).parent
    members = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["uv"]["workspace"]["members"]
    projects = [root, *(folder for member in members for folder in root.glob(member))]
    folder = tmp_path_factory.mktemp("wheels")
    for project in projects:
        list(WheelBuilder(str(project)).build(directory=str(folder), versions=["standard"]))
    return folder
