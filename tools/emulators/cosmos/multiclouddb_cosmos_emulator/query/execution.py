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
        self._group = [self._compiler.compiled(node) for node in select.group]
        self._order = [(self._compiler.compiled(each.node), each.descending) for each in select.order]
        self._columns = [(each.name, self._compiler.compiled(each.node)) for each in select.columns or ()]
        self._joins = [(each.alias, self._compiler.compiled(each.path)) for each in select.joins]
        self._top = self._number(select.top)
        self._offset, self._limit = self._number(select.offset), self._number(select.limit)
        self._grouped = bool(select.group or select.aggregates)
        self._source_path = None
        if select.source is not None and select.source.path is not None:
            self._source_path = self._compiler.compiled(select.source.path)

    @property
    def streams(self) -> bool:
        """Return True if the results for each document do not depend on other documents."""
        select = self.select
        whole = self._grouped or select.distinct or select.order or select.joins or select.source is None
        return not (whole or select.top is not None or select.limit is not None)

    @property
    def equalities(self) -> dict[tuple[str, ...], Any]:
        """Map a path to a value if the filter allows only this value at the path."""
        source = self.select.source
        if source is None or source.path is not None:
            return {}
        return equalities(self.select.where, source.alias, self._compiler.parameter)

    def results(self, documents: Iterable[Any]) -> Iterator[Any]:
        """Return the results of the query, in order."""
        rows: Iterable[Row] = self._rows(documents)
        if self._grouped:
            rows = self._groups(rows)
        if self._order and (self._group or not self._grouped):
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
        if self.select.source is None:
            # Without a FROM there is exactly one row, however many documents exist.
            yield from self._kept({})
            return
        alias, path = self.select.source.alias, self._source_path
        for document in documents:
            if path is None:
                yield from self._kept({alias: document})
                continue
            root = {"c": document, "root": document, **_names(self.select.source.path, document)}
            for element in _elements(path(root)):
                yield from self._kept({alias: element})

    def _kept(self, row: dict[str, Any]) -> Iterator[Row]:
        for joined in self._joined(row, 0):
            if self._where is None or self._where(joined) is True:
                yield joined

    def _joined(self, row: dict[str, Any], place: int) -> Iterator[dict[str, Any]]:
        if place == len(self._joins):
            yield row
            return
        alias, path = self._joins[place]
        for element in _elements(path(row)):
            yield from self._joined({**row, alias: element}, place + 1)

    def _groups(self, rows: Iterable[Row]) -> Iterator[Row]:
        groups: dict[bytes, list[Row]] = {} if self._group else {b"": []}
        for row in rows:
            # The values are put in a list, so that undefined and null form different groups.
            key = canonical([[] if (v := term(row)) is UNDEFINED else [v] for term in self._group])
            groups.setdefault(key if self._group else b"", []).append(row)
        for members in groups.values():
            yield {**(members[0] if members else {}), ROWS: members}

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
                assert select.source is not None
                yield row[select.source.alias]
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


def _names(path: Node | None, document: Any) -> dict[str, Any]:
    """Map the first name in a path to the document.

    Therefore a path may begin with any alias of the document. The result is empty if the path has
    no name.
    """
    node: Any = path
    while hasattr(node, "base"):
        node = node.base
    return {node.name: document} if hasattr(node, "name") else {}


def _elements(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _distinct(results: Iterable[Any]) -> Iterator[Any]:
    seen: set[bytes] = set()
    for result in results:
        key = canonical(result)
        if key not in seen:
            seen.add(key)
            yield result
