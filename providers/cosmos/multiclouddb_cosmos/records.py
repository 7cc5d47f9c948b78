"""Sorts the items of a change feed into the library's order, and derives their keys and positions.

An item of the feed with all versions and deletes contains `current` (the document) and `metadata`. For a
delete, only the metadata contains the key. An item of the feed of latest versions is the document alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from hashlib import blake2b
from operator import itemgetter, lt
from typing import Any, Final, TypeAlias, cast

import attrs
import orjson
from attrs import frozen

from multiclouddb_api import MulticloudDbKey, invalid_request
from multiclouddb_cosmos.position import LIVE, Place
from multiclouddb_spi import DAMAGED
from multiclouddb_spi import View as CommonView

Item: TypeAlias = Mapping[str, Any]

MARKED: Final = "marked"
REFUSED: Final = "refused"
ROW: Final = "create"
UPSERT: Final = "replace"
KINDS: Final = (ROW, UPSERT, "delete", MARKED)
"""The types of changes. The last one is the write of an item that is marked as deleted."""
_MOST_LSN: Final = 2**62 - 1
MOST_SECONDS: Final = 253_402_300_799
_MOST_EXACT: Final = 2.0**53
_DAMAGED: Final = "~"
_DIGITS: Final = 20
_NAMED: Final = 20
_COMPARED: Final = 24
"""The form of a place within an LSN: 20 characters for the key, 4 for the number of its change, then the
previous version.
"""
ABSENT: Final = object()
SYSTEM: Final = frozenset({"_rid", "_self", "_etag", "_attachments", "_ts"})
"""The properties of a document that the service writes, also over those of a user, and that are taken out."""
LSN: Final = "_lsn"
"""The property that the service adds to a document in the feed of latest versions, and nowhere else.

It is taken out of a document that comes from this feed. A document can have a property of this name of its
own (microsoft/kafka-connect-cosmosdb issue 46); then the feed contains the name twice.
"""
_TOLD: Final = itemgetter("_rid", "_etag", "_ts")
NO_KEY: Final = (dict, list)
"""The types of values that are never part of a partition key."""


class UnknownKey(ValueError):  # noqa: N818 - its name stands in the message of the fault
    """Raised for a delete whose partition key is told in a form that is not known."""


class Halved(dict[str, Any]):
    """A document with half of a surrogate pair or a text that is no UTF-8, which no event can hold."""


def with_halves_marked(documents: list[Any]) -> list[Any]:
    """Return the documents of a page; those with half of a surrogate pair are `Halved`."""
    return [Halved(each) if isinstance(each, dict) and is_halved(each) else each for each in documents]


def is_halved(document: dict[str, Any]) -> bool:
    """Return True if a document has half of a surrogate pair in a text or a name."""
    if isinstance(document, Halved):
        return True
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


class Doubled(dict[str, Any]):
    """A document in which the feed of latest versions has `_lsn` twice; it contains the service's."""

    own: Any = None  # the value of the document's own property

    def copy(self) -> Doubled:
        """Return a copy with the same value of the document's own property."""
        made = Doubled(self)
        made.own = self.own
        return made


@frozen
class CosmosView(CommonView):
    """What all events of one range share."""

    paths: tuple[tuple[str, ...], ...]  # the path of each component of the partition key, as property names
    usual: str | None = None  # the type of each change if the items are documents alone
    marker: tuple[str, ...] = ()  # the path of the property that marks an item as deleted
    single: bool = False  # true if the items were read one by one, and not from a feed
    names: tuple[str, ...] = attrs.field(init=False)
    """The name of each component of the partition key."""

    @names.default
    def _names(self) -> tuple[str, ...]:
        return tuple("/".join(path) for path in self.paths)

    @property
    def is_whole(self) -> bool:
        """Return True if the service's own properties of a document are needed."""
        return self.native or any(path[:1] and path[0] in SYSTEM for path in (*self.paths, self.marker))

    @property
    def with_lsn(self) -> bool:
        """Return True if the service has added `_lsn` to the documents."""
        return self.usual is not None and not self.single


