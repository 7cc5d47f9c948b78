"""Reads a stream's only shard with boto3, and decodes the key and the item with `TypeDeserializer`."""

from __future__ import annotations

from typing import Any

import boto3
from boto3.dynamodb.types import TypeDeserializer

from benchmarks.peers.programs.meter import Meter, read_spec


def main() -> None:
    """Read until the last change."""
    spec = read_spec()
    streams = boto3.client("dynamodbstreams", endpoint_url=spec["endpoint_url"], region_name=spec["region"])
    decode = TypeDeserializer().deserialize
    (shard,) = streams.describe_stream(StreamArn=spec["arn"])["StreamDescription"]["Shards"]
    start = {"StreamArn": spec["arn"], "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
    iterator = streams.get_shard_iterator(**start)["ShardIterator"]
    finished = False
    with Meter(spec) as meter:
        while not finished:
            page = streams.get_records(ShardIterator=iterator, Limit=1000)
            for record in page["Records"]:
                key, item = (_decoded(decode, record["dynamodb"][name]) for name in ("Keys", "NewImage"))
                if item["pk"] != key["pk"]:
                    raise ValueError(f"the item of {key['pk']} has the key {item['pk']}")
                finished = meter.take(key["pk"])
            iterator = page["NextShardIterator"]
        meter.report()


def _decoded(decode: Any, values: dict[str, Any]) -> dict[str, Any]:
    return {name: decode(value) for name, value in values.items()}


if __name__ == "__main__":
    main()
