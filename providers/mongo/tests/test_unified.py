"""Runs MongoDB's unified tests, which PyMongo's source package contains, with PyMongo alone and with us.

What passes with PyMongo alone also passes through the library, except what `unified/expected.toml` lists.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from testing.servers import cache_folder, download, fetch_once

VERSION = "4.20.1"
DIGEST = "sha256:1ac112b3ffa3d010cfc2fc54e3ae677a12c63d18c6115db4451df64f1a1175eb"
UNIFIED = Path(__file__).parent / "unified"
SECONDS = 1200


@pytest.fixture(scope="module")
def package():
    def bring(into):
        wanted = ["--no-binary=pymongo", f"pymongo=={VERSION}"]
        command = ["python", "-m", "pip", "download", "--quiet", "--no-deps", *wanted]
        download(command, into, program=sys.executable)

    def unpack(archive, scratch):
        with tarfile.open(archive) as found:
            found.extractall(scratch, filter="data")
        return scratch / f"pymongo-{VERSION}"

    return fetch_once(cache_folder(f"pymongo-{VERSION}-source"), bring, DIGEST, unpack)


def outcomes(package, server, through, tmp_path):
    """Run all cases in another process, and return their outcomes."""
    found, output = tmp_path / f"{through}.json", tmp_path / f"{through}.txt"
    host, _, port = server.wait_primary().rpartition(":")
    with output.open("w") as out:
        subprocess.run(
            [sys.executable, UNIFIED / "run.py", through, found],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(package), "DB_IP": host, "DB_PORT": port},
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        )
    assert found.exists(), output.read_text(encoding="utf-8")[-5000:]
    return json.loads(found.read_text(encoding="utf-8")), output.read_text(encoding="utf-8")


@pytest.mark.soak
def test_what_passes_with_the_driver_passes_through_the_library_unless_listed(package, one, tmp_path):
    assert importlib.metadata.version("pymongo") == VERSION
    expected = tomllib.loads((UNIFIED / "expected.toml").read_text(encoding="utf-8"))
    listed = [case for group in expected["differences"] for case in group["cases"]]
    alone, _ = outcomes(package, one, "driver", tmp_path)
    ours, output = outcomes(package, one, "multiclouddb", tmp_path)
    assert alone.keys() == ours.keys()
    assert len(alone) == expected["cases"]
    assert sum(outcome == "passed" for outcome in alone.values()) == expected["passed_by_pymongo"]
    worse = {case for case, outcome in alone.items() if outcome == "passed" and ours[case] != "passed"}
    assert worse == set(listed), output[-20000:]