@frozen(eq=False)
class Records:
    """Items in the library's order, with their positions."""

    items: list[Any]  # the items; from a document alone, the service's own properties can be taken out
    lsns: list[int]  # the LSN of each item
    inners: list[str | None] | None = None  # the place of each item within its LSN
    orders: list[str] | None = None  # the order key of each item
    told: list[Any] | None = None  # only of documents alone: `_rid`, `_etag` and `_ts`; None if damaged
    afters: list[int | None] | None = None  # of an item without an LSN: the highest LSN that it can have
    past: int | None = attrs.field(default=None, kw_only=True)
    """The part `past` of the position from which the items were read."""

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.items)

    @property
    def columns(self) -> tuple[list[Any] | None, ...]:
        """Return the lists with one entry for each item."""
        return self.items, self.lsns, self.inners, self.orders, self.told, self.afters

    def part(self, start: int, stop: int | None = None) -> Records:
        """Return the items from `start` to `stop`."""
        taken: Any = [None if column is None else column[start:stop] for column in self.columns]
        return Records(*taken, past=self.past)

    def chosen(self, indexes: list[int]) -> Records:
        """Return the items at the given indexes."""
        return self if len(indexes) == len(self) else picked([self], [(0, index) for index in indexes])

    def seconds(self, index: int) -> int | None:
        """Return the time of a change in seconds since 1970, or None if the item contains no time."""
        if self.told is None:
            return seconds_of(self.items[index], bare=False)
        found = self.told[index]
        return None if found is None else _checked_seconds(found[2])

    def inner(self, index: int) -> str | None:
        """Return the place of an item within its LSN."""
        return None if self.inners is None else self.inners[index]

    def is_numbered(self, index: int) -> bool:
        """Return False if an item has no LSN, so that nobody knows its place among the changes of its key."""
        if self.afters is not None and self.afters[index] is not None:
            return False
        return not (self.inner(index) or "").startswith(_DAMAGED)

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


def picked(parts: Sequence[Records], places: Sequence[tuple[int, int]]) -> Records:
    """Return the items at some places, each of which is the number of a part and an index in this part."""
    if not places:
        return Records([], [], past=parts[0].past)
    columns, first = [part.columns for part in parts], parts[places[0][0]]
    taken: Any = [
        None if column is None else [columns[number][at][index] for number, index in places]  # type: ignore[index]
        for at, column in enumerate(first.columns)
    ]
    return Records(*taken, past=first.past)


def records_of(
    items: list[Any], place: Place, view: CosmosView, *, placed: bool = False, reached: int | None = None
) -> Records:
    """Return the items of a page that come after `place`, in the library's order.

    `reached` is the LSN up to which the service has read for the page.
    """
    # An item without an LSN gets the LSN of the item before it, or the lowest possible LSN. Therefore a
    # reader never treats an item without an LSN as already delivered. A position that skips such an item
    # lies before the next LSN of the page; otherwise the item would have to be skipped again and again.
    bare = view.usual is not None
    known = _known_lsns(items, bare=bare)
    lsns, afters = _filled(known, place.etag), None
    if reached is not None and None in known:
        afters = _afters(known, reached)
    if (
        not placed
        and place.inner is None
        and all(map(lt, lsns, lsns[1:]))
        and (not lsns or lsns[0] > place.etag)
    ):
        found = Records(items, lsns, afters=afters, past=place.past)
        return bared(found, view) if bare else found
    ordered = sorted(_placed(items, lsns, view, afters), key=lambda each: each[:2])
    kept = [each for each in ordered if is_after(each[0], each[1], place)]
    if place.inner is not None and not any(each[:2] == (place.lsn, place.inner) for each in ordered):
        # Compared with the earlier read, the service has sent the changes of one document in a different
        # order. Therefore all these changes are delivered again.
        kept = [
            each for each in ordered if is_after(each[0], each[1], place) or _is_same(each[0], each[1], place)
        ]
    found = Records(
        [each[3] for each in kept],
        [each[0] for each in kept],
        [each[1] for each in kept],
        [each[2] for each in kept],
        afters=None if afters is None else [each[4] for each in kept],
        past=place.past,
    )
    return bared(found, view) if bare else found


