"""Makes the generated pages of the reference: `python docs/generate.py [FOLDER]`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from multiclouddb_conformance.mutants import MUTANTS, mutant_table

_ROOT: Final = Path(__file__).resolve().parent.parent


def mutants_page() -> str:
    """The table of mutants, with what it is for."""
    return f"""# Mutants: broken readers, and the tests that catch them

Made by `python docs/generate.py`.

Does the conformance suite bite? Each of these {len(MUTANTS)} readers has one defect, most of them from
the bug lists of real projects. The suite is run on each: it fails at least the tests that are named here,
and the same run without the defect passes (`pytest conformance -k mutant`).

For the author of a provider the table works backwards, too: look for the tests that are red, and read which
defect looks like that.

{mutant_table()}
"""


def command_line_page(file: Path) -> None:
    """The transcript of the command line; takes some seconds."""
    subprocess.run([sys.executable, str(_ROOT / "cli" / "record.py"), str(file)], check=True)


def main() -> None:
    """Write every page."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _ROOT / "docs" / "reference"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mutants.md").write_text(mutants_page(), encoding="utf-8")
    command_line_page(folder / "command-line.md")


if __name__ == "__main__":
    main()
