"""Splits a query into tokens."""

from __future__ import annotations

import re
from typing import Any, Final

import attrs
import orjson

from multiclouddb_cosmos_emulator.errors import ServiceError, bad_request

__all__ = ["KEYWORDS", "Token", "query_error", "syntax_error", "tokens_of"]

_WORDS: Final = (
    "SELECT DISTINCT TOP VALUE AS FROM IN JOIN WHERE GROUP BY ORDER ASC DESC OFFSET LIMIT AND OR NOT "
    "BETWEEN LIKE EXISTS NULL TRUE FALSE UNDEFINED"
)
KEYWORDS: Final = frozenset(_WORDS.split())
_PATTERN: Final = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*)
  | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
  | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<parameter>@[A-Za-z_]\w*)
  | (?P<name>[^\W\d]\w*)
  | (?P<sign><=|>=|!=|<>|\?\?|\|\||>>>|<<|>>|[-+*/%=<>()\[\]{},.:?&|^~])
    """,
    re.VERBOSE,
)


@attrs.frozen
class Token:
    """A token of a query.

    Attributes:
        kind: One of `number`, `text`, `parameter`, `name`, `keyword`, `sign` or `end`.
        text: The text as written; keywords are in upper case.
        start: The index of the token's first character in the query.
        end: The index after the token's last character in the query.
        value: The value of a number or a text.
    """

    kind: str
    text: str
    start: int
    end: int
    value: Any = None


def syntax_error(near: str, start: int, end: int) -> ServiceError:
    """Return the error that the service sends if a text is not a valid query."""
    return query_error("SC1001", f"Syntax error, incorrect syntax near '{near}'.", start, end)


def query_error(code: str, message: str, start: int = 0, end: int = 0) -> ServiceError:
    """Return the error that the service sends for a query that cannot run."""
    location = {"start": start, "end": end}
    error = {"severity": "Error", "location": location, "code": code, "message": message}
    return bad_request(orjson.dumps({"errors": [error]}).decode())


def _unquoted(text: str) -> str:
    inner = text[1:-1]
    if text[0] == "'":
        inner = inner.replace("\\'", "'").replace('"', '\\"')
    try:
        return str(orjson.loads(f'"{inner}"'))
    except orjson.JSONDecodeError:
        return inner


def tokens_of(text: str) -> list[Token]:
    """Return all tokens of a query, followed by an end token."""
    found: list[Token] = []
    place = 0
    while place < len(text):
        match = _PATTERN.match(text, place)
        if match is None:
            raise syntax_error(text[place], place, place + 1)
        kind, word, start, place = str(match.lastgroup), match.group(), place, match.end()
        if kind == "space":
            continue
        value: Any = None
        if kind == "number":
            value = int(word) if word.isdigit() else float(word)
        elif kind == "text":
            value = _unquoted(word)
        # After a dot, a keyword is the name of a property.
        elif kind == "name" and word.upper() in KEYWORDS and not (found and found[-1].text == "."):
            kind, word = "keyword", word.upper()
        found.append(Token(kind, word, start, place, value))
    found.append(Token("end", "end of query", len(text), len(text)))
    return found
