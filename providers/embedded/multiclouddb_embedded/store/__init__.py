"""Contains the store, which writes the file and defines the file's layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from multiclouddb_api.loading import on_first_use

if TYPE_CHECKING:
    from multiclouddb_embedded.store.log import MAX_DOCUMENT_BYTES, Delete, Key, Operation, Put
    from multiclouddb_embedded.store.store import EmbeddedStore, PartitionRange

_HOMES: Final = {
    "log": "MAX_DOCUMENT_BYTES Delete Key Operation Put",
    "store": "EmbeddedStore PartitionRange",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = on_first_use(__name__, _HOMES)

__all__ = ["MAX_DOCUMENT_BYTES", "Delete", "EmbeddedStore", "Key", "Operation", "PartitionRange", "Put"]
