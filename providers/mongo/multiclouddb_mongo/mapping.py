"""Maps change documents to events and to Arrow. The functions are pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from attrs import frozen
from bson.codec_options import CodecOptions
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

from multiclouddb_api import ChangeType, ResourceAddress
from multiclouddb_api.key import MulticloudDbKey, trusted_keys
from multiclouddb_mongo.position import After, change_text, cursor_of, seconds_at, time_text, token_text
from multiclouddb_mongo.raw_change import Raw, is_of_another, place_of_change, with_decimals
from multiclouddb_mongo.values import (
    CODEC,
    LENIENT_RAW,
    NORMAL_AS_DECODED,
    TEXT_CODEC,
    IndistinctKeyError,
    decode_all,
    json_text,
    normal_key,
    portable,
)
from multiclouddb_spi import DAMAGED, ColumnMapper, Columns, Cursor, RecordFault, reason_of
from multiclouddb_spi import View as CommonView

if TYPE_CHECKING:
    import pyarrow as pa

Change: TypeAlias = Mapping[str, Any]

CHANGES: Final = {
    "insert": ChangeType.CREATE,
    "update": ChangeType.UPDATE,
    "replace": ChangeType.UPDATE,
    "delete": ChangeType.DELETE,
}
"""The operation types that change a document.

Other operation types do not change documents: they concern whole collections, or are unknown.
"""

_DOCUMENTS: Final = ("fullDocument", "fullDocumentBeforeChange")
_TEXTS_AT_ONCE: Final = 64
# Sets, to check all values of a column without running Python code for each of them.
_TEXT: Final = frozenset({str})
_DICT: Final = frozenset({dict})
_ONE: Final = frozenset({1})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
UNMAPPABLE: Final = (*DAMAGED, BSONError)
"""The exceptions that mapping a damaged change or row can raise."""


class OtherCollectionError(ValueError):
    """Raised for a change of another collection; see `alike_to`."""


@frozen
class MongoView(CommonView):
    """What all events of one feed share.

    Attributes:
        start: The cluster time of the feed's start, in ticks; None if the feed has certainly
            reached its start. A resource that ended before this time was a different resource with
            the same name.
    """

    start: int | None = None


def _decoded(changes: Sequence[Raw], codec: CodecOptions[dict[str, Any]] = CODEC) -> list[dict[str, Any]]:
    # One call converts all changes, so no Python code runs for the individual changes. One change is not
    # copied, because it may have 16 MB.
    return decode_all(changes[0] if len(changes) == 1 else b"".join(changes), codec)


def time_of(change: Change) -> datetime:
    """Return the time of the write by the server's clock, with a precision of milliseconds."""
    # Before MongoDB 6.0, return the cluster time of the change.
    moment = change.get("wallTime")
    if isinstance(moment, datetime):
        return moment.replace(tzinfo=UTC)  # the time is in UTC; PyMongo has its own class for UTC
    stamp = change.get("clusterTime")
    seconds = stamp.time if stamp is not None else seconds_at(After("e", token_text(change["_id"])))
    return datetime.fromtimestamp(0 if seconds is None else seconds, UTC)


def _ids(changes: Sequence[Change]) -> list[str]:
    ids = [change["_id"].get("_data") for change in changes]
    return ids if _TEXT.issuperset(map(type, ids)) else [change_text(change["_id"]) for change in changes]


def _components(changes: Sequence[Change], raws: Sequence[Raw]) -> list[dict[str, Any]]:
    """Return the components of the keys in their normal form."""
    keys = [change["documentKey"] for change in changes]
    plain = _DICT.issuperset(map(type, keys)) and _ONE.issuperset(map(len, keys))
    if plain and NORMAL_AS_DECODED.issuperset(map(type, chain.from_iterable(map(dict.values, keys)))):
        return keys
    if not all(keys):
        raise ValueError("a change without a key")
    documents = [key if type(key) is dict else dict(key.as_doc()) for key in keys]
    return list(map(normal_key, documents, raws))


def _keys(keys: Sequence[dict[str, Any]]) -> list[MulticloudDbKey]:
    """Return the keys. `_id` comes after the fields of the shard key, and is not part of the shard key."""
    if _ONE.issuperset(map(len, keys)):
        return trusted_keys(keys)
    return [trusted_keys([key], max(1, len(key) - 1))[0] for key in keys]


def _key(change: Raw) -> MulticloudDbKey:
    """Return the key of a change of which nothing else may be decoded."""
    key = RawBSONDocument(change, LENIENT_RAW)["documentKey"]
    return _keys(_components([{"documentKey": _decoded([key.raw])[0]}], [change]))[0]


def _times(changes: Sequence[Change]) -> list[datetime]:
    # Changes of the same millisecond share one `datetime`, because making a `datetime` takes as long as
    # making the rest of an event.
    previous: object = None
    moment, moments = _EPOCH, []
    for change in changes:
        value = change.get("wallTime")
        if value is None or value != previous:
            previous, moment = value, time_of(change)
        moments.append(moment)
    return moments


def _moments(changes: Sequence[Change]) -> list[datetime]:
    """Convert times for Arrow, which interprets a time without a zone as UTC."""
    return [
        moment if isinstance(moment := change.get("wallTime"), datetime) else time_of(change)
        for change in changes
    ]


