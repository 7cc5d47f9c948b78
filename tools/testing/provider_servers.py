"""Imports the test servers of providers, which stand beside their tests."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any, Final

__all__ = ["server_module"]

_PROVIDERS: Final = Path(__file__).parents[2] / "providers"


@cache
def server_module(provider: str, name: str) -> Any:
    """Import a module from a provider's test servers, which are not part of an installed package."""
    spec = ModuleSpec(f"testing_{provider}_servers", None, is_package=True)
    spec.submodule_search_locations = [str(_PROVIDERS / provider / "tests" / "servers")]
    sys.modules[spec.name] = module_from_spec(spec)
    return import_module(f"{spec.name}.{name}")
