"""Makes events of the documents that Azure Functions passes to a function with a trigger of Cosmos DB.

The trigger's page, "Azure Cosmos DB trigger for Azure Functions", describes the binding; `azure.functions`
calls `_etag`, `_lsn`, `_rid`, `_self` and `_ts` the system keys of its `Document`. The trigger's extension
parses each document with Newtonsoft's JSON, which rewrites texts that look like times, unless host.json says
otherwise (Azure/azure-webjobs-sdk-extensions issue 898 and pull request 923), and keeps one of two properties
of one name. In the mode of all versions (its pull requests 972 and 1000), it passes `ChangeFeedItem`s, in
which a create has a `previousImageLSN` of 0 and an `id` of null in place of none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from multiclouddb_api import ChangeEvent, ErrorCategory, ResourceAddress, invalid_request
from multiclouddb_api.validators import check_type
from multiclouddb_cosmos.config import check_marker, names_in
from multiclouddb_cosmos.mapping import CosmosMapper
from multiclouddb_cosmos.records import (
    LSN,
    UPSERT,
    CosmosView,
    Records,
    bared,
    lsn_of,
    with_halves_marked,
)
from multiclouddb_spi import Fault, RecordFault
from multiclouddb_spi.errors import to_error
from multiclouddb_spi.partition import encode_partition_id

_PROVIDER_ID: Final = "cosmos"  # the module errors imports the SDK, which is not needed here
_LINK: Final = 4  # in `dbs/DATABASE/colls/CONTAINER/docs/DOCUMENT/`, all as resource ids


def events_from_function(
    documents: Iterable[Mapping[str, Any]],
    container: ResourceAddress | str,
    key: str | Sequence[str],
    *,
    delete_marker: str | None = None,
) -> list[ChangeEvent]:
    """Return the changes in a batch of Azure Functions' trigger for Cosmos DB, in the batch's order.

    Of the same version of an item, a reader with `CosmosOptions(mode="latest")` makes an event with the same
    `event_id`, `key`, `type`, `timestamp`, `order_key`, `by_expiry` and `address`, and with the same states.
    Two things are different:

    - `partition_id` names the container, but no range.
    - The trigger rewrites texts that look like times, such as `2023-07-04T12:00:00+00:00`, also in a key,
      unless host.json has `{"extensions": {"cosmosDB": {"serializerSettings": {"dateParseHandling":
      "None"}}}}`. It drops an item's own property `_lsn`.

    A batch has no continuation token, is never idle and has no notices: the trigger keeps the position in its
    lease container. If the function raises, the trigger goes on after the batch, unless the function has
    a retry policy: handle a failure inside, or add one.

    Args:
        documents: The argument of the function, such as `azure.functions.DocumentList`.
        container: The container, as `"DATABASE/CONTAINER"`: a document doesn't name it.
        key: The path of the partition key, such as `/tenant`; the paths of a hierarchical one, in order.
        delete_marker: As in `CosmosOptions`.

    Raises:
        MulticloudDbError: `PROVIDER_ERROR` if a document cannot be decoded, for example because it lacks
            `_lsn`; then no event is returned. `INVALID_REQUEST` if an argument is no path, if the documents
            are of several containers, or if they are changes of the trigger's mode of all versions.
    """
    items = _items_in(documents)
    check_type("container", container, ResourceAddress, str)
    check_type("key", key, str, list, tuple)
    for path in () if isinstance(key, str) else key:
        check_type("key", path, str)
    check_type("delete_marker", delete_marker, str, type(None))
    address = ResourceAddress.parse(container) if isinstance(container, str) else container
    if address.database is None or address.collection is None:
        raise invalid_request("container", "names no container", 'write it as "DATABASE/CONTAINER"')
    paths = _paths_in(key)
    if delete_marker is not None:
        check_marker("delete_marker", delete_marker, "latest")
    if not items:
        return []
    for number, item in enumerate(items):
        _check(number, item)
    view = CosmosView(
        address,
        encode_partition_id(_PROVIDER_ID, address, _container_of(items), ""),
        paths,
        usual=UPSERT,
        marker=names_in(delete_marker or ""),
    )
    lsns = [lsn_of(item, bare=True) or 0 for item in items]
    records = bared(Records(with_halves_marked(items), lsns), view)
    try:
        return CosmosMapper(view).events(records, 0, len(records))
    except RecordFault as fault:
        _refuse(str(fault), fault)


def _items_in(documents: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the documents as dictionaries of their own."""
    check_type("documents", documents, Iterable)
    items = []
    for each in documents:
        check_type("documents", each, Mapping)
        items.append(dict(each))
    return items


def _paths_in(key: str | Sequence[Any]) -> tuple[tuple[str, ...], ...]:
    written = (key,) if isinstance(key, str) else key
    paths = tuple(names_in(path) if isinstance(path, str) else () for path in written)
    if not paths or () in paths:
        raise invalid_request(
            "key", "is no path of a partition key", "write it as the container has it, such as /tenant"
        )
    return paths


def _check(number: int, item: Any) -> None:
    if LSN in item and lsn_of(item, bare=True) is not None:
        return
    metadata = item.get("metadata")
    if isinstance(metadata, Mapping) and {"lsn", "operationType"} <= metadata.keys():
        raise invalid_request(
            "documents",
            "are changes of the trigger's mode of all versions, which are not mapped",
            "let the trigger read latest versions, or read all versions with read_changes",
        )
    _refuse(f"documents[{number}] has no _lsn, so its place among the changes of its key is not known", None)


def _container_of(items: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the container's resource id, which is in the link of each document; None without a link."""
    found = {_container_in(item.get("_self")) for item in items}
    if len(found) > 1:
        raise invalid_request(
            "documents", "are of several containers", "pass the documents of one call unchanged"
        )
    return found.pop()


def _container_in(link: Any) -> str | None:
    parts = link.strip("/").split("/") if isinstance(link, str) else []
    return parts[_LINK - 1] if len(parts) > _LINK and parts[_LINK - 2] == "colls" else None


def _refuse(what: str, error: Exception | None) -> NoReturn:
    fault = Fault(
        ErrorCategory.PROVIDER_ERROR,
        f"{what}; nothing of the batch was returned: let the function fail, with a retry policy, or store "
        "the documents elsewhere",
    )
    raise to_error(_PROVIDER_ID, "events_from_function", fault, error) from None
