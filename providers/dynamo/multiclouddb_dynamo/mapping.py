"""Maps stream records to events and to Arrow. The functions are pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any, Final, TypeAlias

import attrs
import orjson
from attrs import frozen

from multiclouddb_api import ChangeType
from multiclouddb_api.key import MulticloudDbKey, trusted_keys
from multiclouddb_dynamo.position import MOST_SECONDS, After, Place, cursor_of, is_seq, known_at
from multiclouddb_dynamo.values import decode_map, json_key, json_map, key_value
from multiclouddb_spi import ColumnMapper, Columns, Cursor, RecordFault, reason_of
from multiclouddb_spi import View as CommonView

Record: TypeAlias = Mapping[str, Any]

_TYPES: Final = {"INSERT": ChangeType.CREATE, "MODIFY": ChangeType.UPDATE, "REMOVE": ChangeType.DELETE}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# The service's own ids have 32 hexadecimal digits, and those of DynamoDB Local are UUIDs.
_ID_LENGTHS: Final = frozenset({32, 36})
_MOST_ID: Final = 64  # in a position
_LENGTHS: Final = tuple(f"{length:02}" for length in range(100))


@frozen
class DynamoView(CommonView):
    """What all events of one shard share."""

    shard_id: str
    key_names: tuple[str, ...]
    replicated: bool = False  # true if the table has replicas in other regions


def seq_of(record: Record) -> str:
    """Return the sequence number of a record."""
    seq = record["dynamodb"]["SequenceNumber"]
    if not is_seq(seq):
        raise ValueError("its sequence number is not valid")
    return str(seq)


def seconds_of(record: Record) -> float | None:
    """Return the time of a record in seconds since 1970, or None if the record has no valid time."""
    moment = record["dynamodb"].get("ApproximateCreationDateTime")
    if isinstance(moment, datetime):
        return moment.timestamp()
    seconds = in_seconds(moment) if isinstance(moment, int | float) else -1
    return seconds if 0 <= seconds <= MOST_SECONDS else None


def in_seconds(number: float) -> float:
    """Return a time in seconds since 1970 that may be in milliseconds or microseconds.

    AWS has both for the same member in a Kinesis data stream, and some servers send milliseconds. None of
    them can be taken for seconds: in milliseconds, the year 9999 of seconds is 1978.
    """
    for _ in range(2):
        if number > MOST_SECONDS:
            number /= 1000
    return number


def time_at(records: Sequence[Record], count: int, known: int | None) -> int | None:
    """Return the time of the last of `count` records that has one, else the time that was known before."""
    for index in range(count - 1, -1, -1):
        seconds = seconds_of(records[index])
        if seconds is not None:
            return int(seconds)
    return known


def order_key(seq: str) -> str:
    """Return a text that sorts like the number: the number of its digits, followed by the digits."""
    digits = seq.lstrip("0") or "0"  # not the floor of a snapshot
    return _LENGTHS[len(digits)] + digits


def _event_ids(records: Sequence[Record], datas: Sequence[Record], view: DynamoView) -> list[str]:
    ids: list[str] = [record.get("eventID") or "" for record in records]
    if _ID_LENGTHS.issuperset(map(len, ids)):
        return ids
    # A shorter id, as LocalStack's of 8 digits, or one that is made of something else, as Alternator's, can
    # be that of several records.
    return [
        given
        if len(given) in _ID_LENGTHS
        else ":".join(filter(None, (view.shard_id, data["SequenceNumber"], given)))
        for given, data in zip(ids, datas, strict=True)
    ]


def _keys(datas: Sequence[Record], names: tuple[str, ...]) -> list[dict[str, Any]]:
    if len(names) == 1:
        (name,) = names
        return [{name: key_value(data["Keys"][name])} for data in datas]
    return [{name: key_value(data["Keys"][name]) for name in names} for data in datas]


def _times(datas: Sequence[Record], known: int | None) -> list[datetime]:
    """Return the times of the records; successive records with the same time share one datetime object.

    A record without a time gets the time of the record before it in the shard.
    """
    previous, moment, moments = None, _EPOCH + timedelta(seconds=known or 0), []
    for data in datas:
        value = data.get("ApproximateCreationDateTime")
        if value is None:  # whole seconds, as a token keeps them
            previous, moment = None, moment.replace(microsecond=0)
        elif value != previous:
            previous = value
            moment = (
                value.astimezone(UTC)
                if isinstance(value, datetime)
                else _EPOCH + timedelta(seconds=in_seconds(value))
            )
        moments.append(moment)
    return moments


def _items(datas: Sequence[Record], name: str, decoded: Callable[[Any], Any]) -> list[Any]:
    # An empty image is none, because every item has at least its key; some servers send one for no image.
    return [decoded(data[name]) if data.get(name) else None for data in datas]


def _expiries(records: Sequence[Record], types: Sequence[ChangeType], view: DynamoView) -> list[bool | None]:
    # The deletes of time to live are replicated (TTL.html in the service's developer guide), and nothing
    # promises that the record of a replicated one names the service too.
    return [
        _by_expiry(record, view) if kind is ChangeType.DELETE else False
        for record, kind in zip(records, types, strict=True)
    ]


def _by_expiry(record: Record, view: DynamoView) -> bool | None:
    if _is_named(record):
        return _by_service(record["userIdentity"])
    # DescribeTable does not show that a table is a global one of 2017, but its items have this attribute.
    is_old_replica = "aws:rep:updateregion" in (record["dynamodb"].get("OldImage") or ())
    return None if view.replicated or is_old_replica else False


def _is_named(record: Record) -> bool:
    return record.get("userIdentity") is not None


def is_unnamed_delete(record: Record) -> bool:
    """Return True for a delete that does not say who made it."""
    return record.get("eventName") == "REMOVE" and not _is_named(record)


def _by_service(identity: Any) -> bool | None:
    """Return True for the identity that DynamoDB records if time-to-live has deleted an item.

    Return None for another service, which may have replicated an expiry, and for an identity that does not
    name its type. botocore's parser makes such a one, `{}`, if the server names the members otherwise.
    """
    fields = {name.lower(): value for name, value in identity.items()}
    kind = fields.get("type")
    if kind != "Service":
        return None if kind is None else False
    return True if fields.get("principalid") == "dynamodb.amazonaws.com" else None


def json_text(attributes: Mapping[str, Any]) -> bytes:
    """Return the JSON of a document."""
    return orjson.dumps(json_map(attributes))


def key_text(attributes: Mapping[str, Any], names: tuple[str, ...]) -> bytes:
    """Return the JSON of the key in a document or in a record's `Keys`."""
    return orjson.dumps(json_key({name: attributes[name] for name in names}))


