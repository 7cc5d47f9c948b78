"""Tests that the programs in the READMEs of the emulators run, one after the other, with what is printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("name", "number", "printed"),
    [
        ("cosmos", 1, r"\['1', '2'\]\n1 3\n\[\]\n"),
        ("dynamo", 1, ".*"),
        ("spanner", 2, ".*T.*"),  # the server's time
    ],
)
def test_the_programs_of_the_readme_run(tmp_path, name, number, printed):
    text = (Path(__file__).parents[1] / "emulators" / name / "README.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    command = [sys.executable, "-W", "error", "-c", "\n".join(programs)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert len(programs) == number
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(printed, ran.stdout, re.DOTALL)
