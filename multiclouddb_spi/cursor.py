"""Defines a position inside one partition."""

from __future__ import annotations

from typing import TypeAlias

from multiclouddb_api.codec import JsonValue

__all__ = ["Cursor"]

Cursor: TypeAlias = JsonValue
"""JSON that only the `mapping` module of the provider writes and reads; it is opaque to the engine.

Treat a cursor as immutable. Keep a cursor short, because every token contains one cursor per partition. A
cursor has at most 8 nested levels. If a value, for example a key, may have more levels, write it as text. The
engine never makes a token with more than 16 nested levels.
"""