def place_after(records: Sequence[Record], count: int, begin: Place | None) -> After:
    """Return the position after `count` records; `begin` is the position before them."""
    seq, known = seq_of(records[count - 1]), None if begin is None else known_at(begin)
    place = After(seq, time_at(records, count, known))
    if count == len(records) or not is_numbered(records[count], seq):
        return place
    same = 1
    while same < count and is_numbered(records[count - 1 - same], seq):
        same += 1
    before = begin.count if same == count and isinstance(begin, After) and int(begin.seq) == int(seq) else 0
    return attrs.evolve(place, count=same + before, event_id=id_of(records[count - 1]))


def id_of(record: Record) -> str:
    """Return the service's id of a record, or the beginning of a long one; "" if it has none."""
    found = record.get("eventID")
    return found[:_MOST_ID] if isinstance(found, str) else ""


def is_numbered(record: Record, seq: str) -> bool:
    """Return True if a record has a sequence number, and the given one."""
    other = record["dynamodb"].get("SequenceNumber")
    return other == seq or (isinstance(other, str) and is_seq(other) and int(other) == int(seq))


@frozen
class DynamoMapper(ColumnMapper):
    """Maps the records of one answer to events and to Arrow.

    Attributes:
        view: What all events of the shard share.
        begin: The position before these records.
    """

    view: DynamoView
    begin: Place | None = None

    def cursor_after(self, records: Sequence[Record], count: int) -> Cursor:
        return cursor_of(place_after(records, count, self.begin))

    def columns(self, records: Sequence[Record], start: int, stop: int, *, texts: bool) -> Columns:
        view, part = self.view, records[start:stop]
        known = None if self.begin is None else known_at(self.begin)
        datas = [record["dynamodb"] for record in part]
        types = [_TYPES[record["eventName"]] for record in part]
        document: Callable[[Any], Any] = json_text if texts else decode_map
        return Columns(
            _event_ids(part, datas, view),
            [key_text(data["Keys"], view.key_names) for data in datas]
            if texts
            else trusted_keys(_keys(datas, view.key_names)),
            types,
            _times(datas, time_at(records, start, known)),
            [order_key(data["SequenceNumber"]) for data in datas],
            _items(datas, "NewImage", document) if view.with_new else repeat(None),
            _items(datas, "OldImage", document) if view.with_old else repeat(None),
            _expiries(part, types, view),
            natives=part if view.native else repeat(None),
        )

    def fault(self, records: Sequence[Record], index: int, error: Exception | None) -> RecordFault:
        place = place_after(records, index + 1, self.begin)
        why = f"it cannot be decoded as a stream record ({reason_of(error)})"
        where = self.named(f"sequence {place.seq}", lambda: self._key(records[index]))
        return RecordFault(index, where, why, cursor_of(place))

    def _key(self, record: Record) -> MulticloudDbKey:
        (components,) = _keys([record["dynamodb"]], self.view.key_names)
        return MulticloudDbKey(components)
