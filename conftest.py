"""What holds for the tests of every distribution."""

import os

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# A busy machine puts no limit on the time of one example. With CI set, Hypothesis would try the same examples
# in every run: new ones are wanted there, too, and how to repeat what has failed is printed.
settings.register_profile(
    "busy",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=False,
    print_blob=True,
)
settings.load_profile("busy")

# How the node ids of tests that start a JVM begin.
JVM_TESTS = (
    "demo/",
    "spark/",
    "benchmarks/tests/test_rows.py::TestRows::test_the_row_of_spark_runs",
    "providers/mongo/tests/test_spark.py",
    "providers/mongo/tests/test_spark_dropped.py",
    "providers/mongo/tests/test_spark_idle.py",
    "providers/spanner/tests/test_spark.py",
)
# Pages of the documentation that do, see docs/tests/test_blocks.py.
JVM_PAGE = "-jvm]"
# Files whose tests share what takes long to make: the site, the wheels, a server or three.
TOGETHER = frozenset(
    {
        "docs/tests/test_mongodb.py",
        "docs/tests/test_site.py",
        "providers/dynamo/tests/test_us8_local.py",
        "providers/mongo/tests/test_failover.py",
        "providers/mongo/tests/test_rollover.py",
        "providers/mongo/tests/test_us8_three.py",
        "tests/test_wheels.py",
    }
)


class OneJvmScheduling(LoadScopeScheduling):
    """Spreads single tests over the workers, but gives all that need a JVM to one of them.

    Two JVMs at a time do not fit on a small machine. The tests of a file that is in `TOGETHER` go to one
    worker as well, which then makes what they share once. (The `xdist_group` mark would say the same, but
    pytest 9.2 makes it do nothing: https://github.com/pytest-dev/pytest-xdist/issues/1386.)
    """

    def _split_scope(self, nodeid):
        if nodeid.startswith(JVM_TESTS) or nodeid.endswith(JVM_PAGE):
            return "jvm"
        file = nodeid.partition("::")[0]
        return file if file in TOGETHER else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return OneJvmScheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """One more worker than there are cores: two fifths of the time the tests wait for a server or a clock.

    Not more than six: each starts servers of its own, which take about a gigabyte.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min((cores or 1) + 1, 6)


@pytest.fixture(scope="session")
def spark():
    """The one Spark session of a process. Compiled once at most: what a test runs takes seconds."""
    from pyspark_multiclouddb import local_session

    session = local_session("tests", **{"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
    # A query that is meant to fail prints a stack of a hundred lines.
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
