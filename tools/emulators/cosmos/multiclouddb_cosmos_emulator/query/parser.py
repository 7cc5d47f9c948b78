"""Parses queries."""

from __future__ import annotations

from functools import lru_cache

from multiclouddb_cosmos_emulator.errors import not_offered
from multiclouddb_cosmos_emulator.query.expressions import expression
from multiclouddb_cosmos_emulator.query.tokens import query_error
from multiclouddb_cosmos_emulator.query.tree import Column, Literal, Node, Order, Parameter, Select, name_of
from multiclouddb_cosmos_emulator.query.words import Words

__all__ = ["parse"]


@lru_cache(maxsize=1_000)
def parse(text: str) -> Select:
    """Parse a query into a tree. If the text is not a query, raise the service's 400 error."""
    words = Words(text)
    words.need("SELECT")
    distinct = words.takes("DISTINCT")
    top = _count(words) if words.takes("TOP") else None
    value = words.takes("VALUE")
    columns = _columns(words, value)
    alias = _alias(words)
    where, where_text = None, ""
    if words.takes("WHERE"):
        first = words.next
        where = expression(words)
        where_text = words.since(first)
    order = _order(words) if words.takes("ORDER", "BY") else ()
    offset = limit = None
    if words.takes("OFFSET"):
        offset = _count(words)
        words.need("LIMIT")
        limit = _count(words)
    if words.next.kind != "end":
        raise words.error()
    if top is not None and limit is not None:
        raise query_error("SC2202", "TOP and OFFSET LIMIT cannot be in the same query.")
    return Select(columns, value, distinct, top, alias, where, where_text, order, offset, limit)


def _count(words: Words) -> Node:
    token = words.next
    if token.kind == "parameter":
        return Parameter(words.take().text)
    if token.kind == "number" and isinstance(token.value, int):
        return Literal(words.take().value)
    raise words.error()


def _columns(words: Words, value: bool) -> tuple[Column, ...] | None:
    if not value and words.takes("*"):
        return None
    found: list[Column] = []
    unnamed = 0
    while True:
        first = words.next
        node = expression(words)
        text = words.since(first)
        name = name_of(node)
        if words.takes("AS") or (words.next.kind == "name" and not value):
            name = words.name()
        if name is None:
            unnamed += 1
            name = f"${unnamed}"
        found.append(Column(node, name, text))
        if value or not words.takes(","):
            return tuple(found)


def _alias(words: Words) -> str:
    if words.next.kind == "end":
        raise not_offered("a query without FROM")
    words.need("FROM")
    if words.sees("("):
        raise not_offered("subqueries")
    name = words.name()
    if words.sees("IN", ".", "["):
        raise not_offered("FROM with a path")
    return words.name() if words.takes("AS") or words.next.kind == "name" else name


def _order(words: Words) -> tuple[Order, ...]:
    found: list[Order] = []
    while True:
        first = words.next
        if first.kind == "name" and first.text.upper() == "RANK":
            raise not_offered("ORDER BY RANK")
        node = expression(words)
        text = words.since(first)
        descending = words.takes("DESC")
        if not descending:
            words.takes("ASC")
        found.append(Order(node, descending, text))
        if not words.takes(","):
            return tuple(found)
