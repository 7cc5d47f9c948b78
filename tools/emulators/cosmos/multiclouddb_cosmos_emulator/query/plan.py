"""Plans a query over several partitions: the work of the client, and the query for each partition."""

from __future__ import annotations

from typing import Any, Final

import attrs

from multiclouddb_cosmos_emulator.errors import bad_request
from multiclouddb_cosmos_emulator.keys import MAX_EPK, MIN_EPK
from multiclouddb_cosmos_emulator.query.evaluation import Compiler
from multiclouddb_cosmos_emulator.query.tree import Column, Function, Node, Select, name_of

__all__ = ["needs_plan", "plan_of"]

_KINDS: Final = {"COUNT": "Count", "SUM": "Sum", "AVG": "Average", "MIN": "Min", "MAX": "Max"}
_FILTER: Final = "{documentdb-formattableorderbyquery-filter}"


def needs_plan(select: Select) -> bool:
    """Return True if the client must merge the results from several partitions."""
    bounded = select.top is not None or select.limit is not None
    return bool(select.order or select.distinct or select.aggregates or bounded)


def plan_of(select: Select, compiler: Compiler) -> dict[str, Any]:
    """Return the plan, or raise a 400 error for a query that azure-cosmos cannot run."""
    if select.aggregates:
        # The only row of an aggregate has no order.
        select = attrs.evolve(select, order=())
    offset, limit = _number(select.offset, compiler), _number(select.limit, compiler)
    top = _number(select.top, compiler)
    distinct = "None"
    if select.distinct:
        distinct = "Ordered" if select.order else "Unordered"
    return {
        "partitionedQueryExecutionInfoVersion": 2,
        "queryInfo": {
            "distinctType": distinct,
            "top": top,
            "offset": offset,
            "limit": limit,
            "orderBy": ["Descending" if each.descending else "Ascending" for each in select.order],
            "orderByExpressions": [each.text for each in select.order],
            "groupByExpressions": [],
            "groupByAliases": [],
            "aggregates": [_KINDS[name] for name in select.aggregates],
            "groupByAliasToAggregateType": {},
            "rewrittenQuery": _rewritten(select, top, offset, limit),
            "hasSelectValue": select.value,
            "hasNonStreamingOrderBy": False,
        },
        "queryRanges": [{"min": MIN_EPK, "max": MAX_EPK, "isMinInclusive": True, "isMaxInclusive": False}],
    }


def _number(node: Node | None, compiler: Compiler) -> int | None:
    return None if node is None else int(compiler.compiled(node)({}))


def _rewritten(select: Select, top: int | None, offset: int | None, limit: int | None) -> str:
    head = "SELECT " if top is None or select.distinct else f"SELECT TOP {top} "
    tail = "" if limit is None or select.distinct else f" OFFSET 0 LIMIT {(offset or 0) + limit}"
    if select.order:
        return head + _ordered(select) + tail
    if select.aggregates:
        return f"SELECT VALUE {_partial(select)} {_rest(select)}"
    distinct = "DISTINCT " if select.distinct else ""
    value = "VALUE " if select.value else ""
    return f"{head}{distinct}{value}{_listed(select)} {_rest(select)}{tail}"


def _listed(select: Select) -> str:
    if select.columns is None:
        return "*"
    if select.value:
        return select.columns[0].text
    return ", ".join(_aliased(column) for column in select.columns)


def _aliased(column: Column) -> str:
    # The expression's own name could be a keyword, which is not allowed after AS.
    own = column.name.startswith("$") or column.name == name_of(column.node)
    return column.text if own else f"{column.text} AS {column.name}"


def _rest(select: Select) -> str:
    where = f" WHERE {select.where_text}" if select.where_text else ""
    return f"FROM {select.alias}{where}"


def _ordered(select: Select) -> str:
    """Return the query that returns each row with its sort values, so that the client can merge the rows."""
    alias, filters = select.alias, [f"({select.where_text})"] if select.where_text else []
    if select.columns is None:
        payload = alias
    elif select.value:
        payload = select.columns[0].text
        filters.append(f"IS_DEFINED({payload})")
    else:
        payload = "{" + ", ".join(f'"{each.name}": {each.text}' for each in select.columns) + "}"
    terms = ", ".join(f'{{"item": {each.text}}}' for each in select.order)
    order = ", ".join(f"{each.text} {'DESC' if each.descending else 'ASC'}" for each in select.order)
    where = " AND ".join([*filters, f"({_FILTER})"])
    return (
        f"{alias}._rid, [{terms}] AS orderByItems, {payload} AS payload FROM {alias} "
        f"WHERE {where} ORDER BY {order}"
    )


def _partial(select: Select) -> str:
    """Return the part of an aggregate that one partition computes."""
    parts = []
    for column in select.columns or ():
        node = column.node
        if isinstance(node, Function) and node.name == "AVG":
            inner = column.text.partition("(")[2].rpartition(")")[0]
            parts.append(f'{{"item": {{"sum": SUM({inner}), "count": COUNT({inner})}}}}')
        elif isinstance(node, Function) and node.name in _KINDS:
            parts.append(f'{{"item": {column.text}}}')
        else:
            raise bad_request(
                "If a query with aggregates reads several partitions, each selected value must be "
                "an aggregate function."
            )
    return f"[{', '.join(parts)}]"
