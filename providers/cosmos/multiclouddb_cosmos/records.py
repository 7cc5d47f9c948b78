"""Sorts the items of a change feed into the library's order, and derives their keys and positions.

An item of the feed with all versions and deletes contains `current` (the document) and `metadata`. For a
delete, only the metadata contains the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from operator import lt
from typing import Any, Final, TypeAlias

import attrs
import orjson

from multiclouddb_api import ResourceAddress
from multiclouddb_cosmos.position import LIVE, Place

Item: TypeAlias = Mapping[str, Any]

MARKED: Final = "marked"
REFUSED: Final = "refused"
KINDS: Final = ("create", "replace", "delete", MARKED)
"""The types of changes. The last one is the write of an item that is marked as deleted."""
_MOST_LSN: Final = 2**62 - 1
_MOST_SECONDS: Final = 253_402_300_799
_MOST_EXACT: Final = 2.0**53
_DAMAGED: Final = "~"
_NAMED: Final = 20
_COMPARED: Final = 24
"""The form of a place within an LSN: 20 characters for the key, 4 for the number of its change, then the
previous version.
"""
ABSENT: Final = object()
_NO_KEY: Final = (dict, list)
"""The types of values that are never part of a partition key."""
DAMAGED_ERRORS: Final = (
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    AttributeError,
    RecursionError,
    OSError,
)
"""The exceptions that a damaged item can cause."""


@attrs.frozen
class View:
    """The properties that all events of one range share."""

    address: ResourceAddress  # the container that stores the items
    partition_id: str  # the public id of the range
    paths: tuple[tuple[str, ...], ...]  # the path of each component of the partition key, as property names
    with_new: bool = True  # true if events include the new document
    native: bool = False  # true if events include the service's item
    latest: bool = False  # true if the feed contains only latest versions
    marker: tuple[str, ...] = ()  # the path of the property that marks an item as deleted
    names: tuple[str, ...] = attrs.field(init=False)
    """The name of each component of the partition key."""

    @names.default
    def _names(self) -> tuple[str, ...]:
        return tuple("/".join(path) for path in self.paths)


@attrs.frozen(eq=False)
class Records:
    """Items in the library's order, with their positions."""

    items: list[Any]  # the items, as the service returned them
    lsns: list[int]  # the LSN of each item
    inners: list[str | None] | None = None  # the place of each item within its LSN
    orders: list[str] | None = None  # the order key of each item
    past: int | None = None  # the part `past` of the position from which the items were read

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.items)

    def part(self, start: int, stop: int | None = None) -> Records:
        """Return the items from `start` to `stop`."""
        inners, orders = self.inners, self.orders
        return Records(
            self.items[start:stop],
            self.lsns[start:stop],
            None if inners is None else inners[start:stop],
            None if orders is None else orders[start:stop],
            self.past,
        )

    def chosen(self, indexes: list[int]) -> Records:
        """Return the items at the given indexes."""
        if len(indexes) == len(self):
            return self
        return Records(
            [self.items[index] for index in indexes],
            [self.lsns[index] for index in indexes],
            None if self.inners is None else [self.inners[index] for index in indexes],
            None if self.orders is None else [self.orders[index] for index in indexes],
            self.past,
        )

    def inner(self, index: int) -> str | None:
        """Return the place of an item within its LSN."""
        return None if self.inners is None else self.inners[index]

    def number(self, index: int) -> int:
        """Return the number of an item among the changes of its key within its LSN, counted from 0."""
        inner = self.inner(index)
        return 0 if inner is None or inner.startswith(_DAMAGED) else int(inner[_NAMED:_COMPARED])

    def order_key(self, index: int) -> str:
        """Return the order key of an item."""
        return order_key(self.lsns[index]) if self.orders is None else self.orders[index]

    def order(self, index: int) -> tuple[int, str]:
        """Return a sort key for the records of one range."""
        return self.lsns[index], self.inner(index) or ""


def records_of(items: list[Any], place: Place, view: View, *, placed: bool = False) -> Records:
    """Return the items of a page that come after `place`, in the library's order."""
    # An item without an LSN gets the LSN of the item before it, or the lowest possible LSN. Therefore a
    # reader never treats an item without an LSN as already delivered, and can skip such an item.
    lsns = _lsns(items, place.etag)
    if (
        not placed
        and place.inner is None
        and all(map(lt, lsns, lsns[1:]))
        and (not lsns or lsns[0] > place.etag)
    ):
        return Records(items, lsns, past=place.past)
    ordered = sorted(_placed(items, lsns, view), key=lambda each: each[:2])
    kept = [each for each in ordered if is_after(each[0], each[1], place)]
    if place.inner is not None and not any(each[:2] == (place.lsn, place.inner) for each in ordered):
        # Compared with the earlier read, the service has sent the changes of one document in a different
        # order. Therefore all these changes are delivered again.
        kept = [
            each for each in ordered if is_after(each[0], each[1], place) or _is_same(each[0], each[1], place)
        ]
    return Records(
        [each[3] for each in kept],
        [each[0] for each in kept],
        [each[1] for each in kept],
        [each[2] for each in kept],
        place.past,
    )


