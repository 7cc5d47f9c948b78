"""One Python API for the change data capture (CDC) feeds of several databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import multiclouddb_api

if TYPE_CHECKING:
    from multiclouddb_api import *  # noqa: F403 - the same objects under the name that applications import

__all__ = list(multiclouddb_api.__all__)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return the same object under the name that applications import; its module is imported now."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(multiclouddb_api, name)
        return value

    def __dir__() -> list[str]:
        return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
