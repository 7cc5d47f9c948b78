"""Reads the settings in `mutation.toml`: the modules that get defects, the tests to run, and the limits."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

import attrs

__all__ = ["FOLDER", "Settings"]

FOLDER: Final = Path(__file__).parent


@attrs.frozen
class Settings:
    """The limits of a run, and its files.

    Attributes:
        root: The folder to which all paths are relative.
        seed: The seed for the choice of defects; another seed gives other defects.
        number: The maximum number of defects in a run.
        minutes: The time after which no further mutant is started.
        goal: The share of mutants that must be killed.
        least: The minimum number of mutants that must run; with fewer mutants, the run has no result.
        slowest_test_seconds: The maximum duration of a test; slower tests are not used.
        tests_seconds: The maximum duration of the tests for one mutant, measured without the defect.
        modules: The files in which defects are planted.
        tests: The test files.
    """

    root: Path
    seed: int
    number: int
    minutes: float
    goal: float
    least: int
    slowest_test_seconds: float
    tests_seconds: float
    modules: tuple[str, ...]
    tests: tuple[str, ...]

    @classmethod
    def read(cls, path: Path, root: Path) -> Settings:
        """Read a TOML file. The path of a folder in the file means every module below this folder.

        Args:
            path: The file.
            root: The folder to which the file's paths are relative.

        Raises:
            ValueError: Raised if a path in the file does not exist, if a module is listed twice, or if an
                entry is unknown or missing.
        """
        found = tomllib.loads(path.read_text())
        left_out = {name for item in found.pop("leave_out", []) for name in _files(root, item, "test_*.py")}
        modules = [name for item in found.pop("modules") for name in _files(root, item, "*.py")]
        if twice := sorted({name for name in modules if modules.count(name) > 1 and "__init__" not in name}):
            raise ValueError(f"{path.name} lists {', '.join(twice)} twice; remove one of the entries")
        tests = [name for item in found.pop("tests") for name in _files(root, item, "test_*.py")]
        return _built(
            found,
            root=root,
            modules=tuple(name for name in modules if not name.endswith("__init__.py")),
            tests=tuple(name for name in tests if name not in left_out),
        )


def _built(bounds: dict[str, Any], **paths: Any) -> Settings:
    try:
        return Settings(**bounds, **paths)
    except TypeError as error:
        raise ValueError(f"mutation.toml: {error}; its entries are the attributes of Settings") from None


def _files(root: Path, name: str, pattern: str) -> list[str]:
    path = root / name
    if path.is_file():
        return [name]
    if not path.is_dir():
        raise ValueError(f"mutation.toml names {name}, which does not exist; correct the path there")
    return sorted(each.relative_to(root).as_posix() for each in path.rglob(pattern))