def bared(records: Records, view: CosmosView) -> Records:
    """Take the service's own properties out of documents that come alone."""
    # The documents belong to the page alone, so they need not be copied, which would take as long as all the
    # other steps of a page together.
    whole = records.items
    try:
        told: list[Any] = list(map(_TOLD, whole))
    except DAMAGED:
        names = {"_rid", "_etag", "_ts"}
        are_whole = [isinstance(item, dict) and names <= item.keys() for item in whole]
        told = [_TOLD(item) if is_whole else None for item, is_whole in zip(whole, are_whole, strict=True)]
        whole = [item for item, is_whole in zip(whole, are_whole, strict=True) if is_whole]
    if not view.is_whole:
        take_out_system(whole, with_lsn=view.with_lsn)
    return attrs.evolve(records, told=told)


def take_out_system(documents: Iterable[dict[str, Any]], *, with_lsn: bool) -> None:
    """Take the service's own properties out of documents, and with `with_lsn` also its `_lsn`."""
    for document in documents:
        try:
            del document["_rid"], document["_self"], document["_etag"]
            del document["_attachments"], document["_ts"]
        except KeyError:
            for name in SYSTEM:
                document.pop(name, None)
        if with_lsn:
            document.pop(LSN, None)
            if type(document) is Doubled:
                document[LSN] = document.own


def told_apart(documents: list[Any], after: int, reached: int) -> list[Any]:
    """Return the documents of a page of latest versions, with the service's LSNs as `_lsn`.

    Args:
        documents: The documents. One with several properties `_lsn` is a `Doubled`, whose `own` is the list
            of all their values.
        after: The LSN after which the page begins.
        reached: The LSN up to which the page goes.
    """
    # The LSNs of a page ascend. The service writes its own after all other properties.
    found, last = [], after
    for document in documents:
        if type(document) is not Doubled:
            found.append(document)
            last = max(last, lsn_of(document, bare=True) or 0)
            continue
        values = document.own
        fitting = [
            index
            for index, value in enumerate(values)
            if type(value) is int and max(last, after + 1) <= value <= reached
        ]
        index = fitting[-1] if fitting else len(values) - 1
        document[LSN] = values[index]
        left = values[:index] + values[index + 1 :]
        document.own = left[-1]
        last = max(last, lsn_of(document, bare=True) or 0)
        found.append(document)
    return found


def kind_of(item: Item, view: CosmosView) -> str:
    """Return the type of a change."""
    if view.usual is None:
        kind: str = item["metadata"]["operationType"]
        return kind
    marked = value_at(item, view.marker) if view.marker else False
    if marked is ABSENT or marked is False:
        return view.usual
    return MARKED if marked is True else REFUSED


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


def _known_lsns(items: list[Any], *, bare: bool) -> list[int | None]:
    """Return the LSN of each item, or None for an item without one."""
    try:
        lsns: list[Any] = [item["_lsn"] if bare else item["metadata"]["lsn"] for item in items]
        if set(map(type, lsns)) <= {int} and (not lsns or (min(lsns) >= 0 and max(lsns) <= _MOST_LSN)):
            return lsns
    except (LookupError, TypeError):
        pass
    return [lsn_of(item, bare=bare) for item in items]


def _filled(known: Sequence[int | None], etag: int) -> list[int]:
    """Return for each item its own LSN, that of the item before it, or the lowest possible one."""
    if None not in known:
        return cast("list[int]", known)
    found, last = [], etag + 1
    for lsn in known:
        last = last if lsn is None else lsn
        found.append(last)
    return found


def _afters(known: Sequence[int | None], reached: int) -> list[int | None]:
    """Return the highest possible LSN of each item without an LSN, if an LSN or the page's end follows."""
    following = [*known[1:], reached + 1]
    return [
        later - 1 if lsn is None and later is not None else None
        for lsn, later in zip(known, following, strict=True)
    ]


def lsn_of(item: Any, *, bare: bool) -> int | None:
    """Return the LSN of an item, or None if the item contains no LSN."""
    try:
        lsn = item["_lsn"] if bare else item["metadata"]["lsn"]
    except (LookupError, TypeError):
        return None
    return lsn if type(lsn) is int and 0 <= lsn <= _MOST_LSN else None


