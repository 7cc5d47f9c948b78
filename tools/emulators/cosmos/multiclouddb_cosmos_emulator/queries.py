"""Answers queries over items, and requests for lists of items."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any, Final

import orjson

from multiclouddb_cosmos_emulator.call import Call, charge
from multiclouddb_cosmos_emulator.container import Container
from multiclouddb_cosmos_emulator.errors import bad_request
from multiclouddb_cosmos_emulator.message import Reply
from multiclouddb_cosmos_emulator.partition import Item
from multiclouddb_cosmos_emulator.query import Execution, compiled, needs_plan, query_plan
from multiclouddb_cosmos_emulator.reading import Reach, page_size

__all__ = ["QUERY_CALLS"]

_PAGE_BYTES: Final = 4 * 1024 * 1024
_NOT_SERVABLE: Final = (
    "The provided cross partition query can not be directly served by the gateway. This is a first chance "
    "(internal) exception that all newer clients will know how to handle gracefully."
)
_DISABLED: Final = (
    "Cross partition query is required but disabled. Please set "
    "x-ms-documentdb-query-enablecrosspartition to true, specify x-ms-documentdb-partitionkey, "
    "or revise your query to avoid this exception."
)


def _query_items(call: Call) -> Reply:
    container, body = call.container(), call.request.json()
    query = compiled(body)
    reach = Reach.of(call.request, container).pinned(container, query.equalities)
    if reach.key is None and not reach.named:
        if not call.request.flag("x-ms-documentdb-query-enablecrosspartition"):
            raise bad_request(_DISABLED)
        if needs_plan(query.select):
            raise bad_request(_NOT_SERVABLE, 1004)
    if query.streams:
        return _streamed(call, container, reach, query.of)
    return _counted(call, container, reach, query)


def _list_items(call: Call) -> Reply:
    container = call.container()
    return _streamed(call, container, Reach.of(call.request, container), lambda document: [document])


def _read_query_plan(call: Call) -> Reply:
    call.container()
    return Reply.of(query_plan(call.request.json()))


# -- Pages


def _visible(reach: Reach) -> Iterator[tuple[str, Item]]:
    """Return the items in the order of a scan, each with the lower bound of its partition."""
    for partition in reach.partitions:
        for item in partition.items.values():
            if reach.covers(item.key):
                yield partition.low, item


def _streamed(
    call: Call, container: Container, reach: Reach, results_of: Callable[[Any], list[Any]]
) -> Reply:
    """Return a page, with a continuation that names the last item that was read for the page."""
    after = _continuation(call, "s", list)
    found: list[bytes] = []
    size, limit, last = 0, page_size(call.request), after
    more = False
    for low, item in _visible(reach):
        place = [low, item.number]
        if after is not None and place <= after:
            continue
        results = results_of(item.document)
        if results and (len(found) >= limit or size >= _PAGE_BYTES):
            more = True
            break
        for result in results:
            found.append(item.body if result is item.document else orjson.dumps(result))
            size += len(found[-1])
        last = place
    return _page(call, container, reach, found, {"s": last} if more else None)


def _counted(call: Call, container: Container, reach: Reach, query: Execution) -> Reply:
    """Compute all results of a query, and return one page of the results.

    The continuation is the number of results returned so far.
    """
    done = _continuation(call, "n", int) or 0
    limit = page_size(call.request)
    results = list(query.results(item.document for _, item in _visible(reach)))
    found = [orjson.dumps(result) for result in results[done : done + limit]]
    more = done + limit < len(results)
    return _page(call, container, reach, found, {"n": done + limit} if more else None)


def _continuation(call: Call, field: str, kind: type) -> Any:
    text = call.request.headers.get("x-ms-continuation")
    if text is None:
        return None
    try:
        found = orjson.loads(base64.b64decode(text, validate=True))[field]
    except (ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, kind):
        raise bad_request("The continuation token belongs to another query.")
    return found


def _page(
    call: Call, container: Container, reach: Reach, found: list[bytes], more: dict[str, Any] | None
) -> Reply:
    body = b'{"_rid":"%s","Documents":[%s],"_count":%d}' % (
        container.rid.encode(),
        b",".join(found),
        len(found),
    )
    reply = Reply(200, body, {"x-ms-item-count": str(len(found))}, charge(len(body), 2.28))
    if more is not None:
        reply.headers["x-ms-continuation"] = base64.b64encode(orjson.dumps(more)).decode()
    if call.request.flag("x-ms-documentdb-populatequerymetrics"):
        there = sum(len(partition.items) for partition in reach.partitions)
        reply.headers["x-ms-documentdb-query-metrics"] = (
            f"totalExecutionTimeInMs=0.00;retrievedDocumentCount={there};outputDocumentCount={len(found)};"
            f"outputDocumentSize={len(body)}"
        )
    return call.seen(reply, container, reach.partitions)


QUERY_CALLS: Final = {
    "QueryItems": _query_items,
    "ListItems": _list_items,
    "ReadQueryPlan": _read_query_plan,
}
"""Maps each operation to the function that answers it."""
