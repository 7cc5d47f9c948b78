"""Checks the page about a table on a cluster, in the test catalog of the Spark source."""

import pytest

from .page import Page

pytestmark = pytest.mark.xdist_group("jvm")

PAGE = Page("reference/delta.md")


def test_the_program_runs_as_it_stands_and_prints_what_is_below_it(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spark.conf.set("spark.sql.catalog.lake", "multiclouddb.test.Catalog")
    spark.conf.set("spark.sql.catalog.lake.root", str(tmp_path / "lake"))
    # A session that Spark itself makes has this setting, and that of the tests has not.
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        assert PAGE.run("follow.py", spark) == PAGE.said_behind("follow.py")
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", "false")
    assert PAGE.programs.keys() == PAGE.programs_run_in(__file__)
