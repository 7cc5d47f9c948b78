"""Lets a package import its modules when one of their names is first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["on_first_use"]


def on_first_use(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package.

    Args:
        package: The name of the package.
        homes: Maps each module of the package to the names that it defines, with spaces between them.
    """
    modules = {name: f"{package}.{module}" for module, names in homes.items() for name in names.split()}
    modules |= {module: f"{package}.{module}" for module in homes if "." not in module}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=space)
        module = import_module(modules[name])
        # The import of a module sets it as an attribute of the package already.
        value = module if name in homes else getattr(module, name)
        setattr(space, name, value)
        return value

    def names() -> list[str]:
        return sorted({*modules, *(name for name in vars(space) if name.startswith("__"))})

    space = sys.modules[package]
    return get, names
