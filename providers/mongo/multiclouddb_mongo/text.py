"""Converts documents quickly to text in the library's JSON."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import orjson
from bson import DBRef, Decimal128, Int64, ObjectId
from bson.tz_util import utc

from multiclouddb_api import encode_json
from multiclouddb_mongo.tags import TYPES, inner_json
from multiclouddb_mongo.values import portable, portable_decimal

__all__ = ["json_text"]

# `encode_json` refuses more deeply nested documents.
_MOST_DEPTH: Final = 200


def json_text(document: dict[str, Any] | DBRef) -> bytes:
    """Return the same text as `encode_json(portable(document))`, but faster; the document is not changed.

    Args:
        document: A document, a key or an image that PyMongo decoded with `TEXT_CODEC`. The times in
            the document are in UTC and have no time zone.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if a part of the value has no JSON form.
    """
    if type(document) is DBRef:
        document = dict(document.as_doc())
    assert type(document) is dict
    try:
        return orjson.dumps(_object(document, 0), option=orjson.OPT_UTC_Z | orjson.OPT_NAIVE_UTC)
    except (LookupError, TypeError, ValueError):
        # The document is nested too deeply, or did not come from PyMongo. `encode_json` supports more types
        # and raises the right error.
        return encode_json(portable(deepcopy(document)))


def _object(document: dict[str, Any], depth: int) -> Any:
    if depth >= _MOST_DEPTH - 1:
        raise ValueError("nested too deeply")
    found = document.copy()
    for name, value in document.items():
        kind = type(value)
        if kind not in _PLAIN:
            found[name] = _JSON[kind](value, depth + 1)
    # One search checks all names, because hardly any document has a name with a $.
    if "$" in "".join(found) and any(name.startswith("$") for name in found):
        return {"$map": found}
    return found


def _array(values: list[Any], depth: int) -> Any:
    if depth >= _MOST_DEPTH - 1:
        raise ValueError("nested too deeply")
    found = values.copy()
    for index, value in enumerate(values):
        kind = type(value)
        if kind not in _PLAIN:
            found[index] = _JSON[kind](value, depth + 1)
    return found


def _json_float(value: float, _: int) -> Any:
    # The difference is 0 only if the value is finite.
    return value if value - value == 0 else inner_json(value)


def _json_datetime(value: datetime, _: int) -> Any:
    # orjson writes a time in UTC in the same form as rfc3339.
    return {"$date": value} if value.tzinfo is None or value.tzinfo is utc else inner_json(value)


def _json_object_id(value: ObjectId, _: int) -> Any:
    return {"$mongo.objectid": value.binary.hex()}


def _json_decimal(value: Decimal | Decimal128, _: int) -> Any:
    number = portable_decimal(value) if type(value) is Decimal128 else value
    return {"$decimal": str(number)} if type(number) is Decimal else inner_json(number)


def _json_uuid(value: UUID, _: int) -> Any:
    return {"$uuid": str(value)}


def _json_bytes(value: bytes, _: int) -> Any:
    return {"$bytes": b64encode(value).decode("ascii")}


def _json_rare(value: Any, _: int) -> Any:
    return inner_json(value)


# This includes Int64, which orjson writes like an int.
_PLAIN: Final = frozenset({str, int, bool, type(None), Int64})
_JSON: Final[Mapping[type, Callable[[Any, int], Any]]] = {
    **dict.fromkeys(TYPES, _json_rare),
    dict: _object,
    list: _array,
    float: _json_float,
    datetime: _json_datetime,
    ObjectId: _json_object_id,
    Decimal: _json_decimal,
    Decimal128: _json_decimal,
    UUID: _json_uuid,
    bytes: _json_bytes,
}
