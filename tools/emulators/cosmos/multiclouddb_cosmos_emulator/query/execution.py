"""Runs a query over documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from multiclouddb_cosmos_emulator.query.comparing import canonical, sort_key
from multiclouddb_cosmos_emulator.query.evaluation import ROWS, Compiled, Compiler, Row
from multiclouddb_cosmos_emulator.query.pinning import equalities
from multiclouddb_cosmos_emulator.query.tokens import query_error
from multiclouddb_cosmos_emulator.query.tree import Node, Select
from multiclouddb_cosmos_emulator.values import UNDEFINED

__all__ = ["Execution"]


class Execution:
    """A query, together with its parameters.

    Args:
        select: The query.
        parameters: Maps the name of each parameter, including its `@`, to its value.

    Attributes:
        select: The query.
    """

    def __init__(self, select: Select, parameters: Mapping[str, Any]) -> None:
        self.select = select
        self._compiler = Compiler(parameters)
        self._where = None if select.where is None else self._compiler.compiled(select.where)
        self._order = [(self._compiler.compiled(each.node), each.descending) for each in select.order]
        self._columns = [(each.name, self._compiler.compiled(each.node)) for each in select.columns or ()]
        self._top = self._number(select.top)
        self._offset, self._limit = self._number(select.offset), self._number(select.limit)
        self._gathers = bool(select.aggregates)

    @property
    def streams(self) -> bool:
        """Return True if the results for each document do not depend on other documents."""
        select = self.select
        whole = self._gathers or select.distinct or select.order
        return not (whole or select.top is not None or select.limit is not None)

    @property
    def equalities(self) -> dict[tuple[str, ...], Any]:
        """Map a path to a value if the filter allows only this value at the path."""
        return equalities(self.select.where, self.select.alias, self._compiler.parameter)

    def results(self, documents: Iterable[Any]) -> Iterator[Any]:
        """Return the results of the query, in order."""
        rows: Iterable[Row] = self._rows(documents)
        if self._gathers:
            # The only row of an aggregate has no order.
            members = list(rows)
            rows = [{**(members[0] if members else {}), ROWS: members}]
        elif self._order:
            rows = self._sorted(rows)
        found = self._projected(rows)
        if self.select.distinct:
            found = _distinct(found)
        if self._top is not None:
            return islice(found, self._top)
        if self._limit is not None:
            start = self._offset or 0
            return islice(found, start, start + self._limit)
        return found

    def of(self, document: Any) -> list[Any]:
        """Return the results for one document.

        Call this method only if `streams` is True, because the results must not depend on other
        documents.
        """
        return list(self._projected(self._rows([document])))

    def allows(self, document: Any) -> bool:
        """Return True if the filter accepts a document."""
        return any(True for _ in self._rows([document]))

    # -- Rows

    def _rows(self, documents: Iterable[Any]) -> Iterator[Row]:
        for document in documents:
            row = {self.select.alias: document}
            if self._where is None or self._where(row) is True:
                yield row

    def _sorted(self, rows: Iterable[Row]) -> list[Row]:
        found = list(rows)
        # Sorting is stable, so the rows are sorted by the last term first.
        for term, descending in reversed(self._order):
            found.sort(key=_key(term), reverse=descending)
        return found

    # -- Results

    def _projected(self, rows: Iterable[Row]) -> Iterator[Any]:
        select = self.select
        for row in rows:
            if select.columns is None:
                yield row[select.alias]
            elif select.value:
                value = self._columns[0][1](row)
                if value is not UNDEFINED:
                    yield value
            else:
                fields = ((name, column(row)) for name, column in self._columns)
                yield {name: value for name, value in fields if value is not UNDEFINED}

    def _number(self, node: Node | None) -> int | None:
        if node is None:
            return None
        value = self._compiler.compiled(node)({})
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise query_error("SC2062", "TOP, OFFSET and LIMIT need a number that is not negative.")
        return value


def _key(term: Compiled) -> Callable[[Row], Any]:
    return lambda row: sort_key(term(row))


def _distinct(results: Iterable[Any]) -> Iterator[Any]:
    seen: set[bytes] = set()
    for result in results:
        key = canonical(result)
        if key not in seen:
            seen.add(key)
            yield result
