"""The multiclouddb provider for MongoDB change streams.

Applications need to import this package only for MongoDB's own options:

    from multiclouddb_mongo import MongoOptions

    ChangeFeedRequest(address, Now(), provider_options=MongoOptions(after_invalidate="follow"))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import multiclouddb_mongo.values  # noqa: F401 - gives BSON's types their names in JSON
from multiclouddb_mongo.options import MongoOptions

if TYPE_CHECKING:
    from multiclouddb_mongo.commands import RunCommandCursor, RunCommandOptions, RunCursorCommandOptions

__all__ = ["MongoOptions", "RunCommandCursor", "RunCommandOptions", "RunCursorCommandOptions"]


def __getattr__(name: str) -> Any:
    """Import the commands when one of their names is used: a list of providers does without PyMongo."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.commands"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
