"""Defines a position inside one partition."""

from __future__ import annotations

from typing import TypeAlias

from multiclouddb_api.codec import JsonValue

__all__ = ["Cursor"]

Cursor: TypeAlias = JsonValue
"""JSON that only the `mapping` module of one provider writes and reads; it is opaque to the engine.

Treat a cursor as immutable. Keep a cursor short, because every token contains one per partition. A cursor
nests at most 8 levels: if a value, for example a key, may nest deeper, write it as text. The engine never
makes a token with more than 16 levels.
"""
