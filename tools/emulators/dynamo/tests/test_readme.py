"""Tests that the program in the README runs."""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1]


def test_the_program_of_the_readme_runs(tmp_path):
    (program,) = re.findall(
        r"^```python\n(.*?)^```", (FOLDER / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
