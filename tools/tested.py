"""Tells whether `make test-tools` has passed with the present files; with `--write`, notes that it has.

`tools/tested` contains the digest of the files that decide what these tests do. The product's own files are
not among them: what changes only the product does not run the tests of the tools again.
"""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
TESTED: Final = ROOT / "tools" / "tested"
INPUTS: Final = (
    "tools",
    "conftest.py",
    "requirements.txt",
)


def digest() -> str:
    """Return the digest of the names and contents of all inputs that are in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *INPUTS], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    found = hashlib.sha256()
    for name in sorted(filter(None, listed.split("\0"))):
        path = ROOT / name
        if path != TESTED and path.is_file():
            found.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def main(arguments: list[str]) -> int:
    """Return 0 if the tests of the tools have passed with these files, otherwise 1."""
    if arguments == ["--write"]:
        TESTED.write_text(f"{digest()}\n", encoding="utf-8")
    return int(not TESTED.is_file() or TESTED.read_text(encoding="utf-8").strip() != digest())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
