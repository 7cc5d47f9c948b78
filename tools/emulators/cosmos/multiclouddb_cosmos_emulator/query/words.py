"""Reads the text of a query token by token, for the parser."""

from __future__ import annotations

from typing import Final

from multiclouddb_cosmos_emulator.errors import ServiceError, not_offered
from multiclouddb_cosmos_emulator.query.tokens import Token, syntax_error, tokens_of

__all__ = ["Words"]

_NOT_OFFERED: Final = {
    **dict.fromkeys(("SELECT", "EXISTS"), "subqueries"),
    **{word: word for word in ("NOT", "BETWEEN", "LIKE", "JOIN")},
    "GROUP": "GROUP BY",
    **{sign: f"the operator {sign}" for sign in ("??", "?", "||", "|", "^", "&", "<<", ">>", ">>>", "~")},
}
"""The words of the service's queries that the emulator does not know, with what they are for."""


class Words:
    """Reads the tokens of a query one after another.

    Args:
        text: The query.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens_of(text)
        self._place = 0

    @property
    def next(self) -> Token:
        """Return the next token, but do not consume it."""
        return self._tokens[self._place]

    def take(self) -> Token:
        """Read the next token and return it."""
        token = self.next
        if token.kind != "end":
            self._place += 1
        return token

    def takes(self, *texts: str) -> bool:
        """If the given keywords or signs come next, read them and return True."""
        if not all(self._is(place, text) for place, text in enumerate(texts)):
            return False
        self._place += len(texts)
        return True

    def sees(self, *texts: str) -> bool:
        """Return True if one of the given keywords or signs comes next."""
        return any(self._is(0, text) for text in texts)

    def need(self, text: str) -> None:
        """Read the given keyword or sign; raise an error if a different token comes next."""
        if not self.takes(text):
            raise self.error()

    def name(self) -> str:
        """Read a name."""
        if self.next.kind != "name":
            raise self.error()
        return self.take().text

    def error(self) -> ServiceError:
        """Return the error for the position of the next token: 501 if the service may know what it begins."""
        token = self.next
        if token.kind in ("keyword", "sign") and token.text in _NOT_OFFERED:
            return not_offered(_NOT_OFFERED[token.text])
        return syntax_error(token.text, token.start, token.end)

    def since(self, token: Token) -> str:
        """Return the query's text from the given token to the last token that was read."""
        last = self._tokens[self._place - 1]
        return self._text[token.start : last.end]

    def _is(self, ahead: int, text: str) -> bool:
        place = self._place + ahead
        if place >= len(self._tokens):
            return False
        token = self._tokens[place]
        return token.kind in ("keyword", "sign") and token.text == text
