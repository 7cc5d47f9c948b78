"""Tests the settings that `.ci/run` makes for every step, and their effects."""

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("cli", "conformance", "demo", "docs", "providers", "spark", "tests", "tools")
# Names whose use could cause a test to be skipped. If a server cannot be fetched or started, the test must
# fail instead.
LEAVES_OUT = {"skip", "skipif", "xfail", "importorskip", "skipTest"}


def test_every_step_runs_with_ci_set(tmp_path):
    make = tmp_path / "make"
    make.write_text('#!/bin/sh\necho "make $* with CI=$CI"\n')
    make.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    ran = subprocess.run(
        [ROOT / ".ci" / "run"], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    told = [line for line in ran.stdout.splitlines() if line.startswith("make ")]
    steps = [f"make {step} with CI=true" for step in ("setup", "lint", "test", "test-tools")]
    assert told in (steps, steps[:3])  # those of the tools only if something that they depend on has changed
    assert ran.stdout.endswith("==> all passed\n")


def test_no_test_is_left_out():
    """No test can be skipped, so the same tests run with and without the environment variable CI."""
    found = []
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            if {"build", "__pycache__"} & set(path.parts):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and node.attr in LEAVES_OUT:
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.attr}")
    assert found == []


def test_hypothesis_tries_new_examples_with_ci_set_too():
    asked = "import conftest; from hypothesis import settings; found = settings.default"
    asked += "; print(found.derandomize, found.deadline)"
    for ci in ({}, {"CI": "true"}):
        ran = subprocess.run(
            [sys.executable, "-c", asked],
            cwd=ROOT,
            env={**os.environ, **ci},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.split() == ["False", "None"]
