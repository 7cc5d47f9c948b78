"""Contains the pytest settings and fixtures for every distribution."""

import gc
import os
import runpy
import tomllib
from collections import deque
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from multiclouddb_cosmos_emulator.auth import WELL_KNOWN_KEY

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

# The prefixes of the node ids of tests that start a JVM.
JVM_TESTS = (
    "demo/",
    "spark/",
    "tools/benchmarks/tests/test_rows.py::TestRows::test_the_rows_of_spark_run",
    "providers/cosmos/tests/test_spark.py",
    "providers/mongo/tests/test_spark.py",
    "providers/mongo/tests/test_spark_dropped.py",
    "providers/mongo/tests/test_spark_idle.py",
    "providers/spanner/tests/test_spark.py",
)
# The end of the node ids of tests for pages that start a JVM; see docs/tests/test_blocks.py.
JVM_PAGE = "-jvm]"
# All tests that start a JVM.
JVM = "jvm"
# Tests that start Spark in separate processes, one after the other; they run in a separate worker.
JVM_TESTS_APART = (
    "docs/tests/test_printed_blocks.py",
    "providers/dynamo/tests/test_spark_delta.py",
    "providers/mongo/tests/test_spark_delta.py",
    "spark/tests/test_cluster.py",
    "spark/tests/test_connect.py",
    "spark/tests/test_versions.py",
    # This test does not start a JVM, but it shares the wheels with the other test of this group.
    "tests/test_wheels.py",
)
JVM_APART = "jvm apart"
JVMS = (JVM, JVM_APART)
# Files whose tests share objects that take a long time to make, such as the site or servers.
TOGETHER = frozenset(
    {
        "docs/tests/test_dynamodb.py",
        "docs/tests/test_mongodb.py",
        "docs/tests/test_site.py",
        "providers/dynamo/tests/test_us8_local.py",
        "providers/mongo/tests/test_failover.py",
        "providers/mongo/tests/test_rollover.py",
        "providers/mongo/tests/test_us8_three.py",
    }
)


# The prefixes of the node ids of tests that mostly wait for a server, a JVM or a clock.
WAITING = (
    "docs/tests/test_dynamodb.py",
    "docs/tests/test_mongodb.py",
    "docs/tests/test_mongodb_rows.py",
    "docs/tests/test_moving.py",
    "docs/tests/test_refusals.py",
    "providers/dynamo/tests/test_command_line.py",
    "providers/cosmos/tests/test_command_line.py",
    "providers/dynamo/tests/test_local.py",
    "providers/dynamo/tests/test_us8_local.py",
    "providers/mongo/",
    "providers/spanner/",
    "tests/engine/test_outlasts.py",
    "tests/engine/test_time.py",
    "tests/engine/test_waiting.py",
)
# Exceptions from `WAITING`: tests that do not need a server.
COMPUTING = (
    "providers/mongo/tests/test_config.py",
    "providers/mongo/tests/test_errors.py",
    "providers/mongo/tests/test_mapping.py",
    "providers/mongo/tests/test_position.py",
    "providers/mongo/tests/test_reader.py",
    "providers/spanner/tests/test_catalog.py",
    "providers/spanner/tests/test_config.py",
    "providers/spanner/tests/test_errors.py",
    "providers/spanner/tests/test_mapping.py",
    "providers/spanner/tests/test_position.py",
    "providers/spanner/tests/test_reader.py",
    "providers/spanner/tests/test_columns.py",
    "providers/spanner/tests/test_stream.py",
    "providers/spanner/tests/test_us8_nasty.py",
    "providers/spanner/tests/test_us8_scripted.py",
)
# Classes of the conformance suite that wait with every harness.
WAITING_CLASSES = ("::TestDeadline::", "::TestEndlessTrouble::", "::TestLongPoll::", "::TestTrouble::")
# Tests of ten seconds or more start first; otherwise, they would run alone after all other tests have ended.
LONG = (
    "cli/tests/test_commands.py::TestProgram",
    "providers/mongo/tests/test_loss.py",
    "providers/mongo/tests/test_heads.py::TestLaggingMember::test_is_waited_for",
    "providers/dynamo/tests/test_command_line.py::TestTail",
    "providers/dynamo/tests/test_loss.py",
    "providers/dynamo/tests/test_scale.py",
    "providers/embedded/tests/test_command_line.py",
    "providers/embedded/tests/test_fork.py",
    "providers/embedded/tests/test_loss.py",
    "providers/embedded/tests/test_processes.py",
    "providers/embedded/tests/test_snapshot.py",
    "tests/engine/test_scale.py",
    "tests/engine/test_snapshot.py::TestScale",
    "tests/engine/test_snapshot_lives.py",
    "tests/engine/test_stateful.py",
    "tests/engine/test_token_bounds.py",
    "tests/lineage/test_explore.py::test_every_small_history_keeps_every_promise",
)
# The maximum number of workers that start with waiting tests; each needs about a gigabyte for its servers.
MOST_WAITING = 3
MOST_COMPUTING = 6


