"""Reads the entry points of the installed distributions, without attrs and without `importlib.metadata`."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache, reduce
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any, Final, NamedTuple

__all__ = ["EntryPoint", "entry_points"]

_KEPT_SECONDS: Final = 5.0
_LINE: Final = re.compile(r"([^=\s][^=]*?)\s*=\s*([\w.]+)\s*(?::\s*([\w.]+))?\s*(?:\[.*\])?\s*")


class EntryPoint(NamedTuple):
    """An object that an installed distribution offers by name."""

    name: str
    value: str  # "module:object"
    distribution: str = "-"
    version: str = "-"

    def load(self) -> Any:
        """Import the module, and return the object."""
        module, _, path = self.value.partition(":")
        return reduce(getattr, path.split(".") if path else (), import_module(module))


def entry_points(*, group: str) -> list[EntryPoint]:
    """Return the entry points of a group, without importing what they name.

    The files are read here, because importing `importlib.metadata` takes as long as the rest of a start.
    """
    folders = [entry or "." for entry in sys.path]
    # Archives, eggs, and importers with distributions of their own are left to the standard library.
    others = any(
        finder is not PathFinder and hasattr(finder, "find_distributions") for finder in sys.meta_path
    )
    if others or any(os.path.isfile(folder) or folder.endswith(".egg") for folder in folders):
        return _from_importlib(group)
    # A command asks a dozen times. A distribution that is just being installed is found a few seconds later.
    found = _found(tuple((folder, _changed(folder)) for folder in folders), time.monotonic() // _KEPT_SECONDS)
    return [point for folder, text in found for point in _parsed(folder, text, group)]


def _changed(folder: str) -> int:
    """Return when a folder got or lost a file, in nanoseconds; an installation changes it."""
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=1)
def _found(folders: tuple[tuple[str, int], ...], _now: float) -> list[tuple[str, str]]:
    """Return the folders of the distributions that have entry points, with these as text."""
    files: dict[str, str] = {}
    for folder, _ in folders:
        with suppress(OSError), os.scandir(folder) as found:
            for each in found:
                stem, dot, kind = each.name.rpartition(".")
                if dot and kind in ("dist-info", "egg-info"):
                    # As in `importlib.metadata`, the first distribution of a name on the path counts.
                    files.setdefault(re.sub(r"[-_.]+", "_", stem.partition("-")[0]).lower(), each.path)
    texts = []
    for path in files.values():
        with suppress(OSError), open(os.path.join(path, "entry_points.txt"), encoding="utf-8") as file:
            texts.append((path, file.read()))  # most distributions have none
    return texts


def _parsed(folder: str, text: str, group: str) -> Iterator[EntryPoint]:
    if group not in text:
        return
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[]").strip()
        elif section == group and line[:1] != "#" and (match := _LINE.fullmatch(line)):
            name, module, attribute = match.groups()
            value = f"{module}:{attribute}" if attribute else module
            yield EntryPoint(name, value, *_distribution(folder))


def _distribution(folder: str) -> tuple[str, str]:
    facts = {"Name": "-", "Version": "-"}
    for file in ("METADATA", "PKG-INFO"):
        with suppress(OSError), open(os.path.join(folder, file), encoding="utf-8", errors="replace") as lines:
            for line in lines:
                field, colon, value = line.partition(":")
                if field in facts and facts[field] == "-":
                    facts[field] = value.strip()
                if not colon:  # the description follows
                    break
    return facts["Name"], facts["Version"]


def _from_importlib(group: str) -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return [
        EntryPoint(point.name, point.value.partition("[")[0].strip(), point.dist.name, point.dist.version)
        if point.dist
        else EntryPoint(point.name, point.value)
        for point in entry_points(group=group)
    ]
