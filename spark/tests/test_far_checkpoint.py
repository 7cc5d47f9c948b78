"""Reads a checkpoint that only Spark can read, because it is no folder on this machine."""

import pytest

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance.refusals import refusal
from pyspark_multiclouddb.checkpoint import Checkpoint
from testing.spark_checkpoint import make_checkpoint, write_offset


@pytest.fixture
def far(spark, tmp_path):
    """Return a function that makes a checkpoint with this name, and returns its URL."""
    mount = f"multiclouddb.{tmp_path.name}".replace("_", "")
    setting = f"fs.viewfs.mounttable.{mount}.link./far"
    spark.conf.set(setting, tmp_path.as_uri())

    def make(name):
        write_offset(make_checkpoint(tmp_path / name, query="q", batches=1), 1, fresh=True, lost=1)
        (tmp_path / name / "commits" / "0").write_text("v1\n{}")
        return f"viewfs://{mount}/far/{name}"

    yield make
    spark.conf.unset(setting)


@pytest.mark.parametrize("name", ["orders", "orders[eu]", "{a,b}*?", "date=2026-01-31", "_checkpoint"])
def test_a_folder_whose_name_is_a_pattern_for_readers_of_spark(spark, far, name):
    checkpoint = Checkpoint(far(name), spark)
    assert checkpoint.query("q") == "q"
    assert (checkpoint.is_first(1), checkpoint.has_gap(1), checkpoint.is_scanned()) == (False, True, True)


def test_a_file_that_is_not_there(spark, far):
    checkpoint = Checkpoint(far("orders"), spark)
    refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: checkpoint.end(7),
        "has no offsets/7",
        "asyncProgressTrackingEnabled",
    )
