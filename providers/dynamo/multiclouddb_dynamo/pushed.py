"""Makes events of the batches that AWS Lambda passes to a function for a DynamoDB stream.

The form of such a batch is described on AWS' pages "Using AWS Lambda with Amazon DynamoDB" (an example event,
the fields of a time window, the answer for partial failures) and "Retain discarded records for a DynamoDB
event source" (the message of an on-failure destination). It differs from that of GetRecords: bytes are base64
text, times are numbers of seconds, and `userIdentity` begins its names with small letters. It says neither
which shard a record is from nor whether the table has replicas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from multiclouddb_api import ChangeEvent, ErrorCategory, MulticloudDbError, ResourceAddress, invalid_request
from multiclouddb_api.validators import check_type
from multiclouddb_dynamo.mapping import DynamoMapper, DynamoView, Record, order_key, seq_of
from multiclouddb_dynamo.values import with_halves_marked
from multiclouddb_spi import DAMAGED, Fault, RecordFault
from multiclouddb_spi.errors import to_error
from multiclouddb_spi.partition import encode_partition_id

_PROVIDER_ID: Final = "dynamo"  # the module errors imports the SDK, which is not needed here
_STREAM: Final = re.compile(r"arn:[^:]+:dynamodb:[^:]*:[^:]*:table/([^/]+)/stream/.+")
_SOURCE: Final = "aws:dynamodb"
_PASS_IT: Final = "pass the event that Lambda gave to the function, unchanged"
_MOST_NAMES: Final = 2


def events_from_lambda(event: Mapping[str, Any], key: str | Sequence[str]) -> list[ChangeEvent]:
    """Return the changes in a batch of AWS Lambda for the stream of a table, in the batch's order.

    Of the same record, a reader of this library makes an event with the same `event_id`, `key`, `type`,
    `timestamp`, `order_key`, `address`, `new_item_state` and `old_item_state`, if its request includes them,
    and if its address has the table's name, and not its ARN. Three things are different, because a batch says
    less than the stream:

    - `partition_id` names the stream, but no shard, except with a tumbling window.
    - `by_expiry` is None for a delete that names no identity. A reader asks whether the table has replicas.
    - A record without a time gets that of the record before it in the batch, or else 1970.

    A batch has no continuation token, is never idle and has no notices: Lambda keeps the position, and a
    batch doesn't show that records were trimmed, discarded after too many retries, or filtered by the event
    source mapping.

    Args:
        event: The first argument of the function. `Records` may be empty.
        key: The names of the key's attributes, with the partition key first: the batch has them in no order.

    Raises:
        MulticloudDbError: `PROVIDER_ERROR` if a record cannot be decoded. Then no event is returned, and it
            is right that the function fails: with BisectBatchOnFunctionError, Lambda finds the record, and
            its on-failure destination keeps it. `INVALID_REQUEST` if the batch is not of a DynamoDB stream,
            or if the table has another key.
    """
    check_type("key", key, str, list, tuple)
    for name in () if isinstance(key, str) else key:
        check_type("key", name, str)
    names = _names_in(key)
    records = _records_in(event)
    arn, table = _stream_of(records)
    if table is None:
        return []
    address = ResourceAddress(collection=table)
    shard = event.get("shardId")
    view = DynamoView(
        address,
        encode_partition_id(_PROVIDER_ID, address, arn, shard if isinstance(shard, str) else ""),
        shard if isinstance(shard, str) else "",
        names,
        with_old=True,
        replicated=True,  # nobody has asked whether it has replicas
    )
    records = with_halves_marked(records)
    for number, record in enumerate(records):
        _check(number, record, names)
    try:
        return DynamoMapper(view).events(records, 0, len(records))
    except RecordFault as fault:
        _refuse(str(fault), fault)


def batch_item_failures(
    event: Mapping[str, Any], failed: ChangeEvent | None = None
) -> dict[str, list[dict[str, str]]]:
    """Return the answer of a function whose event source mapping has ReportBatchItemFailures.

    Lambda passes the batch again, from the record of the failed event on. An answer of any other form would
    mean that the whole batch has succeeded, so a failure that cannot be reported is an error here.

    Args:
        event: The first argument of the function.
        failed: The first event whose handling has failed; None if none has.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the event is not of this batch.
    """
    check_type("failed", failed, ChangeEvent, type(None))
    records = _records_in(event)
    if failed is None:
        return {"batchItemFailures": []}
    for record in records:
        try:
            seq = seq_of(record)
        except DAMAGED:
            continue
        if order_key(seq) == failed.order_key:
            return {"batchItemFailures": [{"itemIdentifier": seq}]}
    raise invalid_request(
        "failed", "is not an event of this batch", "pass one that events_from_lambda has returned"
    )


def _names_in(key: str | Sequence[str]) -> tuple[str, ...]:
    names: tuple[Any, ...] = (key,) if isinstance(key, str) else tuple(key)
    is_right = 1 <= len(names) <= _MOST_NAMES and len({*names}) == len(names)
    if not is_right or not all(isinstance(name, str) and name for name in names):
        raise invalid_request(
            "key",
            "names no key of a table",
            'name the partition key, then the sort key, such as ("pk", "sk")',
        )
    return names


def _records_in(event: object) -> list[Any]:
    if isinstance(event, list):
        raise invalid_request(
            "event", "is a list, as a function of EventBridge Pipes gets it", 'pass {"Records": event}'
        )
    check_type("event", event, Mapping)
    assert isinstance(event, Mapping)
    records = event.get("Records")
    if isinstance(records, list):
        return records
    if "DDBStreamBatchInfo" in event:
        raise invalid_request(
            "event",
            "is the message of an on-failure destination, which has sequence numbers and no records",
            "read the shard that DDBStreamBatchInfo names within 24 hours; or let the destination be S3, and "
            'pass json.loads(message["payload"])',
        )
    raise invalid_request("event", "has no list Records", _PASS_IT)


def _stream_of(records: Sequence[Any]) -> tuple[str | None, str | None]:
    """Return the ARN of the stream and the name of its table; None if there is no record."""
    found = {
        (record.get("eventSource"), record.get("eventSourceARN"))
        if isinstance(record, Mapping)
        else (None, None)
        for record in records
    }
    if not found:
        return None, None
    if len(found) > 1:
        raise invalid_request("event", "has records of several streams", _PASS_IT)
    ((source, arn),) = found
    stream = _STREAM.fullmatch(arn) if source == _SOURCE and isinstance(arn, str) else None
    if stream is None:
        raise invalid_request(
            "event",
            f"has records of {source if isinstance(source, str) else 'an unknown source'}, and not of a "
            "stream of DynamoDB",
            "pass the event of a function whose event source is the stream of a table; in Kinesis Data "
            "Streams, changes have another form",
        )
    return arn, stream[1]


def _check(number: int, record: Record, names: tuple[str, ...]) -> None:
    """Refuse a record of a table with another key, and one that has no place in its stream."""
    try:
        seq_of(record)
        found = record["dynamodb"]["Keys"].keys()
    except DAMAGED as error:
        _refuse(f"Records[{number}] has no valid sequence number, or no keys", error)
    if found != {*names}:
        raise invalid_request(
            "key",
            f"is {', '.join(names)}, but the records have the key {', '.join(sorted(map(str, found)))}",
            "name the attributes of the table's key, with the partition key first",
        )


def _refuse(what: str, error: Exception) -> NoReturn:
    fault = Fault(
        ErrorCategory.PROVIDER_ERROR,
        f"{what}; nothing of the batch was returned, so let the function fail: with "
        "BisectBatchOnFunctionError and an on-failure destination on S3, Lambda sets this record aside",
    )
    refused: MulticloudDbError = to_error(_PROVIDER_ID, "events_from_lambda", fault, error)
    raise refused from None
