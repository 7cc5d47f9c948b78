"""The multiclouddb provider for MongoDB change streams.

Applications need to import this package only for MongoDB's own options:

    from multiclouddb_mongo import MongoOptions

    ChangeFeedRequest(address, Now(), provider_options=MongoOptions(after_invalidate="follow"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import multiclouddb_mongo.values  # noqa: F401 - gives BSON's types their names in JSON
from multiclouddb_api.loading import on_first_use

if TYPE_CHECKING:
    from multiclouddb_mongo.commands import RunCommandCursor, RunCommandOptions, RunCursorCommandOptions
    from multiclouddb_mongo.options import MongoOptions

_HOMES: Final = {
    "commands": "RunCommandCursor RunCommandOptions RunCursorCommandOptions",
    "options": "MongoOptions",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = on_first_use(__name__, _HOMES)

__all__ = ["MongoOptions", "RunCommandCursor", "RunCommandOptions", "RunCursorCommandOptions"]
