"""Implements the operation `Scan`, by segments."""

from __future__ import annotations

from typing import Any, Final

from multiclouddb_dynamo_emulator.arguments import Arguments
from multiclouddb_dynamo_emulator.errors import invalid
from multiclouddb_dynamo_emulator.item import HASH_SPACE, Item, item_size, normalised
from multiclouddb_dynamo_emulator.store import Store
from multiclouddb_dynamo_emulator.table import Table

__all__ = ["scan"]

_MOST_SEGMENTS: Final = 1_000_000
_MOST_ITEMS: Final = 2**31 - 1
_UNIT_BYTES: Final = 4096
_KNOWN: Final = (
    "TableName",
    "Segment",
    "TotalSegments",
    "ExclusiveStartKey",
    "Limit",
    "ConsistentRead",
    "ReturnConsumedCapacity",
)


def scan(store: Store, table: Table, arguments: Arguments) -> dict[str, Any]:
    """Return one page of a segment.

    Args:
        store: The store, which contains the settings.
        table: The table.
        arguments: The arguments of the call.
    """
    arguments.only(*_KNOWN)
    low, high = _range(arguments) if store.habits.divides_scans else (0, HASH_SPACE)
    most, consistent = arguments.limit(_MOST_ITEMS), arguments.get("ConsistentRead") is True
    after = _after(table, arguments, low, high)
    items: list[Item] = []
    size, last = 0, None
    for key, item in table.scan(low, high, after, consistent):
        size += item_size(item)
        if items and size > store.habits.page_bytes:
            break
        items.append(item)
        last = key
        if len(items) == most:
            break
    else:
        last = None
    answer: dict[str, Any] = {"Items": items, "Count": len(items), "ScannedCount": len(items)}
    if last is not None:
        answer["LastEvaluatedKey"] = last
    if arguments.get("ReturnConsumedCapacity", "NONE") != "NONE":
        units = max(1, -(-size // _UNIT_BYTES)) * (1.0 if consistent else 0.5)
        answer["ConsumedCapacity"] = {"TableName": arguments.get("TableName"), "CapacityUnits": units}
    return answer


def _range(arguments: Arguments) -> tuple[int, int]:
    """Return the range of hashes for a segment."""
    total, segment = arguments.get("TotalSegments", 1), arguments.get("Segment", 0)
    if not (isinstance(total, int) and isinstance(segment, int) and 1 <= total <= _MOST_SEGMENTS):
        raise invalid("TotalSegments must be between 1 and 1000000")
    if not 0 <= segment < total:
        raise invalid(
            "The Segment parameter is zero-based and must be less than parameter TotalSegments: "
            f"Segment: {segment} is not less than TotalSegments: {total}"
        )
    return HASH_SPACE * segment // total, HASH_SPACE * (segment + 1) // total


def _after(table: Table, arguments: Arguments, low: int, high: int) -> tuple[int, bytes] | None:
    key = arguments.get("ExclusiveStartKey")
    if key is None:
        return None
    place = table.place_of(normalised(key))
    if not low <= place[0] < high:
        raise invalid(
            "The provided starting key is invalid: Invalid ExclusiveStartKey. Please use ExclusiveStartKey "
            f"with correct Segment. TotalSegments: {arguments.get('TotalSegments')} "
            f"Segment: {arguments.get('Segment')}"
        )
    return place
