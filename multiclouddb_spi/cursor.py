"""A position inside one partition."""

from __future__ import annotations

from typing import TypeAlias

from multiclouddb_api.codec import JsonValue

__all__ = ["Cursor"]

Cursor: TypeAlias = JsonValue
"""JSON, made and read by one provider's `mapping` only; opaque to the engine.

Treat it as immutable. Keep it short: it stands in every token, once a partition. It nests at most 8 levels:
write as text what may nest deeper, a key for example. A token nests at most 16, and none that nests deeper is
made.
"""
