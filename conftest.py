"""Contains the pytest settings and fixtures for every distribution."""

import gc
import json
import os
import runpy
import tempfile
import tomllib
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from multiclouddb_cosmos_emulator.auth import WELL_KNOWN_KEY

# The tests of the suites are not in modules that are named like tests.
pytest.register_assert_rewrite("multiclouddb_certify.suites", "testing")

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

# The group of the tests that use a fixture that starts Spark. A small machine has not enough memory for many
# JVMs, so each group runs in one worker; `jvm apart` is for tests that start Spark in separate processes.
JVM_FIXTURES = {"spark": "jvm", "start_queries": "jvm apart"}
# The groups with few tests that take longest: begun late, they would end long after all others. Spark's come
# last in this list, because the last one begins first.
LONG_GROUPS = ("mongod hidden", *JVM_FIXTURES.values())
# What the JVM of a test outside these groups is started with: Java refuses an option that it doesn't know.
NO_JVM = {"SPARK_SUBMIT_OPTS": "-XX:+ThisTestStartsSparkButIsInNoGroupNamedJvm"}
# Classes of the conformance suite that wait with every harness; `make check` omits them.
WAITING_CLASSES = ("::TestDeadline::", "::TestEndlessTrouble::", "::TestLongPoll::", "::TestTrouble::")
# The maximum number of workers for waiting tests; each needs about a gigabyte for its servers.
MOST_WAITING = 3
MOST_COMPUTING = 6
GROUPS = pytest.StashKey[dict[str, str]]()
GROUPS_FILE = pytest.StashKey[Path]()


class GroupScheduling(LoadScopeScheduling):
    """Runs each group of tests, by default those of a file, in one worker: the slowest, then the largest.

    Objects that take a long time to make, such as a server, are made once, and files that wait run beside
    files that compute. (`--dist loadgroup` needs `xdist_group` to work, which it does not in pytest 9.2:
    https://github.com/pytest-dev/pytest-xdist/issues/1386.)
    """

    def _split_scope(self, nodeid):
        stash = self.config.stash
        if GROUPS not in stash:
            # This process collects no tests and knows only their ids, so the workers write the groups.
            stash[GROUPS] = json.loads(stash[GROUPS_FILE].read_text(encoding="utf-8"))
            stash[GROUPS_FILE].unlink()
        return stash[GROUPS][nodeid]

    def _assign_work_unit(self, node):
        for group in LONG_GROUPS:
            if group in self.workqueue:
                self.workqueue.move_to_end(group, last=False)
        super()._assign_work_unit(node)


def group_of(item):
    """Return the group of a test; the tests of a group run in one worker."""
    named, fixtures = item.get_closest_marker("xdist_group"), getattr(item, "fixturenames", ())
    if named is not None:
        return named.args[0]
    starts = (group for fixture, group in JVM_FIXTURES.items() if fixture in fixtures)
    return next(starts, item.nodeid.partition("::")[0])


@cache
def jvm_environment():
    """Return the environment of the tests that start Spark, with an archive of its classes."""
    return runpy.run_path(str(JVM_SETTINGS))["environment"]()


def is_jvm(item):
    """Return whether a test starts Spark's JVM."""
    return group_of(item) in JVM_FIXTURES.values()


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
    for item in items:
        if is_left_to_soak(item):
            item.add_marker("soak")
    wanted, quick = {name for name in APART if config.getoption(name)}, config.getoption("quick")

    def is_chosen(item):
        if {name for name in APART if item.get_closest_marker(name) is not None} != wanted:
            return False
        return not quick or is_quick(item)

    config.hook.pytest_deselected(items=[item for item in items if not is_chosen(item)])
    items[:] = [item for item in items if is_chosen(item)]
    told = getattr(config, "workerinput", {}).get("groups")
    if told is not None:
        draft = Path(f"{told}.{os.getpid()}")
        draft.write_text(json.dumps({item.nodeid: group_of(item) for item in items}), encoding="utf-8")
        draft.replace(told)


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


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell a worker where the groups of the tests belong; every worker writes the same ones."""
    if GROUPS_FILE not in node.config.stash:
        handle, name = tempfile.mkstemp(suffix=".json")
        os.close(handle)
        node.config.stash[GROUPS_FILE] = Path(name)
    node.workerinput["groups"] = str(node.config.stash[GROUPS_FILE])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    os.environ.update(jvm_environment() if is_jvm(item) else NO_JVM)


def is_left_to_soak(item):
    """Return whether a form of us8 cannot change a test.

    One form of each provider runs the whole suite in `make test`. The module of any other form names in
    `FORM` the classes of us8, or `Class::test`, that this form can change, each with the reason. `make soak`
    runs the rest.
    """
    form = getattr(getattr(item, "module", None), "FORM", None)
    if form is None or item.cls is None:
        return False
    return not form.keys() & {item.cls.__name__, f"{item.cls.__name__}::{item.originalname}"}


def is_quick(item):
    """Return whether a test is quick enough for `make check`."""
    waits = any(name in item.nodeid for name in WAITING_CLASSES)
    return not (waits or is_jvm(item) or item.get_closest_marker("slow"))


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
    from pyspark_multiclouddb import local_session
    from testing.provider_servers import server_module

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
