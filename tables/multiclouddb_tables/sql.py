"""Writes names and texts into SQL of Spark and of deltalake."""

from __future__ import annotations

__all__ = ["in_backticks", "quoted"]


def quoted(text: str) -> str:
    """Return a text for a SQL expression."""
    return "'" + text.replace("'", "''") + "'"


def in_backticks(name: str) -> str:
    """Return the name of a column for a SQL expression."""
    return "`" + name.replace("`", "``") + "`"