def as_changes(items: list[Any], view: View, since: int = 0) -> list[Any]:
    """Convert items from the feed of latest versions to the format of the feed with all versions.

    Items whose last change was before the second `since` are left out.
    """
    usual = "replace" if view.latest else "create"
    if not since and not view.marker:
        with suppress(LookupError, TypeError):
            return [
                {
                    "current": item,
                    "metadata": {"operationType": usual, "lsn": item["_lsn"], "crts": item["_ts"]},
                }
                for item in items
            ]
    found = []
    for item in items:
        lsn, seconds = (item.get("_lsn"), item.get("_ts")) if isinstance(item, dict) else (None, None)
        if since > 0 and isinstance(seconds, int) and seconds < since:
            continue
        kind = usual
        if view.marker and (marked := value_at(item, view.marker)) is not ABSENT and marked is not False:
            kind = MARKED if marked is True else REFUSED
        found.append({"current": item, "metadata": {"operationType": kind, "lsn": lsn, "crts": seconds}})
    return found


def value_at(item: Any, path: Sequence[str]) -> Any:
    """Return the value of a property, or `ABSENT`."""
    for name in path:
        item = item.get(name, ABSENT) if isinstance(item, dict) else ABSENT
    return item


def is_after(lsn: int, inner: str, place: Place) -> bool:
    """Return True if a change lies after a position."""
    if place.inner is None:
        return lsn > place.lsn
    return (lsn, inner[:_COMPARED]) > (place.lsn, place.inner[:_COMPARED])


def _is_same(lsn: int, inner: str, place: Place) -> bool:
    """Return True if a change has the same LSN and document as a position inside an LSN."""
    return place.inner is not None and lsn == place.lsn and inner[:_NAMED] == place.inner[:_NAMED]


def _lsns(items: list[Any], etag: int) -> list[int]:
    try:
        lsns = [item["metadata"]["lsn"] for item in items]
        if set(map(type, lsns)) <= {int} and (not lsns or (min(lsns) >= 0 and max(lsns) <= _MOST_LSN)):
            return lsns
    except (LookupError, TypeError):
        pass
    found, last = [], etag + 1
    for item in items:
        last = last if (lsn := lsn_of(item)) is None else lsn
        found.append(last)
    return found


def lsn_of(item: Any) -> int | None:
    """Return the LSN of an item, or None if the item contains no LSN."""
    try:
        lsn = item["metadata"]["lsn"]
    except (LookupError, TypeError):
        return None
    return lsn if type(lsn) is int and 0 <= lsn <= _MOST_LSN else None


def _placed(items: list[Any], lsns: list[int], view: View) -> Iterable[tuple[int, str, str, Any]]:
    """Return the LSN, the place within the LSN, the order key and the item itself for each item."""
    groups: dict[tuple[int, str], list[Any]] = {}
    damaged: dict[int, int] = {}
    for item, lsn in zip(items, lsns, strict=True):
        name = _digest_of(item, view)
        if name is None:
            number = damaged[lsn] = damaged.get(lsn, -1) + 1
            yield lsn, f"{_DAMAGED}{number:06d}", order_key(lsn), item
        else:
            groups.setdefault((lsn, name), []).append(item)
    for (lsn, name), group in groups.items():
        chain = _chain(group, lsn)
        told = blake2b(digest_size=4)
        for number, item in enumerate(chain):
            told.update(_version_of(item).encode())
            inner = f"{name}{number:04d}{told.hexdigest()}" if len(chain) > 1 else f"{name}{number:04d}"
            last = number == len(chain) - 1
            # The last change of a key in an LSN gets the LSN as its order key. The latest version of the item
            # gets the same order key in a scan.
            order = order_key(lsn) if last else f"{order_key(lsn - 1)}.{number:04d}"
            yield lsn, inner, order, item


