"""Implements the operations of `DynamoDBStreams_20120810`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import attrs
import orjson

from multiclouddb_dynamo_emulator.arguments import Arguments
from multiclouddb_dynamo_emulator.errors import ServiceError, invalid, not_found
from multiclouddb_dynamo_emulator.habits import ChildFilter, Remains, TimeStart
from multiclouddb_dynamo_emulator.iterator import ShardIterator
from multiclouddb_dynamo_emulator.shard import Page, Shard
from multiclouddb_dynamo_emulator.store import Store
from multiclouddb_dynamo_emulator.stream import Stream

__all__ = ["ARN_LENGTHS", "STREAM_CALLS", "get_records"]

ARN_LENGTHS: Final = (37, 1024)
_SHARD_LENGTHS: Final = (28, 65)
_NUMBER_LENGTHS: Final = (21, 40)
_MOST_STREAMS: Final = 100
_MOST_SHARDS: Final = 100
_MOST_RECORDS: Final = 1000


def _stream(store: Store, arguments: Arguments) -> Stream:
    return store.stream(arguments.text("StreamArn", *ARN_LENGTHS))


def _list_streams(store: Store, arguments: Arguments) -> bytes:
    name = arguments.optional_text("TableName", 3, 255)
    start = arguments.optional_text("ExclusiveStartStreamArn", *ARN_LENGTHS)
    limit = arguments.limit(_MOST_STREAMS)
    streams = [each for each in reversed(store.streams.values()) if name in (None, each.table_name)]
    if start is not None:
        places = [place for place, each in enumerate(streams) if each.arn == start]
        if not places:
            raise not_found(f"Requested resource not found: Stream: {start} not found")
        streams = streams[places[0] + 1 :]
    listed = [
        {"StreamArn": each.arn, "TableName": each.table_name, "StreamLabel": each.label}
        for each in streams[:limit]
    ]
    more = {"LastEvaluatedStreamArn": listed[-1]["StreamArn"]} if len(streams) > limit else {}
    return orjson.dumps({"Streams": listed, **more})


def _children_of(store: Store, arguments: Arguments) -> str | None:
    """Return the shard whose children are requested, or None to list all shards."""
    wanted = arguments.get("ShardFilter")
    match store.habits.child_filter:
        case ChildFilter.IGNORED:
            return None
        case ChildFilter.REFUSED if wanted is not None:
            raise invalid("ShardFilter is not supported")
    if wanted is None:
        return None
    match wanted:
        case {"Type": "CHILD_SHARDS", "ShardId": str(parent)}:
            return parent
        case _:
            raise invalid("ShardFilter needs the Type CHILD_SHARDS and a ShardId")


def _shards_after(store: Store, stream: Stream, start: str | None, parent: str | None) -> list[Shard]:
    """Return the listed shards after `start`, or all listed shards if `start` is None.

    If `parent` is given, only its children are listed; otherwise, all shards are listed.
    """
    shards, places = stream.listing()
    if parent is not None:
        shards = [shard for shard in shards if shard.parent == parent]
        places = {shard.shard_id: place for place, shard in enumerate(shards)}
    if start is None:
        return shards
    last = start in places and places[start] == len(shards) - 1
    if start not in places or (last and not store.habits.start_after_last):
        raise not_found(f"Requested resource not found: Shard: {start} not found")
    return shards[places[start] + 1 :]


def _describe_stream(store: Store, arguments: Arguments) -> bytes:
    most = min(arguments.limit(_MOST_SHARDS), store.habits.shards_per_page)
    start = arguments.optional_text("ExclusiveStartShardId", *_SHARD_LENGTHS)
    parent = _children_of(store, arguments)
    stream = _stream(store, arguments)
    shards = _shards_after(store, stream, start, parent)
    stream.called()
    page = shards[:most]
    described = {
        "StreamArn": stream.arn,
        "StreamLabel": stream.label,
        "StreamStatus": "ENABLED" if stream.disabled_at is None else "DISABLED",
        "StreamViewType": stream.view,
        "CreationRequestDateTime": stream.created,
        "TableName": stream.table_name,
        "KeySchema": stream.keys.described(),
        "Shards": [orjson.Fragment(shard.described()) for shard in page],
    }
    if len(shards) > most:
        described["LastEvaluatedShardId"] = page[-1].shard_id
    return orjson.dumps({"StreamDescription": described})


def _position(stream: Stream, shard: Shard, arguments: Arguments) -> tuple[int, bool]:
    """Return a sequence number; the read returns only records with a greater number.

    Also return True if the read starts at the oldest record.
    """
    match arguments.get("ShardIteratorType"):
        case "TRIM_HORIZON":
            return 0, True
        case "LATEST":
            return stream.numbers.last, False
        case "AT_SEQUENCE_NUMBER":
            before = 1
        case "AFTER_SEQUENCE_NUMBER":
            before = 0
        case other:
            raise invalid(f"ShardIteratorType {other} is not one of the five types")
    text = arguments.text("SequenceNumber", *_NUMBER_LENGTHS)
    end = stream.numbers.last if shard.end is None else shard.end
    if not (text.isascii() and text.isdigit()) or not shard.start <= int(text) <= end:
        raise invalid("Invalid SequenceNumber for the shard")
    return int(text) - before, False


def _position_at(store: Store, stream: Stream, shard: Shard, time: object) -> tuple[int, bool]:
    """Return the position of an `AT_TIMESTAMP`: the first record whose time is the given one or a later one.

    If none is, the position is the end, where later records follow.
    """
    habit = store.habits.time_start
    match habit:
        case TimeStart.REFUSED:
            raise invalid("Invalid ShardIteratorType.")
        case TimeStart.FROM_THE_END:
            return stream.numbers.last, False
        case TimeStart.FROM_THE_OLDEST:
            return 0, True
        case _:
            pass
    if isinstance(time, bool) or not isinstance(time, int | float):
        raise invalid("AT_TIMESTAMP needs a Timestamp")
    if time > store.clock.seconds():
        raise invalid("Timestamp is in the future")
    number = shard.first_since(time)
    if number is None:
        if habit is TimeStart.OPEN_ONLY and shard.end is not None:
            raise invalid("Timestamp is after the last record of the shard")
        return stream.numbers.last, False
    return number - 1, number == shard.first


def _get_shard_iterator(store: Store, arguments: Arguments) -> bytes:
    stream = _stream(store, arguments)
    shard_id = arguments.text("ShardId", *_SHARD_LENGTHS)
    shard = stream.shards.get(shard_id)
    if shard is None:
        raise not_found(f"Requested resource not found: Shard: {shard_id} in Stream: {stream.arn} not found")
    kind = arguments.get("ShardIteratorType")
    if kind == "AT_TIMESTAMP":
        after, horizon = _position_at(store, stream, shard, arguments.get("Timestamp"))
    else:
        after, horizon = _position(stream, shard, arguments)
    if not horizon and after < shard.trimmed_to and store.habits.refuses_trimmed:
        raise ServiceError("TrimmedDataAccessException")
    ahead = 0 if kind == "LATEST" else store.habits.empty_pages
    iterator = ShardIterator(
        stream.arn, shard_id, after, horizon, store.clock.seconds(), store.epoch, empty=ahead
    )
    return orjson.dumps({"ShardIterator": iterator.encoded()})


def _readable(store: Store, iterator: ShardIterator) -> Shard:
    """Return the shard of a valid iterator."""
    too_old = store.clock.seconds() - iterator.issued > store.habits.iterator_seconds
    if too_old or iterator.epoch < store.epoch:
        raise ServiceError("ExpiredIteratorException")
    stream = store.streams.get(iterator.arn)
    shard = None if stream is None else stream.shards.get(iterator.shard_id)
    if shard is None or shard.remains is Remains.VANISHED:
        raise not_found("Invalid ShardId in ShardIterator")
    gone = not iterator.horizon and iterator.after < shard.trimmed_to
    if (gone and store.habits.refuses_trimmed) or shard.remains is Remains.LISTED:
        raise ServiceError("TrimmedDataAccessException")
    return shard


def get_records(store: Store, arguments: Arguments, empty: bool = False) -> tuple[bytes, int]:
    """Return a page of records as JSON, and the number of records.

    Args:
        store: The store to read.
        arguments: The arguments of the call.
        empty: True to return no records, even if the shard contains records.
    """
    limit = arguments.limit(_MOST_RECORDS)
    iterator = ShardIterator.decoded(arguments.text("ShardIterator", 1, 2048))
    shard = _readable(store, iterator)
    if iterator.empty:
        iterator, empty = attrs.evolve(iterator, empty=iterator.empty - 1), True
    page = Page((), None, more=True) if empty else shard.page(iterator.after, limit, store.habits.page_bytes)
    if page.last is not None:
        iterator = attrs.evolve(iterator, after=page.last, horizon=False)
    elif iterator.horizon:
        # A reader at this position loses the records that are trimmed from now on.
        iterator = attrs.evolve(iterator, after=shard.trimmed_to, horizon=False)
    apart = store.habits.separate_end and bool(page.bodies)
    return _answer(store, page, iterator, goes_on=shard.end is None or page.more or apart), len(page.bodies)


def _answer(store: Store, page: Page, iterator: ShardIterator, goes_on: bool) -> bytes:
    following = b',"NextShardIterator":null' if store.habits.null_iterator else b""
    if goes_on:
        renewed = attrs.evolve(
            iterator, issued=store.clock.seconds(), epoch=store.epoch, renewed=True
        ).encoded()
        following = b',"NextShardIterator":"' + renewed.encode() + b'"'
    return b'{"Records":[' + b",".join(page.bodies) + b"]" + following + b"}"


STREAM_CALLS: Final[Mapping[str, Callable[[Store, Arguments], bytes]]] = {
    "ListStreams": _list_streams,
    "DescribeStream": _describe_stream,
    "GetShardIterator": _get_shard_iterator,
}
"""Maps each operation, except `GetRecords`, to a function that returns JSON.

The caller holds the store's lock.
"""
