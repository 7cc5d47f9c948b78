"""Reads the rows of single keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from multiclouddb_api import LookupAnswer, MulticloudDbKey
from multiclouddb_mongo.mapping import MongoView
from multiclouddb_mongo.position import UnreadRange, moment_of
from multiclouddb_mongo.rows import DocumentMapper
from multiclouddb_mongo.snapshots import ScanSource, encrypted_refused
from multiclouddb_mongo.values import asked_key
from multiclouddb_spi import AnsweredRows, Deadline, check_components, look_up, looked_up

_MOST_KEYS: Final = 200


def look_up_documents(
    source: ScanSource,
    view: MongoView,
    time: str,
    keys: Sequence[MulticloudDbKey],
    began: datetime,
    deadline: Deadline,
    *,
    collated: bool = False,
    clustered: bool = False,
) -> dict[MulticloudDbKey, LookupAnswer]:
    """Return the rows of some of the keys, at this cluster time or later; see `FoundResource`."""
    if source.client.options.auto_encryption_opts is not None:
        raise encrypted_refused("lookup")
    place = UnreadRange(time, "", names=source.shard_key())
    names = tuple(dict.fromkeys((*place.names, "_id")))

    def normal(key: MulticloudDbKey) -> MulticloudDbKey:
        # If a document lacks a field of the shard key, its key lacks the component.
        if list(key.components) != [name for name in names if name in key.components or name == "_id"]:
            check_components(key, names)
        return MulticloudDbKey(asked_key(key), key.partition_components)

    def ask(asked: list[MulticloudDbKey]) -> AnsweredRows:
        rows = source.found(place, asked, deadline, clustered=clustered)
        mapper = DocumentMapper(view, looked_up(moment_of(time, began)), place)
        events, unread = mapper.readable(rows)
        if collated:
            # With its collation, the server uses the index, but it may also find other texts that compare
            # equal.
            wanted = set(asked)
            events = [event for event in events if event.key in wanted]
        return AnsweredRows(events, unread=map(mapper.key_of, unread))

    return look_up(keys, _MOST_KEYS, normal, ask)
