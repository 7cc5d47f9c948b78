"""A position inside one partition."""

from __future__ import annotations

from typing import TypeAlias

from multiclouddb_api.codec import JsonValue

__all__ = ["Cursor"]

Cursor: TypeAlias = JsonValue
"""JSON, made and read by one provider's `mapping` only; opaque to the engine.

Treat it as immutable. Keep it short: it stands in every token, once a partition.
"""
