"""Defines size limits for a token's JSON, checked before it is parsed and before a token is returned.

A parser builds an object for each value, and a token of 84 kB can contain so many values that their objects
take gigabytes. Therefore, the values are counted first, with operations that run in C and do not build an
object for each byte.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_BYTES", "MAX_LEVELS", "MAX_VALUES", "beyond_bounds"]

MAX_BYTES: Final = 64 * 1024 * 1024
MAX_LEVELS: Final = 16
MAX_VALUES: Final = 2_000_000
"""The highest number of values; object keys count as values, and an empty list or object counts as two."""

_SQUARED: Final = bytes.maketrans(b"{}", b"[]")
_CONTENT: Final = bytes(set(range(256)) - set(b'[]{},:"'))
_MARKS: Final = b',:"'


def beyond_bounds(text: bytes) -> str | None:
    """Return the limit that a JSON text exceeds, or None.

    If the text is not JSON, the result applies to the part that a parser would read before it stops.

    Args:
        text: The JSON text in UTF-8, from this process or from any other source.
    """
    if len(text) > MAX_BYTES:
        return f"it has more than {MAX_BYTES >> 20} MiB of JSON"
    if len(text) < MAX_VALUES and text.count(b"[") + text.count(b"{") <= MAX_LEVELS:
        return None  # most tokens have too few bytes for many values, and few brackets
    structure = _structure(text)
    if structure is None or (len(structure) >= MAX_VALUES and _count(structure) >= MAX_VALUES):
        return f"it has more than {MAX_VALUES} values"
    if _is_deep(structure.translate(None, _MARKS)):
        return f"it nests deeper than {MAX_LEVELS} levels"
    return None


def _structure(text: bytes) -> bytes | None:
    """Return only the brackets, commas and colons outside strings, with braces replaced by brackets.

    Return None if the text contains too many strings.
    """
    if b"\\" in text:
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = text.translate(_SQUARED, _CONTENT)
    if marks.count(b'"') > 2 * MAX_VALUES:
        return None
    # Two adjacent quotes are an empty string, or the border between two strings. Removing them does not
    # change whether any other mark is inside or outside a string. After this, only the strings that contain
    # marks remain.
    parts = marks.replace(b'""', b"").split(b'"')
    return b"".join(parts[::2])


def _count(structure: bytes) -> int:
    """Count all values except the outermost: one for each opening bracket, comma and colon."""
    return sum(map(structure.count, (b"[", b",", b":")))


def _is_deep(brackets: bytes) -> bool:
    """Return whether the text is nested too deeply.

    Each pass of the loop removes the innermost pairs of brackets. Unpaired brackets are never
    removed.
    """
    for _ in range(MAX_LEVELS):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)
