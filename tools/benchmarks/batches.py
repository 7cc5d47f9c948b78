"""Makes a large batch for the mapper of each provider, in the form in which the service sends it.

A change inserts a document of about 300 bytes. No server is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs
import orjson

from multiclouddb_api import ResourceAddress
from multiclouddb_spi import Mapper

__all__ = ["BATCHES", "Recorded"]

_ADDRESS: Final = ResourceAddress("shop", "orders")
_BEGIN: Final = datetime(2026, 1, 31, 12, tzinfo=UTC)
_AT_ONCE: Final = 100
_FIELDS: Final = {f"field{index}": "x" * 33 for index in range(7)}


@attrs.frozen
class Recorded:
    """What a service has sent, and the two ways to read it.

    Attributes:
        mapper: The provider's mapper.
        parse: Makes the mapper's records of what the service has sent, as the provider's reader does. Records
            may keep what was computed of them, so each run needs new ones.
        bare: Reads what the service has sent by hand, and returns the number of documents.
    """

    mapper: Mapper
    parse: Callable[[], Any]
    bare: Callable[[], int]


def _mongo(size: int) -> Recorded:
    import bson
    from bson.codec_options import CodecOptions
    from bson.timestamp import Timestamp

    from multiclouddb_mongo.mapping import MongoMapper, MongoView

    def change(number: int) -> bytes:
        moment = _BEGIN + timedelta(milliseconds=number)
        seconds = int(moment.timestamp())
        return bson.encode(
            {
                "_id": {"_data": f"82{seconds:08X}{number:08X}2B022C0100296E04"},
                "operationType": "insert",
                "clusterTime": Timestamp(seconds, number),
                "wallTime": moment,
                "fullDocument": {"_id": number, "number": number, **_FIELDS},
                "ns": {"db": _ADDRESS.database, "coll": _ADDRESS.collection},
                "documentKey": {"_id": number},
            }
        )

    raws, codec = [change(number) for number in range(size)], CodecOptions[dict[str, Any]](tz_aware=True)

    def bare() -> int:
        count = 0
        for raw in raws:
            count += bson.decode(raw, codec)["fullDocument"] is not None
        return count

    return Recorded(MongoMapper(MongoView(_ADDRESS, "mongo:x:0")), lambda: raws, bare)


def _cosmos(size: int) -> Recorded:
    from multiclouddb_cosmos.mapping import CosmosMapper
    from multiclouddb_cosmos.position import Place
    from multiclouddb_cosmos.records import CosmosView, records_of

    seconds = int(_BEGIN.timestamp())

    def item(number: int) -> dict[str, Any]:
        document = {
            "id": str(number), "pk": f"k{number % 997}", "number": number, **_FIELDS,
            "_rid": f"AAAA{number:08d}==", "_self": f"dbs/AAAA==/colls/AAAA=/docs/AAAA{number:08d}==/",
            "_etag": f'"{number:08x}-0000-0000-0000-000000000000"', "_attachments": "attachments/",
            "_ts": seconds + number // _AT_ONCE,
        }  # fmt: skip
        metadata = {"operationType": "create", "lsn": number + 1, "crts": document["_ts"]}
        return {"current": document, "metadata": metadata}

    body = orjson.dumps({"Documents": [item(number) for number in range(size)]})
    view = CosmosView(_ADDRESS, "cosmos:x:0", (("pk",),))

    def parse() -> Any:
        return records_of(orjson.loads(body)["Documents"], Place(0), view)

    def bare() -> int:
        return len([item["current"] for item in orjson.loads(body)["Documents"]])

    return Recorded(CosmosMapper(view), parse, bare)


def _spanner(size: int) -> Recorded:
    from google.protobuf.struct_pb2 import ListValue, Value

    from multiclouddb_spanner.mapping import RowChange, RowChanges, SpannerMapper, SpannerView
    from multiclouddb_spanner.position import Place
    from multiclouddb_spanner.records import DataRecord, Shapes, parse_rows
    from multiclouddb_spi.cursor import Cut

    def value(given: Any) -> Value:
        if isinstance(given, list):
            return Value(list_value=ListValue(values=map(value, given)))
        return Value(bool_value=given) if isinstance(given, bool) else Value(string_value=given)

    names = {"id": "STRING", "number": "INT64", **dict.fromkeys(_FIELDS, "STRING")}
    columns = [
        [name, orjson.dumps({"code": code}).decode(), name == "id", str(place)]
        for place, (name, code) in enumerate(names.items(), 1)
    ]

    def mod(number: int) -> list[str]:
        new = {"number": str(number), **_FIELDS}
        return [orjson.dumps({"id": f"key-{number:07}"}).decode(), orjson.dumps(new).decode(), "{}"]

    def record(first: int) -> Value:
        moment = (_BEGIN + timedelta(milliseconds=first)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mods = [mod(number) for number in range(first, min(first + _AT_ONCE, size))]
        head = [moment, "00000000", f"transaction-{first}", True, "orders", columns, mods]
        return value([[[*head, "INSERT", "NEW_ROW", "1", "1", "", False]], [], []])

    rows = [[Value(list_value=ListValue(values=[record(at)]))] for at in range(0, size, _AT_ONCE)]

    def parse() -> Any:
        changes = [
            RowChange(found, nth)
            for found in parse_rows(rows, "orders", Shapes())
            if isinstance(found, DataRecord)
            for nth in range(len(found.mods))
        ]
        return RowChanges(Place(Cut(0)), changes)

    def bare() -> int:
        count = 0
        for (row,) in rows:
            for struct in row.list_value.values:
                for each in struct.list_value.values[0].list_value.values:
                    for change in each.list_value.values[6].list_value.values:
                        keys, new, _ = change.list_value.values
                        document = orjson.loads(keys.string_value) | orjson.loads(new.string_value)
                        count += len(document) > 0
        return count

    view = SpannerView(_ADDRESS, "spanner:x:0", key_names=("id",))
    return Recorded(SpannerMapper(view), parse, bare)


def _dynamo(size: int) -> Recorded:
    from boto3.dynamodb.types import TypeDeserializer

    from multiclouddb_dynamo.mapping import DynamoMapper, DynamoView

    shard = "shardId-00000001541626099285-f35f62ef"

    def record(number: int) -> dict[str, Any]:
        key = {"pk": {"S": f"key-{number:07}"}}
        fields = {name: {"S": text} for name, text in _FIELDS.items()}
        data = {
            "ApproximateCreationDateTime": _BEGIN.timestamp() + number // _AT_ONCE,
            "Keys": key, "NewImage": {**key, "number": {"N": str(number)}, **fields},
            "SequenceNumber": f"{number + 1:021}", "SizeBytes": 330, "StreamViewType": "NEW_IMAGE",
        }  # fmt: skip
        return {"eventID": f"{number:032x}", "eventName": "INSERT", "dynamodb": data}

    body, decode = orjson.dumps([record(number) for number in range(size)]), TypeDeserializer().deserialize

    def bare() -> int:
        count = 0
        for each in orjson.loads(body):
            document = {name: decode(value) for name, value in each["dynamodb"]["NewImage"].items()}
            count += len(document) > 0
        return count

    mapper = DynamoMapper(DynamoView(_ADDRESS, "dynamo:x:0", shard, ("pk",)))
    return Recorded(mapper, lambda: orjson.loads(body), bare)


def _embedded(size: int) -> Recorded:
    from multiclouddb_embedded.mapping import SEPARATOR, EmbeddedMapper, EmbeddedView, Records, to_micros

    numbers, begin = range(1, size + 1), to_micros(_BEGIN)
    separator = SEPARATOR.encode()
    seqs, types = ",".join(map(str, numbers)), ",".join("0" for _ in numbers)
    times = ",".join(str(begin + number // _AT_ONCE) for number in numbers)
    keys = separator.join(orjson.dumps({"pk": f"key-{number:07}"}) for number in numbers)
    documents = separator.join(orjson.dumps({"number": number, **_FIELDS}) for number in numbers)

    def bare() -> int:
        return len([orjson.loads(text) for text in documents.split(separator)])

    mapper = EmbeddedMapper(EmbeddedView(_ADDRESS, "embedded:x:0", 1))
    return Recorded(mapper, lambda: Records(size, seqs, times, types, keys, documents, None), bare)


BATCHES: Final[dict[str, Callable[[int], Recorded]]] = {
    "mongo": _mongo,
    "cosmos": _cosmos,
    "spanner": _spanner,
    "dynamo": _dynamo,
    "embedded": _embedded,
}
"""Makes a recorded batch of so many changes, for the mapper of each provider."""