def _documents(
    changes: Sequence[Change], name: str, raws: Sequence[Raw], codec: CodecOptions[dict[str, Any]] = CODEC
) -> list[Any]:
    # PyMongo takes a document with the fields $ref and $id for a DBRef, which loses the order of the fields.
    # It does not if the document is not part of another one, as in a scan.
    return [
        document
        if (document := change.get(name)) is None or type(document) is dict
        else decode_all(RawBSONDocument(bytes(raw), LENIENT_RAW)[name].raw, codec)[0]
        for change, raw in zip(changes, raws, strict=True)
    ]


def _check_collection(changes: Sequence[Change], view: MongoView) -> None:
    own = view.address.collection
    if own is None:
        return
    # Almost always, all changes have this namespace, and comparing them runs no Python code.
    namespaces = [change.get("ns") for change in changes]
    is_own = namespaces.count({"db": view.address.database, "coll": own}) == len(changes)
    if not is_own and any(is_of_another(change, own) for change in changes):
        raise OtherCollectionError


def _addresses(changes: Sequence[Change], view: MongoView) -> list[ResourceAddress] | None:
    if view.address.collection is not None:
        return None
    names = [(name["db"], name["coll"]) for name in [change["ns"] for change in changes]]
    known = {name: ResourceAddress(*name) for name in set(names)}
    return [known[name] for name in names]


def _names(changes: Sequence[Change], view: MongoView) -> list[list[str]] | None:
    if view.address.collection is not None:
        return None
    return [[change["ns"][name] for change in changes] for name in ("db", "coll")]


def _texts(documents: Sequence[Any]) -> pa.Array:
    # A JSON text takes about a kilobyte. If all texts of a batch existed at once, memory would be returned to
    # the system and allocated again for every batch. That would take longer than making the texts.
    import pyarrow as pa

    parts = [
        pa.array(
            [None if each is None else json_text(each) for each in documents[at : at + _TEXTS_AT_ONCE]],
            pa.string(),
        )
        for at in range(0, len(documents), _TEXTS_AT_ONCE)
    ]
    return pa.concat_arrays(parts) if parts else pa.array([], pa.string())


def why(error: Exception | None) -> str:
    """Return why a change or a row cannot be mapped, without its content."""
    if isinstance(error, BSONError):
        return "it is not valid BSON, or holds text that is not UTF-8"
    if isinstance(error, OtherCollectionError):
        return (
            "it is one of another collection, whose name has a line break more at its end, and which the "
            "server does not tell from this one; read with EntireDatabase(), and take the events with this "
            "address"
        )
    if isinstance(error, IndistinctKeyError):
        return (
            "PyMongo cannot tell its _id from another one, because the _id contains undefined, a "
            "DBPointer, two fields of one name or another form that PyMongo changes; give it another _id"
        )
    return reason_of(error) if error is None else f"it cannot be mapped ({reason_of(error)})"


@frozen
class MongoMapper(ColumnMapper):
    """Maps the changes of one stream to events and to Arrow."""

    damaged = UNMAPPABLE
    view: MongoView

    def cursor_after(self, records: Sequence[Raw], count: int) -> Cursor:
        return cursor_of(place_of_change(records[count - 1]), self.view.start)

    def columns(self, records: Sequence[Raw], start: int, stop: int, *, texts: bool) -> Columns:
        raws = records[start:stop]
        if not texts:
            return self._values(_decoded(raws), raws)
        try:
            return self._texts(raws, TEXT_CODEC)
        except UNMAPPABLE:  # or there is a time without a zone in a value that rarely has times
            return self._texts(raws, CODEC)

    def fault(self, records: Sequence[Raw], index: int, error: Exception | None) -> RecordFault:
        place = place_of_change(records[index])
        where = self.named(time_text(place), lambda: _key(records[index]))
        return RecordFault(index, where, why(error), cursor_of(place, self.view.start))

    def _values(self, changes: Sequence[Change], raws: Sequence[Raw]) -> Columns:
        view, ids = self.view, _ids(changes)
        _check_collection(changes, view)
        # The native change is taken before its documents become portable, because it must stay unchanged.
        natives: Iterable[Any] = deepcopy(changes) if view.native else repeat(None)
        new, old = (
            _documents(changes, name, raws) if wanted else None
            for name, wanted in zip(_DOCUMENTS, (view.with_new, view.with_old), strict=True)
        )
        # Few changes contain a decimal, and searching the bytes is faster than visiting every value.
        for index in with_decimals(raws):
            for documents in (new, old):
                if documents is not None and documents[index] is not None:
                    portable(documents[index])
        return Columns(
            ids,
            _keys(_components(changes, raws)),
            [CHANGES[change["operationType"]] for change in changes],
            _times(changes),
            ids,
            repeat(None) if new is None else new,
            repeat(None) if old is None else old,
            by_expiry=repeat(None),
            addresses=_addresses(changes, view),
            natives=natives,
        )

    def _texts(self, raws: Sequence[Raw], codec: CodecOptions[dict[str, Any]]) -> Columns:
        import pyarrow as pa

        changes = _decoded(raws, codec)
        _check_collection(changes, self.view)

        def documents(name: str) -> pa.Array:
            return _texts(_documents(changes, name, raws, codec))

        view, ids = self.view, pa.array(_ids(changes), pa.string())
        return Columns(
            ids,
            _texts(_components(changes, raws)),
            [CHANGES[change["operationType"]] for change in changes],
            _moments(changes),
            ids,
            documents("fullDocument") if view.with_new else repeat(None),
            documents("fullDocumentBeforeChange") if view.with_old else repeat(None),
            by_expiry=repeat(None),
            addresses=_names(changes, view),
        )