def _digest_of(item: Any, view: View) -> str | None:
    try:
        if lsn_of(item) is None or item["metadata"]["operationType"] not in KINDS:
            return None
        return name_of(key_of(item, view))
    except DAMAGED_ERRORS:
        return None


def _chain(group: list[Any], lsn: int) -> list[Any]:
    """Sort the changes of one key in one LSN into a possible order of events."""
    # If the document existed before, its first change refers to an earlier LSN. If these rules do not
    # determine the order, the changes stay in the order of the page.
    if len(group) == 1:
        return group
    left = sorted(group, key=lambda item: not _is_first(item, lsn))
    exists = _is_first(left[0], lsn)
    chain: list[Any] = []
    while left:
        wanted = ("replace", "delete") if exists else ("create",)
        found = next((item for item in left if item["metadata"]["operationType"] in wanted), left[0])
        left.remove(found)
        chain.append(found)
        exists = found["metadata"]["operationType"] != "delete"
    return chain


def _is_first(item: Item, lsn: int) -> bool:
    previous = item["metadata"].get("previousImageLSN")
    return isinstance(previous, int) and previous < lsn


def _version_of(item: Item) -> str:
    current = item.get("current")
    if isinstance(current, Mapping) and "_etag" in current:
        return str(current["_etag"])
    return str(item["metadata"].get("previousImageLSN", ""))


# -- Keys


def is_of(item: Item, view: View, wanted: Sequence[Any]) -> bool:
    """Return True if an item's partition key begins with `wanted`, or if the item is damaged."""
    try:
        found = key_of(item, view)
    except DAMAGED_ERRORS:
        return True
    return all(
        name in found and found[name] == value and isinstance(found[name], bool) == isinstance(value, bool)
        for name, value in zip(view.names, wanted, strict=False)
    )


def key_of(item: Item, view: View) -> dict[str, Any]:
    """Return the components of an item's key: its partition key, then `id`."""
    metadata = item["metadata"]
    if metadata["operationType"] == "delete":
        return _deleted(item, metadata, view)
    current = item["current"]
    found: dict[str, Any] = {}
    for full, path in zip(view.names, view.paths, strict=True):
        at = value_at(current, path)
        if type(at) is str:
            found[full] = at
        elif at is not ABSENT and not isinstance(at, _NO_KEY):
            found[full] = _exact(at)
    found["id"] = _text(current["id"])
    return found


def _deleted(item: Item, metadata: Mapping[str, Any], view: View) -> dict[str, Any]:
    previous = item.get("previous") or {}
    key = metadata.get("partitionKey")
    item_id = metadata.get("id", previous.get("id"))
    found: dict[str, Any] = {}
    for full, path in zip(view.names, view.paths, strict=True):
        if key is None:
            value: Any = previous
            for name in path:
                value = value[name]
            if not isinstance(value, _NO_KEY):
                found[full] = _exact(value)
            continue
        # The service's documentation does not say how a nested path is named here.
        for name in (full, "/" + full, path[-1]):
            if name in key:
                if not isinstance(key[name], _NO_KEY):
                    found[full] = _exact(key[name])
                break
    found["id"] = _text(item_id)
    return found


def _exact(value: Any) -> Any:
    """Write equal numbers in the same form, because the service treats 1 and 1.0 as the same key."""
    if type(value) is float and value.is_integer() and abs(value) < _MOST_EXACT:
        return int(value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("an id must be text")
    return value


def name_of(components: Mapping[str, Any]) -> str:
    """Return a short text that represents a key."""
    return blake2b(orjson.dumps(list(components.items())), digest_size=10).hexdigest()


def order_key(lsn: int) -> str:
    """Return the LSN as a text of fixed length. These texts sort in the order of the LSNs."""
    return f"{lsn:020d}"


def place_after(records: Records, count: int) -> Place:
    """Return the position after the first `count` records."""
    lsn, inner = records.lsns[count - 1], records.inner(count - 1)
    past = records.past
    seconds = seconds_of(records.items[count - 1]) if past in (None, LIVE) else None
    if count < len(records) and records.lsns[count] == lsn:
        return Place(lsn, seconds, inner, past)
    damaged = inner is not None and inner.startswith(_DAMAGED)
    # It is not known whether a damaged item is the last item of the preceding LSN.
    return Place(lsn, seconds, inner if damaged else None, past)


def seconds_of(item: Any) -> int | None:
    """Return the time of a change in seconds since 1970, or None if the item contains no time."""
    try:
        seconds = item["metadata"]["crts"]
    except (LookupError, TypeError):
        return None
    return seconds if type(seconds) is int and 0 <= seconds <= _MOST_SECONDS else None
