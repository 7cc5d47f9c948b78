"""The local session: this Python, UTC, and quiet."""

import subprocess
import sys

PROGRAM = """
import sys
from pyspark_multiclouddb import local_session

java = "spark.driver.extraJavaOptions"
with local_session("quiet", **{"spark.sql.shuffle.partitions": 3, "spark.ui.port": None, java: "-Dours=1"}) as spark:
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    assert spark.conf.get("spark.ui.port", "unset") == "unset"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext._jvm.System.getProperty("ours") == "1"
    assert local_session("again") is spark
    version = spark.range(1).rdd.map(lambda _: __import__("sys").executable).first()
    assert version == sys.executable, version
    spark.range(1000).repartition(4).count()
"""


def test_prints_nothing_of_its_own(tmp_path):
    """But for one line of Java's launcher, which nothing turns off."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    noise = [line for line in ran.stderr.splitlines() if "incubator" not in line]
    assert (ran.stdout, noise) == ("", [])
