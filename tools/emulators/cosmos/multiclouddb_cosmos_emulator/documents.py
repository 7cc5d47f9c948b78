"""Answers requests about items: point operations, batches and the change feed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final

import orjson

from multiclouddb_cosmos_emulator.call import Call, charge
from multiclouddb_cosmos_emulator.container import Container
from multiclouddb_cosmos_emulator.errors import ServiceError, bad_request
from multiclouddb_cosmos_emulator.feed import FeedRequest, check_retention, read_feed
from multiclouddb_cosmos_emulator.message import Reply
from multiclouddb_cosmos_emulator.query import predicate
from multiclouddb_cosmos_emulator.reading import Reach, key_of, page_size
from multiclouddb_cosmos_emulator.session import check_session
from multiclouddb_cosmos_emulator.writes import LARGEST, Condition, Transaction

__all__ = ["DOCUMENT_CALLS"]

_MOST_OPERATIONS: Final = 100
_MERGED_TIMES: Final = 2
"""The bit of an SDK that can read merged partitions from a time."""
_ENABLE: Final = (
    "Change Feed 'All Versions and Deletes' mode must be enabled. Learn more about the prerequisites: "
    "https://aka.ms/cosmos-db/all-versions-and-deletes-change-feed"
)


def _transaction(call: Call) -> tuple[Container, Transaction]:
    container = call.container()
    key = key_of(call.request, container)
    if key is not None:
        container.partition_of(key.epk).check()
    return container, Transaction(container, key)


def _named(call: Call, container: Container, transaction: Transaction) -> str:
    """Return the id of the item that the path names. In a link of resource ids, its last part is one too."""
    name = call.route.last
    if call.route.container == container.rid:
        for item in container.logical.get(transaction.key.name, {}).values():
            if item.document["_rid"] == name:
                return item.item_id
    return name


def _read_item(call: Call) -> Reply:
    container, transaction = _transaction(call)
    partition = container.partition_of(transaction.key.epk)
    if token := call.request.headers.get("x-ms-session-token"):
        check_session(token, [partition])
    try:
        item = transaction.read(_named(call, container, transaction))
    except ServiceError as error:
        error.headers |= call.seen(Reply(404), container, [partition]).headers
        raise
    match = call.condition
    if match.none_match in ("*", item.etag):
        return call.seen(Reply(304, headers={"etag": item.etag}), container, [partition])
    Condition(match.match).check(item)
    return call.item(item, 200, container, partition)


def _check_size(call: Call) -> None:
    """Refuse a body that is too large as it was sent, whatever its characters would need in another form."""
    if len(call.request.body) > LARGEST:
        raise ServiceError(413, "Request size is too large")


def _create_item(call: Call) -> Reply:
    container, transaction = _transaction(call)
    _check_size(call)
    item = transaction.create(call.request.json())
    return call.item(item, 201, container, transaction.commit())


def _upsert_item(call: Call) -> Reply:
    container, transaction = _transaction(call)
    _check_size(call)
    item, created = transaction.upsert(call.request.json(), call.condition)
    return call.item(item, 201 if created else 200, container, transaction.commit())


def _replace_item(call: Call) -> Reply:
    container, transaction = _transaction(call)
    _check_size(call)
    item = transaction.replace(_named(call, container, transaction), call.request.json(), call.condition)
    return call.item(item, 200, container, transaction.commit())


def _allows(condition: Any) -> Callable[[dict[str, Any]], bool] | None:
    return None if condition is None else predicate(condition)


def _patch_item(call: Call) -> Reply:
    container, transaction = _transaction(call)
    body = call.request.json()
    if not isinstance(body, dict):
        raise bad_request("A patch has to be an object.")
    item = transaction.patch(
        _named(call, container, transaction),
        body.get("operations"),
        _allows(body.get("condition")),
        call.condition,
    )
    return call.item(item, 200, container, transaction.commit())


def _delete_item(call: Call) -> Reply:
    container, transaction = _transaction(call)
    transaction.delete(_named(call, container, transaction), call.condition)
    return call.seen(Reply(204, charge=5.29), container, [transaction.commit()])


def _delete_partition_key(call: Call) -> Reply:
    container, transaction = _transaction(call)
    for item_id in list(container.logical.get(transaction.key.name, {})):
        transaction.delete(item_id)
    return call.seen(Reply(200), container, [transaction.commit()])


# -- Batches


def _batch(call: Call) -> Reply:
    container, transaction = _transaction(call)
    operations = call.request.json()
    if not isinstance(operations, list):
        raise bad_request("A batch request has to be a list of operations.")
    if not operations:
        raise bad_request("Batch request has no operations.")
    if len(operations) > _MOST_OPERATIONS:
        raise bad_request("Batch request has more operations than what is supported.")
    _check_size(call)
    results: list[dict[str, Any]] = []
    for place, operation in enumerate(operations):
        try:
            results.append(_one(transaction, operation))
        except ServiceError as error:
            return _undone(call, container, transaction, error, place, len(operations))
    partition = transaction.commit()
    total = sum(result["requestCharge"] for result in results)
    return call.seen(Reply(200, orjson.dumps(results), charge=round(total, 2)), container, [partition])


def _one(transaction: Transaction, operation: Any) -> dict[str, Any]:
    if not isinstance(operation, dict):
        raise bad_request("An operation of a batch has to be an object.")
    condition = Condition(operation.get("ifMatch"), operation.get("ifNoneMatch"))
    body, item_id, status = operation.get("resourceBody"), operation.get("id"), 200
    match operation.get("operationType"):
        case "Create":
            item, status = transaction.create(body), 201
        case "Upsert":
            item, created = transaction.upsert(body, condition)
            status = 201 if created else 200
        case "Replace":
            item = transaction.replace(str(item_id), body, condition)
        case "Patch":
            fields = body if isinstance(body, dict) else {}
            allows = _allows(fields.get("condition"))
            item = transaction.patch(str(item_id), fields.get("operations"), allows, condition)
        case "Read":
            item = transaction.read(str(item_id))
        case "Delete":
            transaction.delete(str(item_id), condition)
            return {"statusCode": 204, "requestCharge": 5.29}
        case kind:
            raise bad_request(f"The operation {kind!r} is not known in a batch.")
    return {
        "statusCode": status,
        "requestCharge": charge(len(item.body), 5.29),
        "eTag": item.etag,
        "resourceBody": item.document,
    }


def _undone(
    call: Call, container: Container, transaction: Transaction, error: ServiceError, place: int, total: int
) -> Reply:
    """Return the answer to a batch that was not applied: status 207, and one result for each operation."""
    results: list[dict[str, Any]] = [{"statusCode": 424, "requestCharge": 0.0} for _ in range(total)]
    results[place]["statusCode"] = error.status
    if error.substatus:
        results[place]["subStatusCode"] = error.substatus
    partition = container.partition_of(transaction.key.epk)
    return call.seen(Reply(207, orjson.dumps(results), charge=1.0), container, [partition])


# -- The change feed


def _read_change_feed(call: Call) -> Reply:
    container, headers = call.container(), call.request.headers
    reach = Reach.of(call.request, container)
    if len(reach.partitions) != 1:
        raise bad_request("The change feed is read from one partition, which the request has to name.")
    (partition,) = reach.partitions
    all_versions = headers["a-im"] == "Full-Fidelity Feed"
    after, since = _position(headers.get("if-none-match")), _since(headers)
    if all_versions:
        _check_all_versions(call, container, headers.get("if-none-match"), since)
        partition.refuse_merged()
        before = container.clock.seconds() - call.account.retention(container)
        check_retention(partition, after, before)
    elif since is not None and partition.merged and not _capabilities(headers) & _MERGED_TIMES:
        # Azure/azure-sdk-for-java issue 48752, Azure/azure-sdk-for-go issue 26775
        raise bad_request("StartTime/IfModifiedSince is not currently supported with merged partitions.")
    low, high = reach.low, reach.high
    if reach.key is not None:
        low, high = max(low, reach.key.epk), min(high, reach.key.epk + "0")
    newest = partition.lsn_of_replica(call.request.lag)
    page = read_feed(
        container,
        FeedRequest(partition, newest, after, page_size(call.request), low, high, since, all_versions),
    )
    etag = {"etag": f'"{page.lsn}"', "x-ms-item-count": str(page.count)}
    if not page.count:
        return call.seen(Reply(304, headers=etag), container, [partition])
    body = b'{"_rid":"%s","Documents":[%s],"_count":%d}' % (container.rid.encode(), page.text, page.count)
    return call.seen(Reply(200, body, etag, charge(len(body), 1.0)), container, [partition])


def _capabilities(headers: Any) -> int:
    """Return the bits of what the client's SDK supports."""
    text = headers.get("x-ms-cosmos-sdk-supportedcapabilities", "0")
    return int(text) if text.isdecimal() else 0


