"""Contains the store, which writes the file and defines the file's layout."""

from __future__ import annotations

from multiclouddb_embedded.store.log import MAX_DOCUMENT_BYTES, Delete, Key, Operation, Put
from multiclouddb_embedded.store.store import EmbeddedStore, PartitionRange

__all__ = ["MAX_DOCUMENT_BYTES", "Delete", "EmbeddedStore", "Key", "Operation", "PartitionRange", "Put"]
