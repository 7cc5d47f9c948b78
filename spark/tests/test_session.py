"""Tests the local session: it uses this Python, UTC and the caller's settings.

`test_versions.py` checks that the session prints nothing.
"""

import sys

from pyspark_multiclouddb import local_session


def test_runs_workers_in_this_python(spark):
    assert spark.range(1).rdd.map(lambda _: __import__("sys").executable).first() == sys.executable


def test_time_is_utc(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_java_options_of_the_caller_are_added(spark):
    options = spark.conf.get("spark.driver.extraJavaOptions")
    assert "log4j2" in options
    assert options.endswith(" -XX:TieredStopAtLevel=1")


def test_one_that_runs_is_taken_and_set(spark):
    assert local_session("another", **{"spark.sql.shuffle.partitions": 3, "spark.none": None}) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    assert spark.conf.get("spark.none", "unset") == "unset"
