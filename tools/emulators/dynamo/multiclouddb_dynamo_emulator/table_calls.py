"""Implements the operations of `DynamoDB_20120810` that a test needs to write and to scan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from multiclouddb_dynamo_emulator.arguments import Arguments
from multiclouddb_dynamo_emulator.errors import invalid
from multiclouddb_dynamo_emulator.item import Item, KeySchema, item_size, normalised
from multiclouddb_dynamo_emulator.scan_call import scan
from multiclouddb_dynamo_emulator.store import Store
from multiclouddb_dynamo_emulator.table import Table

__all__ = ["TABLE_CALLS"]

_BATCH: Final = 25
_READ: Final = 100
_TRANSACTION: Final = 100
_RETURNED: Final = ("ReturnValues", "ReturnConsumedCapacity", "ReturnItemCollectionMetrics")


def _table(store: Store, arguments: Arguments) -> Table:
    # The table's ARN is also accepted as its name.
    return store.table(arguments.text("TableName", 3, 1024).rpartition("/")[2])


def _create_table(store: Store, arguments: Arguments) -> dict[str, Any]:
    name = arguments.text("TableName", 3, 255)
    keys = KeySchema.parse(arguments.get("KeySchema", []), arguments.get("AttributeDefinitions", []))
    table = store.create(name, keys, arguments.get("StreamSpecification", {}))
    table.tags = arguments.get("Tags", [])
    return {"TableDescription": table.described()}


def _delete_table(store: Store, arguments: Arguments) -> dict[str, Any]:
    described = _table(store, arguments).described()
    store.delete(described["TableName"])
    return {"TableDescription": described | {"TableStatus": "DELETING"}}


def _describe_table(store: Store, arguments: Arguments) -> dict[str, Any]:
    return {"Table": _table(store, arguments).described()}


def _list_tables(store: Store, arguments: Arguments) -> dict[str, Any]:
    limit, start = arguments.limit(100), arguments.get("ExclusiveStartTableName", "")
    names = sorted(name for name in store.tables if name > start)
    more = {"LastEvaluatedTableName": names[limit - 1]} if len(names) > limit else {}
    return {"TableNames": names[:limit], **more}


def _list_tags(store: Store, arguments: Arguments) -> dict[str, Any]:
    return {"Tags": store.table(arguments.text("ResourceArn", 1, 1283).rpartition("/")[2]).tags}


def _update_table(store: Store, arguments: Arguments) -> dict[str, Any]:
    arguments.only("TableName", "StreamSpecification")
    table = _table(store, arguments)
    store.set_stream(table, arguments.get("StreamSpecification", {}))
    return {"TableDescription": table.described()}


def _old(arguments: Arguments, item: Item | None) -> dict[str, Any]:
    wanted = arguments.get("ReturnValues", "NONE")
    if wanted not in ("NONE", "ALL_OLD"):
        raise invalid("Return values set to invalid value")
    return {"Attributes": item} if item is not None and wanted == "ALL_OLD" else {}


def _put_item(store: Store, arguments: Arguments) -> dict[str, Any]:
    arguments.only("TableName", "Item", *_RETURNED)
    return _old(arguments, _table(store, arguments).put(normalised(arguments.get("Item"))))


def _delete_item(store: Store, arguments: Arguments) -> dict[str, Any]:
    arguments.only("TableName", "Key", *_RETURNED)
    return _old(arguments, _table(store, arguments).delete(normalised(arguments.get("Key"))))


def _apply(requests: list[tuple[Table, Item, bool]], most: int, refusal: str) -> None:
    """Write all items, or nothing if one of the requests is invalid."""
    if not 0 < len(requests) <= most:
        raise invalid(f"1 to {most} requests are allowed, but there are {len(requests)}")
    keys = {
        (table.arn, orjson.dumps(table.keys.key_of(item) if put else table.keys.exactly(item)))
        for table, item, put in requests
    }
    if len(keys) < len(requests):
        raise invalid(refusal)
    for table, item, put in requests:
        if put:
            table.put(item)
        else:
            table.delete(item)


def _batch_write_item(store: Store, arguments: Arguments) -> dict[str, Any]:
    arguments.only("RequestItems", *_RETURNED)
    requests = []
    for name, members in arguments.get("RequestItems", {}).items():
        for member in members:
            match member:
                case {"PutRequest": {"Item": item}}:
                    requests.append((store.table(name), normalised(item), True))
                case {"DeleteRequest": {"Key": key}}:
                    requests.append((store.table(name), normalised(key), False))
                case _:
                    raise invalid("Supplied request is neither a PutRequest nor a DeleteRequest")
    _apply(requests, _BATCH, "Provided list of item keys contains duplicates")
    return {"UnprocessedItems": {}}


def _batch_get_item(store: Store, arguments: Arguments) -> dict[str, Any]:
    arguments.only("RequestItems", "ReturnConsumedCapacity")
    asked = [
        (name, store.table(name.rpartition("/")[2]), normalised(key), wanted)
        for name, wanted in arguments.get("RequestItems", {}).items()
        for key in wanted["Keys"]
    ]
    if not 0 < len(asked) <= _READ:
        raise invalid(f"1 to {_READ} keys are allowed, but there are {len(asked)}")
    if len({(name, orjson.dumps(table.keys.exactly(key))) for name, table, key, _ in asked}) < len(asked):
        raise invalid("Provided list of item keys contains duplicates")
    found: dict[str, list[Item]] = {name: [] for name, *_ in asked}
    left: dict[str, Any] = {}
    size = 0
    for name, table, key, wanted in asked:
        item = table.get(key, wanted.get("ConsistentRead") is True)
        size += 0 if item is None else item_size(item)
        if size > store.habits.page_bytes and any(found.values()):
            left.setdefault(name, {**wanted, "Keys": []})["Keys"].append(key)
        elif item is not None:
            found[name].append(item)
    return {"Responses": found, "UnprocessedKeys": left}


def _transact_write_items(store: Store, arguments: Arguments) -> dict[str, Any]:
    arguments.only("TransactItems", "ClientRequestToken", *_RETURNED)
    requests = []
    for member in arguments.get("TransactItems", []):
        match member:
            case {"Put": {"TableName": name, "Item": item, **rest}} if not rest:
                requests.append((store.table(name), normalised(item), True))
            case {"Delete": {"TableName": name, "Key": key, **rest}} if not rest:
                requests.append((store.table(name), normalised(key), False))
            case _:
                raise invalid("The scripted server supports only Put and Delete without conditions")
    _apply(requests, _TRANSACTION, "Transaction request cannot include multiple operations on one item")
    return {}


TABLE_CALLS: Final[Mapping[str, Callable[[Store, Arguments], dict[str, Any]]]] = {
    "CreateTable": _create_table,
    "DeleteTable": _delete_table,
    "DescribeTable": _describe_table,
    "ListTables": _list_tables,
    "ListTagsOfResource": _list_tags,
    "UpdateTable": _update_table,
    "PutItem": _put_item,
    "DeleteItem": _delete_item,
    "BatchWriteItem": _batch_write_item,
    "BatchGetItem": _batch_get_item,
    "TransactWriteItems": _transact_write_items,
    "Scan": lambda store, arguments: scan(store, _table(store, arguments), arguments),
}
"""Maps each operation to its function. The caller holds the store's lock."""
