"""Parses queries."""

from __future__ import annotations

from functools import lru_cache

from multiclouddb_cosmos_emulator.errors import not_offered
from multiclouddb_cosmos_emulator.query.expressions import expression
from multiclouddb_cosmos_emulator.query.tokens import query_error
from multiclouddb_cosmos_emulator.query.tree import (
    Column,
    Join,
    Literal,
    Node,
    Order,
    Parameter,
    Select,
    Source,
    name_of,
)
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
    source, joins, source_text = _source(words)
    where, where_text = None, ""
    if words.takes("WHERE"):
        first = words.next
        where = expression(words)
        where_text = words.since(first)
    group = _terms(words) if words.takes("GROUP", "BY") else ()
    order = _order(words) if words.takes("ORDER", "BY") else ()
    offset = limit = None
    if words.takes("OFFSET"):
        offset = _count(words)
        words.need("LIMIT")
        limit = _count(words)
    if words.next.kind != "end":
        raise words.error()
    select = Select(
        columns,
        value,
        distinct,
        top,
        source,
        source_text,
        joins,
        where,
        where_text,
        group,
        order,
        offset,
        limit,
    )
    return _checked(select)


def _checked(select: Select) -> Select:
    if select.columns is None and (select.source is None or select.joins):
        raise query_error("SC2040", "'SELECT *' is only valid with a single input set.")
    if select.columns is None and select.group:
        raise query_error("SC2102", "'SELECT *' is not valid with GROUP BY.")
    if select.top is not None and select.limit is not None:
        raise query_error("SC2202", "TOP and OFFSET LIMIT cannot be in the same query.")
    if select.group and select.order:
        raise query_error("SC2103", "'ORDER BY' is not valid in a query with 'GROUP BY'.")
    return select


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


def _source(words: Words) -> tuple[Source | None, tuple[Join, ...], str]:
    first = words.next
    if not words.takes("FROM"):
        return None, (), ""
    if words.takes("("):
        raise not_offered("subqueries")
    source = _first_source(words)
    joins: list[Join] = []
    while words.takes("JOIN"):
        if words.takes("("):
            raise not_offered("subqueries")
        alias = words.name()
        words.need("IN")
        joins.append(Join(alias, expression(words)))
    return source, tuple(joins), words.since(first)


def _first_source(words: Words) -> Source:
    name = words.name()
    if words.takes("IN"):
        return Source(name, expression(words))
    if words.sees(".", "["):
        raise not_offered("FROM with a path; use FROM alias IN path")
    if words.takes("AS") or words.next.kind == "name":
        return Source(words.name())
    return Source(name)


def _terms(words: Words) -> tuple[Node, ...]:
    found = [expression(words)]
    while words.takes(","):
        found.append(expression(words))
    return tuple(found)


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
