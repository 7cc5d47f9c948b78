"""Parses expressions."""

from __future__ import annotations

from typing import Final

from multiclouddb_cosmos_emulator.errors import not_offered
from multiclouddb_cosmos_emulator.query.tree import (
    ArrayOf,
    Binary,
    Function,
    In,
    Literal,
    Member,
    Name,
    Node,
    ObjectOf,
    Parameter,
)
from multiclouddb_cosmos_emulator.query.words import Words
from multiclouddb_cosmos_emulator.values import UNDEFINED

__all__ = ["expression"]

_CONSTANTS: Final = {"NULL": None, "TRUE": True, "FALSE": False, "UNDEFINED": UNDEFINED}
# The operators, from the weakest binding to the strongest. Comparisons are listed separately.
_LEVELS: Final = (("+", "-"), ("*", "/", "%"))
_COMPARISONS: Final = ("=", "!=", "<>", "<", "<=", ">", ">=")


def expression(words: Words) -> Node:
    """Parse an expression."""
    node = _all_of(words)
    while words.takes("OR"):
        node = Binary("OR", node, _all_of(words))
    return node


def _listed(words: Words, end: str) -> tuple[Node, ...]:
    """Parse expressions separated by commas, and read the sign at the end of the list."""
    found: list[Node] = []
    if words.takes(end):
        return ()
    while True:
        found.append(expression(words))
        if words.takes(end):
            return tuple(found)
        words.need(",")


def _all_of(words: Words) -> Node:
    node = _compared(words)
    while words.takes("AND"):
        node = Binary("AND", node, _compared(words))
    return node


def _compared(words: Words) -> Node:
    node = _level(words, 0)
    while True:
        if words.sees(*_COMPARISONS):
            sign = words.take().text
            node = Binary("!=" if sign == "<>" else sign, node, _level(words, 0))
        elif words.takes("IN"):
            node = _choices(words, node)
        else:
            return node


def _choices(words: Words, node: Node) -> Node:
    words.need("(")
    choices = _listed(words, ")")
    if not choices:
        raise words.error()
    return In(node, choices)


def _level(words: Words, level: int) -> Node:
    if level == len(_LEVELS):
        return Binary("-", Literal(0), _path(words)) if words.takes("-") else _path(words)
    node = _level(words, level + 1)
    while words.sees(*_LEVELS[level]):
        sign = words.take().text
        node = Binary(sign, node, _level(words, level + 1))
    return node


def _path(words: Words) -> Node:
    node = _primary(words)
    while True:
        if words.takes("."):
            node = Member(node, Literal(words.name()))
        elif words.takes("["):
            node = Member(node, expression(words))
            words.need("]")
        else:
            return node


def _primary(words: Words) -> Node:
    token = words.next
    if token.kind in ("number", "text"):
        return Literal(words.take().value)
    if token.kind == "parameter":
        return Parameter(words.take().text)
    if token.kind == "keyword" and token.text in _CONSTANTS:
        return Literal(_CONSTANTS[words.take().text])
    if token.kind == "name":
        return _named(words)
    if words.takes("("):
        node = expression(words)
        words.need(")")
        return node
    if words.takes("["):
        return ArrayOf(_listed(words, "]"))
    if words.takes("{"):
        return _object(words)
    raise words.error()


def _named(words: Words) -> Node:
    name = words.take().text
    if name.lower() == "udf" and words.sees("."):
        raise not_offered("user-defined functions")
    if not words.takes("("):
        return Name(name)
    return Function(name.upper(), _listed(words, ")"))


def _object(words: Words) -> Node:
    fields: list[tuple[str, Node]] = []
    if words.takes("}"):
        return ObjectOf(())
    while True:
        token = words.take()
        if token.kind not in ("text", "name", "keyword"):
            raise words.error()
        name = token.value if token.kind == "text" else token.text
        words.need(":")
        fields.append((str(name), expression(words)))
        if words.takes("}"):
            return ObjectOf(tuple(fields))
        words.need(",")
