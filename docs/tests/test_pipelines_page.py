"""Checks the page about declarative pipelines, in the test catalog of the Spark source."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from .page import ROOT, Page

pytestmark = [pytest.mark.soak, pytest.mark.xdist_group("jvm apart")]

PAGE = Page("reference/pipelines.md")
TESTS = ROOT / "spark" / "tests"
FILE = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
STORAGE = "file:///data/pipeline"
TYPE_2 = re.compile(r'^dp\..*"history".*\n', re.MULTILINE)
JAR = "import runpy, sys; print(runpy.run_path(sys.argv[1])['catalog_jar']())"
PLACE = "import pyspark; print(pyspark.__path__[0])"
SECONDS = 300


@pytest.mark.parametrize("version", [pyspark.__version__, "4.2.1"])
def test_the_pipeline_makes_the_tables_that_the_page_shows(tmp_path, version):
    versions = runpy.run_path(str(TESTS / "environments.py"))
    packages = [str(versions["zstandard"]())]
    if version != pyspark.__version__:
        packages.insert(0, str(versions["environment"](version)))
    (tmp_path / "conf").mkdir()
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(packages),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }

    def run(*command):
        ran = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-5000:]
        return ran.stdout

    environ["SPARK_DIST_CLASSPATH"] = run(sys.executable, "-c", JAR, str(TESTS / "scala_catalog.py")).strip()
    confs = f"spark.sql.catalog.lake multiclouddb.test.Catalog\nspark.sql.catalog.lake.root {tmp_path}/lake\n"
    (tmp_path / "conf" / "spark-defaults.conf").write_text(confs)
    for name, text in FILE.findall(PAGE.text):
        text = text.replace(STORAGE, f"file://{tmp_path}/storage")
        (tmp_path / name).write_text(text if version >= "4.3" else TYPE_2.sub("", text))
    [[_, *arguments]] = PAGE.commands("spark-pipelines")
    pipeline = [str(Path(run(sys.executable, "-c", PLACE).strip(), "bin", "spark-pipelines")), *arguments]
    run(sys.executable, "fill.py")
    run(*pipeline)
    run(sys.executable, "change.py")
    run(*pipeline)
    for name in ("show.py", *(["history.py"] if version >= "4.3" else [])):
        assert run(sys.executable, name) == PAGE.said_behind(name)
