"""Writes items, with a single write or with a transaction of several writes to one logical partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import orjson

from multiclouddb_cosmos_emulator.container import Container, Effect
from multiclouddb_cosmos_emulator.errors import (
    ServiceError,
    bad_request,
    conflict,
    not_found,
    not_offered,
    precondition_failed,
)
from multiclouddb_cosmos_emulator.ids import document_rid, new_etag
from multiclouddb_cosmos_emulator.keys import Key
from multiclouddb_cosmos_emulator.partition import Item, Partition
from multiclouddb_cosmos_emulator.patch import patched
from multiclouddb_cosmos_emulator.values import UNDEFINED, at_path, path_names

__all__ = ["LARGEST", "Condition", "Transaction"]

LARGEST: Final = 2 * 1024 * 1024
_LONGEST_ID: Final = 1023
_SYSTEM: Final = ("_rid", "_self", "_etag", "_attachments", "_ts")


@attrs.frozen
class Condition:
    """The condition of an operation.

    Attributes:
        match: `If-Match`.
        none_match: `If-None-Match`.
    """

    match: str | None = None
    none_match: str | None = None

    def check(self, item: Item | None) -> None:
        """Refuse an operation if the item does not meet the condition."""
        if item is None:
            return
        if self.match not in (None, "*", item.etag) or self.none_match in ("*", item.etag):
            raise precondition_failed()


_NONE: Final = Condition()


class Transaction:
    """Operations on the items of one logical partition; `commit` makes their results visible.

    Args:
        container: The container that stores the items.
        key: The logical partition; None to take the partition key from the first document.
    """

    def __init__(self, container: Container, key: Key | None) -> None:
        self._container, self._key = container, key
        self._effects: list[Effect] = []
        self._staged: dict[str, Item | None] = {}

    @property
    def key(self) -> Key:
        """Return the logical partition."""
        if self._key is None:
            raise bad_request("PartitionKey value must be supplied for this operation.")
        return self._key

    def find(self, item_id: str) -> Item | None:
        """Return an item in the state that the transaction sees."""
        if item_id in self._staged:
            return self._staged[item_id]
        return self._container.item(self.key, item_id)

    def read(self, item_id: str) -> Item:
        """Return an item, or raise a 404 error if the item does not exist."""
        item = self.find(item_id)
        if item is None:
            raise not_found(
                "Resource Not Found. Learn more: https://aka.ms/cosmosdb-tsg-not-found", substatus=0
            )
        return item

    def create(self, document: Any) -> Item:
        """Create an item."""
        fields = self._checked(document)
        if self.find(fields["id"]) is not None:
            raise conflict("Entity with the specified id already exists in the system.")
        return self._write(None, fields)

    def upsert(self, document: Any, condition: Condition = _NONE) -> tuple[Item, bool]:
        """Create or replace an item. Return True if the item was created."""
        fields = self._checked(document)
        old = self.find(fields["id"])
        condition.check(old)
        return self._write(old, fields), old is None

    def replace(self, item_id: str, document: Any, condition: Condition = _NONE) -> Item:
        """Replace an item."""
        old = self.read(item_id)
        fields = self._checked(document)
        condition.check(old)
        if fields["id"] != item_id:
            raise not_offered("a replace that changes the id of an item")
        return self._write(old, fields)

    def patch(
        self,
        item_id: str,
        operations: Any,
        allows: Callable[[dict[str, Any]], bool] | None,
        condition: Condition = _NONE,
    ) -> Item:
        """Patch an item, if the condition allows the patch."""
        old = self.read(item_id)
        condition.check(old)
        if allows is not None and not allows(old.document):
            raise precondition_failed()
        fields = patched(old.document, operations)
        if self._container.definition.of_document(fields) != old.key:
            raise bad_request("A patch cannot change the partition key.")
        return self._write(old, fields)

    def delete(self, item_id: str, condition: Condition = _NONE) -> None:
        """Delete an item."""
        old = self.read(item_id)
        condition.check(old)
        self._effects.append(Effect("delete", old, None))
        self._staged[item_id] = None

    def commit(self) -> Partition:
        """Commit all operations, and return the partition."""
        return self._container.apply(self.key, self._effects)

    # -- Documents

    def _checked(self, document: Any) -> dict[str, Any]:
        if not isinstance(document, dict):
            raise bad_request("The document has to be an object.")
        item_id = document.get("id")
        if not isinstance(item_id, str) or not item_id:
            raise bad_request(
                "The input content is invalid because the required properties - 'id; ' - are missing"
            )
        if len(item_id) > _LONGEST_ID or "\\" in item_id:
            raise bad_request(
                "The input name is invalid. "
                "Ensure to provide a unique non-empty string less than '1024' characters. "
                "It must not contain \\."
            )
        key = self._container.definition.of_document(document)
        if self._key is None:
            self._key = key
        if key != self._key:
            raise bad_request(
                "PartitionKey extracted from document doesn't match the one specified in the header. "
                "Learn more: https://aka.ms/CosmosDB/sql/errors/wrong-pk-value",
                1001,
            )
        return document

    def _write(self, old: Item | None, fields: dict[str, Any]) -> Item:
        container = self._container
        number = container.next_number() if old is None else old.number
        rid = document_rid(container.rid, number)
        etag, ts = new_etag(), int(container.clock.seconds())
        document = {
            **{name: value for name, value in fields.items() if name not in _SYSTEM},
            "_rid": rid,
            "_self": f"{container.link}docs/{rid}/",
            "_etag": etag,
            "_attachments": "attachments/",
            "_ts": ts,
        }
        self._check_unique(document)
        body = orjson.dumps(document)
        if len(body) > LARGEST:
            raise ServiceError(413, "Request size is too large")
        expires = container.expiry(document.get("ttl", UNDEFINED), ts)
        new = Item(self.key, document["id"], number, document, body[:-1], etag, ts, expires)
        self._effects.append(Effect("create" if old is None else "replace", old, new))
        self._staged[new.item_id] = new
        return new

    def _check_unique(self, document: dict[str, Any]) -> None:
        policy = self._container.properties.get("uniqueKeyPolicy") or {}
        for unique in policy.get("uniqueKeys", ()):
            paths = [path_names(path) for path in unique["paths"]]
            wanted = [at_path(document, path) for path in paths]
            for item in self._others(document["id"]):
                if [at_path(item.document, path) for path in paths] == wanted:
                    raise conflict("Unique index constraint violation.")

    def _others(self, item_id: str) -> list[Item]:
        there = {**self._container.logical.get(self.key.name, {}), **self._staged}
        return [item for name, item in there.items() if item is not None and name != item_id]
