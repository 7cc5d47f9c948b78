"""Checks the page about a table on a cluster, in the test catalog of the Spark source."""

import runpy

import pytest

from .page import ROOT, Page

pytestmark = pytest.mark.xdist_group("jvm")

PAGE = Page("table-on-a-cluster.md")


def test_the_program_runs_as_it_stands_and_prints_what_is_below_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = runpy.run_path(str(ROOT / "spark" / "tests" / "jvm_settings.py"))["environment"]()
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    # `iceberg` is a format that the catalog may ignore.
    catalog = f"spark.sql.catalog.lake=multiclouddb.test.Catalog spark.sql.catalog.lake.root={tmp_path}/lake"
    confs = " ".join(f"--conf {each}" for each in catalog.split())
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--master local[2] {confs} pyspark-shell")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert PAGE.run("follow.py") == PAGE.said_behind("follow.py")
    assert PAGE.programs.keys() == PAGE.programs_run_in(__file__)
