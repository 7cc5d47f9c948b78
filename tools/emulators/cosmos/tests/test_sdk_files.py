"""Runs the test files of azure-cosmos, which its source package contains, on the emulator.

`sdk/expected.toml` lists the tests that fail, grouped by the reason. A test that fails without being listed
shows a defect of the emulator. A listed test that no longer fails has to leave the list.
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from multiclouddb_cosmos_emulator import CosmosEmulator
from testing.servers import cache_folder, download, fetch_once

VERSION = "4.17.1"
DIGEST = "sha256:d692928a54d88163e96d41d8f899229ca2f6a6bf21973ece2bfc1f72d4b4edd8"
SDK = Path(__file__).parent / "sdk"
EXPECTED = tomllib.loads((SDK / "expected.toml").read_text(encoding="utf-8"))
COVERAGE = (SDK.parents[1] / "COVERAGE.md").read_text(encoding="utf-8")
SECONDS = 1500


def listed(file):
    """Return the tests of a file that are expected to fail."""
    return {test for group in EXPECTED["failures"] for test in group["tests"] if test.startswith(f"{file}::")}


def deselected(file):
    """Return the options that leave out single tests of a file."""
    tests = [
        test for group in EXPECTED["left_out"] for test in group["files"] if test.startswith(f"{file}::")
    ]
    return [option for test in tests for option in ("--deselect", test)]


@pytest.fixture(scope="session")
def files():
    """Return the folder with the test files of azure-cosmos."""

    def bring(into):
        package = ["--no-binary=azure-cosmos", f"azure-cosmos=={VERSION}"]
        download(
            ["python", "-m", "pip", "download", "--quiet", "--no-deps", *package],
            into,
            program=sys.executable,
        )

    def unpack(package, scratch):
        with tarfile.open(package) as archive:
            archive.extractall(scratch, filter="data")
        return scratch / f"azure_cosmos-{VERSION}" / "tests"

    return fetch_once(cache_folder(f"azure-cosmos-{VERSION}-tests"), bring, DIGEST, unpack)


def outcomes(folder, file, tmp_path):
    """Run a file in another process, and return the names of the tests by outcome."""
    found = tmp_path / "outcomes.json"
    with CosmosEmulator(https=True) as server, (tmp_path / "output").open("w") as output:
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "plugin", "-p", "no:cacheprovider", "-W", "ignore",
             "--rootdir", ".", "--timeout", "300", *deselected(file), file],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(SDK),
                "SDK_TESTS_ENDPOINT": server.endpoint,
                "SDK_TESTS_OUTCOMES": str(found),
            },
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        )  # fmt: skip
    assert found.exists(), (tmp_path / "output").read_text(encoding="utf-8")[-5000:]
    return {name: set(tests) for name, tests in json.loads(found.read_text(encoding="utf-8")).items()}


def test_the_installed_version_is_the_one_whose_files_are_run():
    assert importlib.metadata.version("azure-cosmos") == VERSION


def test_every_file_is_run_or_left_out_with_a_reason(files):
    there = {str(path.relative_to(files)) for path in files.glob("**/test_*.py")} - {"test_config.py"}
    left_out = [file for group in EXPECTED["left_out"] for file in group["files"] if "::" not in file]
    assert there == {*EXPECTED["files"], *left_out}


def test_every_expected_failure_is_in_a_file_that_is_run():
    tests = [test for group in EXPECTED["failures"] for test in group["tests"]]
    assert len(tests) == len(set(tests))
    assert {test.partition("::")[0] for test in tests} <= set(EXPECTED["files"])


@pytest.mark.parametrize(
    "test", sorted(set(re.findall(r"\| azure-cosmos: `(.+)` \|$", COVERAGE, re.MULTILINE)))
)
def test_a_test_that_covers_a_method_is_there_and_passes(files, test):
    file, *_, name = test.split("::")
    assert file in EXPECTED["files"]
    assert test not in [*listed(file), *deselected(file)]
    assert f"def {name}(" in (files / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("file", EXPECTED["files"])
def test_a_file_fails_only_as_expected(files, file, tmp_path):
    found = outcomes(files, file, tmp_path)
    output = (tmp_path / "output").read_text(encoding="utf-8")
    assert found["passed"] | found["failed"], output[-5000:]
    assert found["failed"] == listed(file), output[-20000:]
