"""Lists the values that documents and keys may contain if a database supports their type."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

__all__ = ["KEYS", "VALUES"]

VALUES: Final[Mapping[str, Any]] = {
    "null": None,
    "true": True,
    "false": False,
    "zero": 0,
    "integer": -42,
    "largest 64-bit integer": 2**63 - 1,
    "integer over 64 bit": 2**70,
    "float": 0.1,
    "whole float": 2.0,
    "infinity": float("inf"),
    "empty text": "",
    "text": "Grüße, 世界 🌍\n\x00\u2028",
    "long text": "x" * 70_000,
    "bytes": b"\x00\xff raw",
    "decimal": Decimal("1.50"),
    "decimal of many digits": Decimal("-12345678901234567890.123456789"),  # a float would round it
    "datetime": datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC),
    "uuid": UUID("12345678-1234-5678-1234-567812345678"),
    "set": frozenset({"a", "b"}),
    "list": [1, "two", None, [3.5]],
    "map": {"a": {"b": {"c": [True]}}, "": "empty name"},
    "dollar name": {"$date": "not a date", "$x": 1},
}
"""Values for documents, by name.

A harness lists in `value_types` the values that its service preserves exactly.
"""

KEYS: Final[Mapping[str, Any]] = {
    "text": "key-1",
    "unicode": "Schlüssel/鍵 %20?#",
    "integer": 42,
    "largest 64-bit integer": 2**63 - 1,
    "float": 1.5,
    "true": True,
    "bytes": b"\x00\x01",
    "decimal": Decimal("1.5"),
    "datetime": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "uuid": UUID("12345678-1234-5678-1234-567812345678"),
}
"""Values for keys, by name; a harness lists in `key_types` the values that its service accepts."""
