"""A position inside one partition."""

from __future__ import annotations

from typing import TypeAlias

from multiclouddb_api.codec import JsonValue

__all__ = ["Cursor"]

Cursor: TypeAlias = JsonValue
"""JSON, made and read by one provider's `mapping` only; opaque to the engine.

Treat it as immutable. Keep it short: every token holds one per partition. It nests at most 8 levels: write a
value that may nest deeper, for example a key, as text. A token nests at most 16 levels, and the engine makes
none that nests deeper.
"""