def _placed(
    items: list[Any], lsns: list[int], view: CosmosView, afters: list[int | None] | None
) -> Iterable[tuple[int, str, str, Any, int | None]]:
    """Return for each item the LSN, the place in it, the order key, the item and its highest possible LSN."""
    groups: dict[tuple[int, str], list[Any]] = {}
    damaged: dict[int, int] = {}
    for item, lsn, after in zip(items, lsns, afters or [None] * len(items), strict=True):
        name = _digest_of(item, view)
        if name is None:
            number = damaged[lsn] = damaged.get(lsn, -1) + 1
            yield lsn, f"{_DAMAGED}{number:06d}", order_key(lsn), item, after
        else:
            groups.setdefault((lsn, name), []).append(item)
    for (lsn, name), group in groups.items():
        # In the feed of latest versions, the changes stay in the order of the page.
        chain = _chain(group, lsn) if view.usual is None else group
        told = blake2b(digest_size=4)
        for number, item in enumerate(chain):
            told.update(_version_of(item).encode())
            inner = f"{name}{number:04d}{told.hexdigest()}" if len(chain) > 1 else f"{name}{number:04d}"
            last = number == len(chain) - 1
            # The last change of a key in an LSN gets the LSN as its order key. The latest version of the item
            # gets the same order key in a scan.
            order = order_key(lsn) if last else f"{order_key(lsn - 1)}.{number:04d}"
            yield lsn, inner, order, item, None


def _digest_of(item: Any, view: CosmosView) -> str | None:
    try:
        if lsn_of(item, bare=view.usual is not None) is None or kind_of(item, view) not in KINDS:
            return None
        return name_of(key_of(item, view))
    except DAMAGED:
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
    # Where a create has no earlier version, some of the vendor's own forms say 0.
    previous = item["metadata"].get("previousImageLSN")
    return isinstance(previous, int) and 0 < previous < lsn


def _version_of(item: Item) -> str:
    if "metadata" not in item or "_etag" in item:  # a document alone
        return str(item.get("_etag", ""))
    current = item.get("current")
    if isinstance(current, Mapping) and "_etag" in current:
        return str(current["_etag"])
    return str(item["metadata"].get("previousImageLSN", ""))


# -- Keys


def is_of(item: Item, view: CosmosView, wanted: Sequence[Any]) -> bool:
    """Return True if an item's partition key begins with `wanted`, or if the item is damaged."""
    try:
        found = key_of(item, view)
    except DAMAGED:
        return True
    return all(
        name in found and found[name] == value and isinstance(found[name], bool) == isinstance(value, bool)
        for name, value in zip(view.names, wanted, strict=False)
    )


def spellings(value: Any) -> tuple[Any, ...]:
    """Return the doubles that have this normal form; they lie in different places."""
    return (0.0, -0.0) if type(value) is int and value == 0 else (value,)


def normal_key(key: MulticloudDbKey) -> MulticloudDbKey:
    """Return the form that the key of an event has; refuse a key that no item can have."""
    components = {name: given(name, value, "keys") for name, value in key.components.items()}
    return MulticloudDbKey(components, len(key.partition_key))


def given(name: str, value: Any, field: str) -> Any:
    """Return the one form of a component that the caller gave in `field`; refuse what no item can have."""
    # azure-cosmos would take the elements of bytes or of a list for the levels of a partition key.
    if value is None or isinstance(value, str | bool):
        return value
    if not isinstance(value, int | float | Decimal):
        raise invalid_request(
            field,
            f"has a key whose {name!r} is of type {type(value).__name__}, which no item can have",
            "give text, a number, true, false or null, as event.key has it",
        )
    try:
        number = normal(value)
    except (OverflowError, ValueError):  # an int beyond all doubles, or Decimal("sNaN")
        number = math.nan
    if not math.isfinite(number):
        raise invalid_request(
            field,
            f"has a key whose {name!r} is a number that Cosmos DB cannot store",
            "give a finite number that a double can hold, up to about 1.8E308",
        )
    return number


