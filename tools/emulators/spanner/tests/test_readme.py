"""Tests that the programs in the README run, one after the other."""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1]


def test_the_programs_of_the_readme_run(tmp_path):
    programs = re.findall(
        r"^```python\n(.*?)^```", (FOLDER / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(programs)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert len(programs) == 2
    assert "T" in ran.stdout  # the server's time
