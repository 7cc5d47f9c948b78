"""Reads where a micro-batch ends from Spark's offset log.

A file of the log has a line with its format, a line of metadata, and a line for each source of the query. In
format 1 such a line is the offset of the source; in format 2 it is `name:offset`. A source without an offset
has `-` in its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import attrs

_FORMATS: Final = ("v1", "v2")


@attrs.frozen
class LoggedEnd:
    """The end of a micro-batch.

    Attributes:
        offsets: The offsets of this Spark source, at least one.
        sources: How many sources the query reads.
    """

    offsets: tuple[dict[str, Any], ...]
    sources: int


def logged_end(text: str) -> LoggedEnd:
    """Return what a file of the offset log says.

    Args:
        text: The text of the file.

    Raises:
        ValueError: The file contains no offset of this source, or has another format. This does not say that
            the query has no snapshot, loses nothing or has delivered nothing: it is not known. The text
            continues a sentence whose subject is the file.
    """
    form, *rest = text.split("\n")
    if form not in _FORMATS:
        problem = f"has the format {form[:20]!r}, but this version can read only {' and '.join(_FORMATS)}"
        raise ValueError(problem)
    lines = [line for line in rest[1:] if line]
    if form != "v1":
        lines = [line.partition(":")[2] for line in lines]
    offsets = tuple(offset for line in lines for offset in _offsets_in(line))
    if not offsets:
        raise ValueError("contains no offset of a multiclouddb source")
    return LoggedEnd(offsets, len(lines))


def _offsets_in(line: str) -> Iterator[dict[str, Any]]:
    """Return the offsets in a line; the offset of another source may contain one of this source."""
    try:
        value = json.loads(line)
    except ValueError:
        return
    if not isinstance(value, dict):
        return
    # An offset contains what a token does.
    if isinstance(value.get("src"), str) and isinstance(value.get("v"), int):
        yield value
        return
    for part in value.values():
        yield from _offsets_in(part if isinstance(part, str) else json.dumps(part))
