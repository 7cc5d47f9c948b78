"""Handles partition keys: their definition, the key of a document, and the key in a request."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import attrs
import orjson

from multiclouddb_cosmos_emulator.errors import bad_request
from multiclouddb_cosmos_emulator.hashing import hash_hierarchy, hash_v1, hash_v2
from multiclouddb_cosmos_emulator.values import UNDEFINED, Json, at_path, path_names

__all__ = ["MAX_EPK", "MIN_EPK", "Key", "KeyDefinition"]

MIN_EPK: Final = ""
MAX_EPK: Final = "FF"
_LEVELS: Final = 3


@attrs.frozen
class Key:
    """A partition key, or the first components of a hierarchical partition key.

    Attributes:
        name: The canonical form of the key; 1 and 1.0 are the same key, and True is a different key.
        epk: The effective partition key.
        values: Its components.
    """

    name: bytes
    epk: str
    values: tuple[Json, ...] = attrs.field(eq=False)


def _canonical(value: Json) -> Json:
    if value is UNDEFINED:
        return {}
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


@attrs.frozen
class KeyDefinition:
    """The partition key definition of a container.

    Attributes:
        paths: The path of each component, as property names.
        kind: `Hash` or `MultiHash`.
        version: The version of the hash, 1 or 2.
    """

    paths: tuple[tuple[str, ...], ...]
    kind: str = "Hash"
    version: int = 2

    @classmethod
    def parsed(cls, definition: Any) -> KeyDefinition:
        """Parse the definition in a container's document."""
        if not isinstance(definition, Mapping):
            raise bad_request("The partition key has to be an object.")
        paths, kind = definition.get("paths"), definition.get("kind", "Hash")
        version = definition.get("version", 1)
        if not isinstance(paths, list) or not paths or not all(str(path).startswith("/") for path in paths):
            raise bad_request("The partition key needs paths, each of which begins with a slash.")
        if kind not in ("Hash", "MultiHash") or version not in (1, 2):
            raise bad_request(f"A partition key of kind {kind!r} and version {version!r} is not known.")
        if len(paths) > (1 if kind == "Hash" else _LEVELS):
            raise bad_request(f"Too many partition key paths. Kind {kind!r} has {len(paths)}.")
        if kind == "MultiHash" and version == 1:
            raise bad_request("A partition key of kind 'MultiHash' has version 2.")
        names = tuple(path_names(str(path)) for path in paths)
        if not all(names):
            raise bad_request(f"The partition key paths {paths} cannot be parsed.")
        return cls(names, kind, version)

    @property
    def names(self) -> list[str]:
        """Return the last name in each path."""
        return [path[-1] for path in self.paths]

    def of_document(self, document: Json) -> Key:
        """Return the key of a document. An object counts as if it was absent."""
        found = (at_path(document, path) for path in self.paths)
        return self.of_values(tuple(UNDEFINED if isinstance(value, dict) else value for value in found))

    def of_header(self, text: str) -> Key:
        """Return the key in the header `x-ms-documentdb-partitionkey`."""
        return _of_header(self, text)

    def of_values(self, values: tuple[Json, ...]) -> Key:
        """Return the key with the given components. An object or an array cannot be a component."""
        if any(isinstance(value, dict | list) for value in values):
            raise bad_request("A component of a partition key is an object or an array.", 1001)
        name = orjson.dumps([_canonical(value) for value in values])
        if self.kind == "MultiHash":
            return Key(name, hash_hierarchy(values), values)
        return Key(name, hash_v1(values) if self.version == 1 else hash_v2(values), values)


@lru_cache(maxsize=10_000)
def _of_header(definition: KeyDefinition, text: str) -> Key:
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError:
        values = None
    if not isinstance(values, list) or not values:
        raise bad_request(f"Partition key {text} is invalid.", 1001)
    if len(values) > len(definition.paths):
        raise bad_request(
            "Partition key provided either doesn't correspond to definition in the collection or doesn't "
            "match partition key field values specified in the document.",
            1001,
        )
    return definition.of_values(tuple(UNDEFINED if value == {} else value for value in values))
