"""The multiclouddb provider for MongoDB change streams.

Applications need to import this package only for MongoDB's own options:

    from multiclouddb_mongo import MongoOptions

    ChangeFeedRequest(address, Now(), provider_options=MongoOptions(after_invalidate="follow"))
"""

from __future__ import annotations

import multiclouddb_mongo.values  # noqa: F401 - gives BSON's types their names in JSON
from multiclouddb_mongo.commands import RunCommandCursor, RunCommandOptions, RunCursorCommandOptions
from multiclouddb_mongo.options import MongoOptions

__all__ = ["MongoOptions", "RunCommandCursor", "RunCommandOptions", "RunCursorCommandOptions"]
