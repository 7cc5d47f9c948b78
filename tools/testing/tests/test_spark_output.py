"""Tests that only what Spark prints when nothing is wrong is left out."""

import pytest

from testing.spark_output import complaints_in

UNREAD = """\
Traceback (most recent call last):
  File "/packages/pyspark/daemon.py", line 233, in manager
    code = worker(sock, authenticated)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/packages/pyspark/daemon.py", line 87, in worker
    outfile.flush()
BrokenPipeError: [Errno 32] Broken pipe
"""
USUAL = "WARNING: Using incubator modules: jdk.incubator.vector\n" + UNREAD


@pytest.mark.parametrize(
    "complaint",
    [
        "",
        "late\n",
        UNREAD.replace("pyspark/daemon.py", "pyspark_multiclouddb/readers.py"),
        UNREAD.replace("BrokenPipeError: [Errno 32] Broken pipe", "ValueError: 7"),
        "WARNING: another one\n",
    ],
)
def test_other_lines_stay(complaint):
    assert complaints_in(USUAL + complaint + USUAL) == complaint
