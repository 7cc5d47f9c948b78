"""The README's programs run as they stand and print what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```\n+```text\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_every_program_has_its_output() -> None:
    assert len(PROGRAMS) == README.count("```python") == 3


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("program", "output"), PROGRAMS, ids=["first", "worker", "spark"])
def test_program_prints_what_the_readme_says(program: str, output: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == output
