"""The address of a change feed consists of a database and a collection."""

from __future__ import annotations

from typing import Any

import attrs

from multiclouddb_api.validators import is_a, not_blank, utf8

__all__ = ["ResourceAddress"]


def _is_utf8(instance: object, attribute: attrs.Attribute[Any], value: str | None) -> None:
    utf8(f"{type(instance).__name__}.{attribute.name}", value or "")


_NAME = [is_a(str, type(None)), not_blank("give its name, or None if the scope is wider"), _is_utf8]


@attrs.frozen
class ResourceAddress:
    """A collection, table or container, and the database that contains it.

    Portability:
        `database` is None on DynamoDB. On Spanner, Cosmos DB and MongoDB, `database` is the name of a
        database; on the embedded store it is `"main"` by default. `collection` is the name of a table
        (DynamoDB, Spanner), a container (Cosmos DB) or a collection (MongoDB, embedded store). See warning 21
        in docs/configuration.md.
    """

    database: str | None = attrs.field(default=None, validator=_NAME)
    """Name of the database, or None if the provider has no databases."""
    collection: str | None = attrs.field(default=None, validator=_NAME)
    """Name of the collection, or None with `EntireDatabase()` and `EntireCluster()`."""

    def __str__(self) -> str:
        return "/".join(name for name in (self.database, self.collection) if name is not None)
