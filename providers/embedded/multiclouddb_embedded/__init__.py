"""A document store with a change feed in one SQLite file, and the provider that reads it."""

from __future__ import annotations

from multiclouddb_embedded.checkpoints import SqliteCheckpointStore
from multiclouddb_embedded.config import EmbeddedOptions
from multiclouddb_embedded.store import (
    MAX_DOCUMENT_BYTES,
    Delete,
    EmbeddedStore,
    Key,
    Operation,
    PartitionRange,
    Put,
)

__all__ = [
    "MAX_DOCUMENT_BYTES",
    "Delete",
    "EmbeddedOptions",
    "EmbeddedStore",
    "Key",
    "Operation",
    "PartitionRange",
    "Put",
    "SqliteCheckpointStore",
]
