"""Scans a collection: reads its rows, divides its keys, and checks that the collection still exists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from bson import Binary
from bson.binary import UUID_SUBTYPE
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

from multiclouddb_api import Dropped, ErrorCategory, LogicalPartition, NewItemStateMode, Notice, Renamed
from multiclouddb_mongo.partitions import find
from multiclouddb_mongo.pymongo_internals import Rows
from multiclouddb_mongo.raw_row import ROW_CODEC
from multiclouddb_mongo.rows import rows_of
from multiclouddb_mongo.scan_position import MAX_KEY, Range, Rest, as_field, id_of
from multiclouddb_mongo.source import Source
from multiclouddb_mongo.values import CODEC, to_bson
from multiclouddb_spi import ProviderFault
from multiclouddb_spi.faults import START_AGAIN

__all__ = ["ScanSource"]

_BY_ID: Final = {"_id": 1}
_SORTED: Final = [("_id", 1)]
_MAJORITY: Final = ReadConcern("majority")
_COMMENT: Final = "multiclouddb scan"
_GONE: Final = (26, 175)  # NamespaceNotFound, QueryPlanKilled
_SHORT: Final = 600
"""The largest number of hexadecimal digits in an `_id` that may be the end of a segment.

This limit keeps tokens small, because every token contains the ends of several segments.
"""
_CANDIDATES: Final = 20
_SAMPLES: Final = 20
_MOST_SAMPLED: Final = 10_000


class ScanSource:
    """The objects that the readers of one collection's segments share.

    Args:
        source: The watched resource.
    """

    def __init__(self, source: Source) -> None:
        self.client, self._source = source.client, source
        self.at_work, self.opening = source.at_work, source.opening
        self.begin, self.calm, self.be_patient = source.begin, source.calm, source.be_patient
        self.bounded, self.longest_fetch = source.bounded, source.longest_fetch
        spec = source.spec
        self._key = spec.scope.key if isinstance(spec.scope, LogicalPartition) else None
        self._keys_only = spec.new_item_state_mode is NewItemStateMode.OMIT and not spec.include_native

    # -- Rows

    def session(self, place: Range) -> ClientSession:
        """Return a session whose reads show the data at or after the start of the stream."""
        session = self.client.start_session(causal_consistency=True)
        session.advance_operation_time(place.timestamp())
        return session

    def rows(self, place: Range, session: ClientSession, batch_size: int) -> Rows:
        """Return a cursor over undecoded rows.

        Args:
            place: The rows to read.
            session: The result of `session`.
            batch_size: The maximum number of rows in one answer.
        """
        wanted = self._wanted(place)
        return (
            self._collection()
            .with_options(codec_options=ROW_CODEC)
            .find(
                wanted,
                dict.fromkeys(("_id", *place.names), 1) if self._keys_only else None,
                hint=_BY_ID if self._key is None else None,
                sort=_SORTED,
                batch_size=batch_size,
                comment=_COMMENT,
                session=session,
            )
        )

    def close(self, rows: Rows) -> None:
        """Close a cursor, also on the server. This method raises no error."""
        self._source.close(rows)

    def _wanted(self, place: Range) -> dict[str, Any]:
        wanted = place.filter()
        if self._key is None:
            return wanted
        components = self._key.partition_key
        if not components.keys() <= {"_id", *place.names}:
            return {"_id": {"$in": []}}  # keys in the stream do not contain this field either
        return {**wanted, **{name: {"$eq": to_bson(value)} for name, value in components.items()}}

    def _collection(self) -> Collection[dict[str, Any]]:
        address = self._source.address
        assert address.database is not None
        assert address.collection is not None
        database = self.client.get_database(address.database, codec_options=CODEC, read_concern=_MAJORITY)
        return database.get_collection(address.collection)

    # -- Whether the collection still exists

    def may_be_gone(self, error: OperationFailure) -> bool:
        """Return True if an error can mean that the collection was dropped or renamed."""
        return error.code in _GONE

    def gone(self, place: Range) -> Notice | None:
        """Return the notice for a collection that was dropped or renamed.

        Return None if the collection still has the name.

        Raises:
            ProviderFault: Raised if a sharded collection has a different UUID, because the collection was
                resharded or replaced.
        """
        address = self._source.address
        found = find(self.client, self._source.spec, address)
        if found.uuid == place.uuid:
            return None
        name = f"{address.database}/{address.collection}"
        if found.there and self._source.sharded:
            raise ProviderFault.of(
                ErrorCategory.CHECKPOINT_EXPIRED,
                f"{name} was resharded or created again since the snapshot began; {START_AGAIN}",
            )
        assert address.database is not None
        database = self.client.get_database(address.database, codec_options=CODEC)
        uuid = Binary(bytes.fromhex(place.uuid), UUID_SUBTYPE)
        for each in database.list_collections(filter={"info.uuid": uuid}):
            return Renamed(name, f"{address.database}/{each['name']}")
        return Dropped(name)

    # -- Planning

    def shard_key(self) -> tuple[str, ...]:
        """Return the fields of the shard key; empty for a collection that is not sharded.

        Raises:
            OperationFailure: Raised if the user may not read the database `config`.
        """
        if not self._source.sharded:
            return ()
        address = self._source.address
        config = self.client.get_database("config", codec_options=CODEC, read_concern=_MAJORITY)
        entry = config.collections.find_one({"_id": f"{address.database}.{address.collection}"}) or {}
        return () if entry.get("dropped") else tuple(entry.get("key", ()))

    def count(self) -> int:
        """Return the approximate number of rows, from the collection's metadata."""
        return self._collection().estimated_document_count()

    def counted(self, rest: Rest) -> str | None:
        """Find the end of a plan's next segment by counting keys. Return None for the last segment.

        Only the keys in the index are counted, and no documents are read: 100,000 keys take 0.05
        seconds. The server's option `min` does not find MaxKey, the key that sorts after all other
        keys. However, MaxKey is never the end of a segment.
        """
        found = self._collection().find_raw_batches(
            {},
            _BY_ID,
            hint=_BY_ID,
            sort=_SORTED,
            skip=rest.width,
            limit=_CANDIDATES,
            min=as_field("_id", rest.low) if rest.low else None,
            comment=_COMMENT,
        )
        return next((each for each in _ids(found) if _is_end(each)), None)

    def sampled(self, rest: Rest, count: int) -> list[str]:
        """Return the ends of a plan's next segments; all segments have about the same number of rows.

        Args:
            rest: The plan.
            count: The maximum number of ends.
        """
        size = min(_MOST_SAMPLED, _SAMPLES * rest.left)
        stages: list[dict[str, Any]] = [{"$sample": {"size": size}}, {"$project": _BY_ID}]
        if rest.low:
            stages.append({"$match": {"$expr": {"$gt": ["$_id", as_field("$literal", rest.low)]}}})
        found = self._collection().aggregate_raw_batches([*stages, {"$sort": _BY_ID}], comment=_COMMENT)
        ids = list(_ids(found))
        places = (ids[number * len(ids) // rest.left] for number in range(1, count + 1) if ids)
        return list(dict.fromkeys(each for each in places if _is_end(each)))


def _ids(answers: Iterable[Any]) -> Iterator[str]:
    for answer in answers:
        yield from map(id_of, rows_of(bytes(answer)))


def _is_end(wanted: str) -> bool:
    return len(wanted) <= _SHORT and wanted != MAX_KEY