class TwoKindsScheduling(LoadScopeScheduling):
    """Runs two kinds of tests in parallel: tests that wait and tests that compute.

    Tests that share a server or another object run in one worker. Half of the workers, but at most
    three, start with tests that wait; the other workers start with tests that compute. In this way,
    no core is idle before the last computing test has started. If no tests of a worker's kind are
    left, the worker runs tests of the other kind.

    All tests that need a JVM run in two workers, because a small machine does not have enough memory for more
    JVMs. The tests of a file in `TOGETHER` also run in one worker, which then makes their shared objects only
    once. (The mark `xdist_group` would do the same, but it has no effect in pytest 9.2:
    https://github.com/pytest-dev/pytest-xdist/issues/1386.)
    """

    def __init__(self, config, log=None):
        super().__init__(config, log)
        self._queues = None

    def _split_scope(self, nodeid):
        if nodeid.startswith(JVM_TESTS_APART):
            return JVM_APART
        if nodeid.startswith(JVM_TESTS) or nodeid.endswith(JVM_PAGE):
            return JVM
        file = nodeid.partition("::")[0]
        return file if file in TOGETHER else nodeid

    def _assign_work_unit(self, node):
        """Move the next unit of tests for the worker to the front of xdist's queue.

        Some workers prefer tests that wait; the other workers prefer tests that compute.
        """
        if self._queues is None:
            self._queues = by_kind(self.workqueue)
        waits = int(node.gateway.id.removeprefix("gw")) < waiting_workers(self.numnodes)
        for queue in (self._queues[waits], self._queues[not waits]):
            # A unit that is no longer in xdist's queue was given to a worker before another worker died.
            while queue and queue[0] not in self.workqueue:
                queue.popleft()
            if queue:
                self.workqueue.move_to_end(queue.popleft(), last=False)
                break
        super()._assign_work_unit(node)


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
        return not quick or is_quick(item.nodeid)

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
    if starts_jvm(item.nodeid) and "SPARK_SUBMIT_OPTS" not in os.environ:
        os.environ.update(runpy.run_path(str(JVM_SETTINGS))["environment"]())


def is_quick(nodeid):
    """Return whether a test is quick enough for `make check`.

    `make check` runs a quick test only if it covers the folder of the test.
    """
    return not (is_waiting(nodeid) or starts_jvm(nodeid) or nodeid.startswith((*LONG, *TOGETHER)))


def starts_jvm(nodeid):
    """Return whether a test is in a group of tests that start Spark."""
    return nodeid.startswith((*JVM_TESTS, *JVM_TESTS_APART)) or nodeid.endswith(JVM_PAGE)


def by_kind(units):
    """Return a queue of tests that wait, and a queue of tests that compute.

    In each queue, the longest tests come first.

    Args:
        units: Maps the name of each group to its tests. The groups are sorted by the number of
            tests. All tests of a group run in one worker.
    """
    ordered = sorted(
        units, key=lambda unit: (unit not in JVMS, len(units[unit]) == 1 and not unit.startswith(LONG))
    )
    return {kind: deque(unit for unit in ordered if is_waiting(unit) == kind) for kind in (True, False)}


def is_waiting(unit):
    """Return whether a test, or a group of tests, mostly waits."""
    if unit in JVMS or any(name in unit for name in WAITING_CLASSES):
        return True
    return unit.startswith(WAITING) and not unit.startswith(COMPUTING)


def waiting_workers(count):
    """Return how many workers, of `count` in total, start with tests that wait."""
    return min(count // 2, MOST_WAITING)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return TwoKindsScheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Return the number of workers, which are of two kinds.

    There is one worker for computing tests per core, up to a limit. There are as many workers for
    waiting tests, up to another limit.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    computing = min(cores or 1, MOST_COMPUTING)
    return computing + min(computing, MOST_WAITING)


@pytest.fixture(scope="session")
def spark():
    """Provide the one Spark session of a process."""
    from pyspark_multiclouddb import local_session

    session = local_session(
        "tests",
        **{"spark.sql.shuffle.partitions": 2, "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
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