def _position(text: str | None) -> int | None:
    """Return the LSN in a request's position, or None for the current time.

    The feed returns only changes with a higher LSN.
    """
    if text is None:
        return 0
    if text == "*":
        return None
    try:
        return int(text.strip('"'))
    except ValueError:
        raise bad_request(f"The continuation {text!r} is not an LSN.") from None


def _since(headers: Any) -> int | None:
    text = headers.get("if-modified-since")
    if text is None:
        return None
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        raise bad_request(f"If-Modified-Since {text!r} is no date.") from None
    return int(when.replace(tzinfo=when.tzinfo or UTC).timestamp())


def _check_all_versions(call: Call, container: Container, match: str | None, since: int | None) -> None:
    if not call.account.all_versions:
        raise bad_request(_ENABLE)
    if match is None or since is not None:
        raise bad_request(
            "Change Feed 'All Versions and Deletes' mode can start from now or from a continuation only."
        )


DOCUMENT_CALLS: Final = {
    "ReadItem": _read_item,
    "CreateItem": _create_item,
    "UpsertItem": _upsert_item,
    "ReplaceItem": _replace_item,
    "PatchItem": _patch_item,
    "DeleteItem": _delete_item,
    "DeletePartitionKey": _delete_partition_key,
    "Batch": _batch,
    "ReadChangeFeed": _read_change_feed,
}
"""Maps each operation to the function that answers it."""
