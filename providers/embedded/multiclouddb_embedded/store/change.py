"""Represents puts and deletes, which are checked and encoded before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias, get_args
from uuid import UUID

import attrs

from multiclouddb_api import MulticloudDbKey, encode_json, invalid_request
from multiclouddb_api.redaction import shorten
from multiclouddb_api.validators import is_a, type_name
from multiclouddb_embedded.store.collection import Collection
from multiclouddb_embedded.store.layout import partition_hash, partition_identity

MAX_DOCUMENT_BYTES: Final = 16 * 1024 * 1024

Scalar: TypeAlias = str | int | float | bool | bytes | Decimal | datetime | UUID
Key: TypeAlias = MulticloudDbKey | Mapping[str, Any] | Scalar
"""A `MulticloudDbKey`, a mapping of components by name, or one value for a component called `id`."""

_KEY: Final = is_a(MulticloudDbKey, Mapping, *get_args(Scalar))


@attrs.frozen
class Put:
    """Write a document. The change is a `CREATE` if no document has this key, and otherwise an `UPDATE`."""

    key: Key = attrs.field(repr=shorten, validator=_KEY)
    """The key of the document."""
    document: Mapping[str, Any] = attrs.field(repr=shorten, validator=is_a(Mapping))
    """The whole document, as a mapping from name to value."""


@attrs.frozen
class Delete:
    """Delete a document. If the document does not exist, nothing is written."""

    key: Key = attrs.field(repr=shorten, validator=_KEY)
    """The key of the document."""


Operation: TypeAlias = Put | Delete


@attrs.frozen
class EncodedChange:
    """One operation, encoded for the tables of the store."""

    identity: bytes
    """The canonical JSON of the key."""
    hash: int
    """The hash of the key's partition key."""
    key: str
    """The key's components as JSON."""
    doc: str | None
    """The document as JSON, or None for a delete."""
    size: int
    """The total size of key and document in bytes."""


def encode(operation: Operation, collection: Collection) -> EncodedChange:
    """Check one operation and encode it."""
    if not isinstance(operation, Put | Delete):
        raise invalid_request(
            "operations", f"holds a {type_name(operation)}", "pass Put(key, document) and Delete(key)"
        )
    key = to_key(operation.key, collection)
    identity = key.canonical()
    whole = len(key.components) == key.partition_components
    text = encode_json(key.components)
    doc = encode_json(operation.document) if isinstance(operation, Put) else None
    if doc is not None and len(doc) > MAX_DOCUMENT_BYTES:
        raise invalid_request(
            "document",
            f"is {len(doc):,} bytes of JSON",
            f"pass at most {MAX_DOCUMENT_BYTES:,} bytes, and store a reference to larger data",
        )
    return EncodedChange(
        identity=identity,
        hash=partition_hash(identity if whole else partition_identity(key)),
        key=text.decode(),
        doc=doc.decode() if doc is not None else None,
        size=len(text) + len(doc or b""),
    )


def to_key(key: Key, collection: Collection) -> MulticloudDbKey:
    """Convert the caller's key, and check it against the collection's partition key."""
    if isinstance(key, Mapping):
        key = MulticloudDbKey(key, collection.partition_components)
    elif not isinstance(key, MulticloudDbKey):
        if not isinstance(key, Scalar):
            raise invalid_request(
                "key",
                f"is a {type_name(key)}",
                "pass a MulticloudDbKey, a mapping of components or one value",
            )
        key = MulticloudDbKey({"id": key})
    collection.check_key(key)
    return key
