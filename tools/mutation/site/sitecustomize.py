"""Replaces a module with a copy that contains a defect, in every Python process of a test run.

Python imports a module named `sitecustomize` when it starts. This module's folder is on PYTHONPATH only in
the processes that `mutation.running` starts, and in their child processes. The files of the repository are
not changed.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

# This limits the memory, because a defect can allocate memory without end.
_MOST_BYTES = 4 << 30


class _Loader(SourceFileLoader):
    """A loader that compiles other source code under the name of the original module."""

    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        with open(self._source, encoding="utf-8") as file:
            return compile(file.read(), self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """A finder for one module."""

    def __init__(self, module: str, source: str) -> None:
        self._module, self._source = module, source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is None or found.origin is None:
            return None
        loader = _Loader(fullname, found.origin, self._source)
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=loader)


if "MULTICLOUDDB_MUTANT_MODULE" in os.environ:
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    sys.meta_path.insert(
        0, _Finder(os.environ["MULTICLOUDDB_MUTANT_MODULE"], os.environ["MULTICLOUDDB_MUTANT_SOURCE"])
    )
