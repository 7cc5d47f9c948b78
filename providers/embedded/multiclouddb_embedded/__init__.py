"""A document store with a change feed in one SQLite file, and the provider that reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from multiclouddb_api.loading import on_first_use

if TYPE_CHECKING:
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

_HOMES: Final = {
    "checkpoints": "SqliteCheckpointStore",
    "config": "EmbeddedOptions",
    "store": "MAX_DOCUMENT_BYTES Delete EmbeddedStore Key Operation PartitionRange Put",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = on_first_use(__name__, _HOMES)

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