def key_of(item: Item, view: CosmosView) -> dict[str, Any]:
    """Return the components of an item's key: its partition key, then `id`."""
    current = item
    if view.usual is None:
        metadata = item["metadata"]
        if metadata["operationType"] == "delete":
            return _deleted(item, metadata, view)
        current = item["current"]
    found: dict[str, Any] = {}
    for full, path in zip(view.names, view.paths, strict=True):
        at = value_at(current, path)
        if type(at) is str:
            found[full] = at
        elif at is not ABSENT and not isinstance(at, NO_KEY):
            found[full] = normal(at)
    found["id"] = _text(current["id"])
    return found


def _deleted(item: Item, metadata: Mapping[str, Any], view: CosmosView) -> dict[str, Any]:
    previous = item.get("previous") or {}
    key = metadata.get("partitionKey")
    item_id = metadata.get("id", previous.get("id"))
    if key is not None and not isinstance(key, dict):
        raise UnknownKey
    found: dict[str, Any] = {}
    known = set[str]()
    for full, path in zip(view.names, view.paths, strict=True):
        if key is None:
            value: Any = previous
            for name in path:
                value = value[name]
        else:
            # The service's documentation does not say how a nested path is named here.
            names = (full, "/" + full, path[-1])
            known.update(names)
            value = next((key[name] for name in names if name in key), ABSENT)
            if value is ABSENT and (value := value_at(key, path)) is not ABSENT:
                known.add(path[0])
        if value is not ABSENT and not isinstance(value, NO_KEY):
            found[full] = normal(value)
    # The service has changed the form of a delete before (Azure/azure-sdk-for-java PR 43881). A component
    # under an unknown name must not be taken for one that the item lacked: the key would be another item's.
    if key is not None and len(found) < len(view.paths) and not known.issuperset(key):
        raise UnknownKey
    found["id"] = _text(item_id)
    return found


def normal(value: Any) -> Any:
    """Return the one form of a component of a key.

    The service keeps a number in a partition key as a double (Azure/azure-cosmos-dotnet-v3 issue 3116), and
    each answer may spell it in another way. So 1, 1.0 and 1e0 become 1; 0 and -0.0 become 0; and from 2^53
    on, a number becomes the float that is next to it.

    0 and -0.0 have different places in EffectivePartitionKeyBaselineTest of Azure/azure-cosmos-dotnet-v3, so
    they are two items for the service. But nothing says that a delete keeps the sign, and a delete under the
    wrong one of two keys would remove the wrong row, or leave one for ever.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value
    number = float(value)
    return int(number) if number.is_integer() and abs(number) < _MOST_EXACT else number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("an id must be text")
    return value


def name_of(components: Mapping[str, Any]) -> str:
    """Return a short text that represents a key."""
    return blake2b(orjson.dumps(list(components.items())), digest_size=10).hexdigest()


def order_key(lsn: int) -> str:
    """Return the LSN as a text of fixed length. These texts sort in the order of the LSNs."""
    return str(lsn).zfill(_DIGITS)


def order_keys(lsns: Iterable[int]) -> list[str]:
    """Return the order key of each LSN."""
    return [str(lsn).zfill(_DIGITS) for lsn in lsns]


def place_after(records: Records, count: int) -> Place:
    """Return the position after the first `count` records."""
    lsn, inner = records.lsns[count - 1], records.inner(count - 1)
    past = records.past
    seconds = records.seconds(count - 1) if past in (None, LIVE) else None
    after = None if records.afters is None else records.afters[count - 1]
    if after is not None and after >= lsn:
        return Place(after, seconds, None, past)
    if count < len(records) and records.lsns[count] == lsn:
        return Place(lsn, seconds, inner, past)
    damaged = inner is not None and inner.startswith(_DAMAGED)
    # It is not known whether a damaged item is the last item of the preceding LSN.
    return Place(lsn, seconds, inner if damaged else None, past)


def seconds_of(item: Any, *, bare: bool) -> int | None:
    """Return the time of a change in seconds since 1970, or None if the item contains no time."""
    try:
        seconds = item["_ts"] if bare else item["metadata"]["crts"]
    except (LookupError, TypeError):
        return None
    return _checked_seconds(seconds)


def _checked_seconds(seconds: Any) -> int | None:
    return seconds if type(seconds) is int and 0 <= seconds <= MOST_SECONDS else None
