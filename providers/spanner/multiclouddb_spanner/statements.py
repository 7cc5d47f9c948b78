"""Makes the DDL statements that messages contain. The functions are pure."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["how_to_alter", "how_to_create", "how_to_watch", "quoted"]

_WHOLE_ROWS: Final = "(value_capture_type = 'NEW_ROW_AND_OLD_VALUES')"
_UNQUOTED: Final = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)


def quoted(name: str, *, postgres: bool) -> str:
    """Return a name in the form for a statement."""
    if not postgres:
        return name
    return ".".join(part if _UNQUOTED.fullmatch(part) else f'"{part}"' for part in name.split("."))


def how_to_create(table: str, *, postgres: bool) -> str:
    """Return the statement that creates a change stream of a table."""
    stream = quoted(f"{table.rpartition('.')[2]}_stream", postgres=postgres)
    word = "WITH" if postgres else "OPTIONS"
    return f"CREATE CHANGE STREAM {stream} FOR {quoted(table, postgres=postgres)} {word} {_WHOLE_ROWS}"


def how_to_alter(stream: str, *, postgres: bool) -> str:
    """Return the statement that makes a change stream record whole rows."""
    word = "SET" if postgres else "SET OPTIONS"
    return f"ALTER CHANGE STREAM {quoted(stream, postgres=postgres)} {word} {_WHOLE_ROWS}"


def how_to_watch(stream: str, table: str, *, postgres: bool) -> str:
    """Return the statement that makes a change stream watch all columns of a table."""
    return (
        f"ALTER CHANGE STREAM {quoted(stream, postgres=postgres)} SET FOR {quoted(table, postgres=postgres)}"
    )
