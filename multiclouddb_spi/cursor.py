"""A position inside one partition."""

from __future__ import annotations

from typing import TypeAlias

from multiclouddb_api.codec import JsonValue

__all__ = ["Cursor"]

Cursor: TypeAlias = JsonValue
"""JSON that only one provider's `mapping` writes and reads; it is opaque to the engine.

Treat it as immutable. Keep it short, because every token contains one per partition. It nests at most 8
levels: write a value that may nest deeper, for example a key, as text. The engine makes no token that nests
deeper than 16 levels.
"""
