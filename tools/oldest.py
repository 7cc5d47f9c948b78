"""Prints what `make lock` resolves at its lowest allowed version: `python tools/oldest.py`.

These are the direct dependencies of every distribution, with all extras, and the group `test`, with which
their tests run. Dependencies of dependencies get their newest version, as pip gives it to users.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).resolve().parent.parent


def projects() -> dict[str, dict[str, Any]]:
    """Return the `pyproject.toml` of every distribution by its name."""
    return {read["project"]["name"]: read for _, read in _read()}


def packages() -> dict[str, list[Path]]:
    """Return the folders with the modules of every distribution by its name."""
    return {
        read["project"]["name"]: [
            folder / package for package in read["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        ]
        for folder, read in _read()
    }


def requirements() -> dict[str, list[str]]:
    """Map each distribution, and `test`, to its requirements of packages that are not ours."""
    found = projects()
    every = {
        name: [*read["project"].get("dependencies", ()), *_extras(read["project"])]
        for name, read in found.items()
    }
    every["test"] = found["multiclouddb"]["dependency-groups"]["test"]
    return {
        name: sorted(each for each in wanted if not each.startswith("multiclouddb"))
        for name, wanted in every.items()
    }


def _read() -> list[tuple[Path, dict[str, Any]]]:
    main = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    members = main["tool"]["uv"]["workspace"]["members"]
    files = [file for member in members for file in sorted(_ROOT.glob(f"{member}/pyproject.toml"))]
    return [(_ROOT, main), *((file.parent, tomllib.loads(file.read_text())) for file in files)]


def _extras(project: dict[str, Any]) -> list[str]:
    return [each for extra in project.get("optional-dependencies", {}).values() for each in extra]


if __name__ == "__main__":
    sys.stdout.write("".join(f"{each}\n" for each in sorted(set().union(*requirements().values()))))
