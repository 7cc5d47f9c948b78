"""Tests that change documents are converted to events and to Arrow rows with equal content.

If a change cannot be mapped, the error names the first such change.
"""

import tracemalloc
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import bson
import pytest
from bson import DatetimeMS, DBRef, Decimal128, ObjectId
from bson.timestamp import Timestamp
from hypothesis import strategies as st

from multiclouddb_api import ChangeEvent, ChangeType, MulticloudDbKey, ResourceAddress, encode_json
from multiclouddb_api.arrow import EVENT_SCHEMA, events_to_arrow
from multiclouddb_mongo.mapping import MongoMapper, MongoView, time_of
from multiclouddb_mongo.position import After, cursor_of, place_of, start_of, time_text
from multiclouddb_mongo.raw_change import place_of_change, untouched_changes
from multiclouddb_mongo.values import CODEC, decode, normal_key, portable
from multiclouddb_spi import RecordFault
from multiclouddb_spi.faults import digest_in, key_digest

from .fuzz import fuzzed
from .test_values import _documents as documents
from .test_values import _values as values

ADDRESS = ResourceAddress("shop", "orders")
OPERATIONS = {
    "insert": ChangeType.CREATE,
    "update": ChangeType.UPDATE,
    "replace": ChangeType.UPDATE,
    "delete": ChangeType.DELETE,
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOON = datetime(2026, 1, 31, 12, 0, 0, 123000, tzinfo=UTC)
SECONDS = 1_763_634_171
NAMES = [("_id",), ("customer", "_id"), ("country", "customer", "_id")]

moments = st.integers(0, 4_102_444_800_000).map(lambda number: EPOCH + timedelta(milliseconds=number))
stamps = st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))


def token(number, bits=None):
    """Return the resume token of one change; later tokens sort higher."""
    made = {"_data": f"82{SECONDS:08X}{number:08X}2B022C0100296E04"}
    return made if bits is None else made | {"_typeBits": bits}


def raw(change):
    return bson.encode(change, codec_options=CODEC)


def one(number=1, operation="update", **more):
    """Return a change as the server sends it, with additional fields or other values if given."""
    return {
        "_id": token(number),
        "operationType": operation,
        "clusterTime": Timestamp(SECONDS, number),
        "wallTime": NOON,
        "fullDocument": {"_id": number, "n": "new"},
        "fullDocumentBeforeChange": {"_id": number, "n": "old"},
        "ns": {"db": "shop", "coll": "orders"},
        "documentKey": {"_id": number},
    } | more


def to_events(changes, start, stop, view):
    return MongoMapper(view).events(changes, start, stop)


def to_arrow(changes, start, stop, view):
    return MongoMapper(view).arrow(changes, start, stop)


def mapped(change, address=ADDRESS, **look):
    (event,) = to_events([raw(change)], 0, 1, MongoView(address, "p", **look))
    return event


def plain(value):
    return portable(bson.decode(raw({"v": value}), CODEC))["v"]


def survives_pymongo(value):
    """Return whether PyMongo writes what it has read; a key of another form is a poison record."""
    stored = raw({"_id": value})
    return raw(bson.decode(stored, CODEC)) == stored


@st.composite
def changes(draw, number):
    names = draw(st.sampled_from(NAMES))
    more = {}
    for name in ("fullDocument", "fullDocumentBeforeChange"):
        match draw(st.sampled_from(["there", "null", "absent"])):
            case "there":
                more[name] = draw(documents)
            case "null":
                more[name] = None
    change = one(
        number,
        draw(st.sampled_from(list(OPERATIONS))),
        _id=token(number, draw(st.none() | st.binary(max_size=2))),
        clusterTime=draw(stamps),
        wallTime=draw(moments),
        documentKey={name: draw(values.filter(survives_pymongo)) for name in names},
        ns={"db": draw(st.sampled_from(["a", "b"])), "coll": draw(st.sampled_from(["c.d", "ü"]))},
    )
    for name in ("fullDocument", "fullDocumentBeforeChange"):
        del change[name]
    change |= more
    # Fields that newer servers, options and pipelines add or remove.
    if draw(st.booleans()):
        change |= {"lsid": {"id": UUID(int=number)}, "txnNumber": number, "ns2": {"x": draw(values)}}
    if draw(st.booleans()):
        del change["wallTime"]
    return change


@st.composite
def pages(draw):
    found = [draw(changes(number)) for number in range(1, draw(st.integers(1, 5)) + 1)]
    address = draw(st.sampled_from([ADDRESS, ResourceAddress(database="shop"), ResourceAddress()]))
    flags = {name: draw(st.booleans()) for name in ("with_new", "with_old", "native")}
    return found, MongoView(address, "mongo:1.2:0", **flags)


class TestEvents:
    @pytest.fixture(autouse=True)
    def _shown(self, monkeypatch):
        """Old versions of PyMongo do not show a decimal with too many digits."""
        monkeypatch.setattr(Decimal128, "__repr__", lambda decimal: decimal.bid.hex())

    @fuzzed(pages())
    def test_they_have_what_the_changes_have(self, page):
        found, view = page
        for event, change in zip(to_events(list(map(raw, found)), 0, len(found), view), found, strict=True):
            name, stored = change["_id"]["_data"], raw({"key": change["documentKey"]})
            key = normal_key(decode(stored)["key"], stored)
            key = MulticloudDbKey(key, max(1, len(key) - 1))
            kind = OPERATIONS[change["operationType"]]
            time = change.get("wallTime", EPOCH + timedelta(seconds=change["clusterTime"].time))
            where = ResourceAddress(change["ns"]["db"], change["ns"]["coll"])
            where = ADDRESS if view.address.collection else where
            states = event.new_item_state, event.old_item_state
            ends = name, None, False, where, "mongo:1.2:0"
            assert event == ChangeEvent(name, key, kind, time, *states, *ends)
            for state, field, wanted in (
                (event.new_item_state, "fullDocument", view.with_new),
                (event.old_item_state, "fullDocumentBeforeChange", view.with_old),
            ):
                document = change.get(field) if wanted else None
                assert repr(state) == repr(None if document is None else plain(document))
            assert list(event.key.components) == list(change["documentKey"])
            assert event.timestamp.tzinfo is UTC
            assert (event.native is not None) == view.native

    @fuzzed(pages(), st.data())
    def test_arrow_has_the_same(self, page, data):
        found, view = page
        made = list(map(raw, found))
        start = data.draw(st.integers(0, len(found)))
        stop = data.draw(st.integers(start, len(found)))
        batch = to_arrow(made, start, stop, view)
        batch.validate(full=True)
        assert batch.schema == EVENT_SCHEMA
        assert batch.equals(events_to_arrow(to_events(made, start, stop, view)))

    def test_native_is_the_whole_change_with_what_the_vendor_has_for_a_value(self):
        change = one(more={"x": 1}, fullDocument={"_id": 1, "price": Decimal128("1.50")})
        event = mapped(change, native=True)
        assert event.new_item_state["price"] == Decimal("1.50")
        assert event.native == change
        assert mapped(change).native is None

    def test_a_token_of_another_form_names_its_change(self):
        one_, other = (mapped(one(_id={"token": number})).event_id for number in (1, 2))
        assert one_ != other


class TestTime:
    @pytest.mark.parametrize("wall", [None, DatetimeMS(2**62), "now", 7])
    def test_then_the_cluster_time(self, wall):
        assert mapped(one(wallTime=wall)).timestamp == EPOCH + timedelta(seconds=SECONDS)

    def test_and_then_that_of_the_token(self):
        change = one()
        del change["wallTime"], change["clusterTime"]
        assert mapped(change).timestamp == EPOCH + timedelta(seconds=SECONDS)
        assert time_of(change) == EPOCH + timedelta(seconds=SECONDS)

    def test_changes_of_one_moment_and_of_others_keep_theirs(self):
        later = NOON + timedelta(milliseconds=1)
        page = [one(wallTime=moment) for moment in (NOON, NOON, later, NOON, None, later)]
        events = to_events(list(map(raw, page)), 0, 6, MongoView(ADDRESS, "p"))
        cluster = EPOCH + timedelta(seconds=SECONDS)
        assert [event.timestamp for event in events] == [NOON, NOON, later, NOON, cluster, later]


GONE = "gone"
DAMAGES = [
    *({"documentKey": key} for key in (GONE, "a", None, [1], {})),
    *({"operationType": operation} for operation in (GONE, "truncate", {"$ref": "x"})),
    *({"ns": namespace} for namespace in (GONE, "shop.orders", {"db": "shop"})),
    {"fullDocument": "a"},
    {"fullDocumentBeforeChange": 7},
    {"wallTime": None, "clusterTime": "soon"},
]
POISON = raw(one(fullDocument={"text": "damaged"})).replace(b"damaged", b"damage\xff")


@pytest.mark.parametrize("mapping", [to_events, to_arrow], ids=["events", "arrow"])
class TestPoison:
    VIEW = MongoView(ResourceAddress(), "p", with_old=True)

    @pytest.mark.parametrize("index", [0, 3])
    @pytest.mark.parametrize("damage", DAMAGES, ids=str)
    def test_the_first_that_cannot_be_mapped_is_named(self, mapping, damage, index):
        page = [one(number) | (damage if number >= index else {}) for number in range(4)]
        page = [{name: each for name, each in change.items() if each is not GONE} for change in page]
        with pytest.raises(RecordFault) as caught:
            mapping(list(map(raw, page)), 0, 4, self.VIEW)
        fault = caught.value
        assert fault.index == index
        place = After("e", token(index)["_data"])
        assert place_of(fault.skip_cursor) == place
        assert fault.position.startswith(time_text(place))

    @pytest.mark.parametrize("index", [0, 3])
    def test_text_that_is_no_utf_8(self, mapping, index):
        page = [raw(one(number)) for number in range(4)]
        page[index] = POISON.replace(raw(token(1))[4:], raw(token(index))[4:])
        with pytest.raises(RecordFault, match="UTF-8") as caught:
            mapping(page, 0, 4, self.VIEW)
        assert caught.value.index == index
        assert caught.value.skip_cursor == cursor_of(After("e", token(index)["_data"]))

    @pytest.mark.parametrize("change", [POISON, raw(one(1) | {"documentKey": 1})], ids=["text", "key"])
    def test_behind_it_the_start_is_still_known(self, mapping, change):
        """The position after a poison record keeps the start of the feed."""
        # If a collection ended before this start, it was an earlier collection with the same name.
        view = MongoView(ADDRESS, "p", start=2**64 - 1)
        with pytest.raises(RecordFault) as caught:
            mapping([change], 0, 1, view)
        assert start_of(caught.value.skip_cursor) == 2**64 - 1

    def test_what_is_in_front_of_it_and_behind_it_is_mapped(self, mapping):
        page = [raw(one(1)), POISON, raw(one(3))]
        assert len(mapping(page, 0, 1, self.VIEW)) == 1
        assert len(mapping(page, 2, 3, self.VIEW)) == 1
        with pytest.raises(RecordFault) as caught:
            mapping(page, 1, 3, self.VIEW)
        assert caught.value.index == 1


def test_a_document_that_looks_like_a_reference_is_a_document():
    document = {"_id": 1, "$ref": "c", "$id": 2}
    event = mapped(one(fullDocument=document, fullDocumentBeforeChange=document), with_old=True)
    assert event.new_item_state == event.old_item_state == document
    inner = mapped(one(fullDocument={"a": {"$ref": "c", "$id": 2}})).new_item_state
    assert inner == {"a": DBRef("c", 2)}


class TestPlace:
    """Tests that the position of a change is read from its bytes, without decoding the change."""

    @fuzzed(changes(3))
    def test_it_is_that_of_its_token(self, change):
        place = place_of_change(raw(change))
        assert place.kind == "e"
        assert place.token() == change["_id"]

    @pytest.mark.parametrize("part", [1, 2])
    def test_a_fragment_is_no_whole_change(self, part):
        change = one()
        assert untouched_changes([raw(change)]) == 1
        assert not untouched_changes([raw(change | {"splitEvent": {"fragment": part, "of": 2}})])

    def test_a_token_that_does_not_come_first(self):
        change = {"operationType": "insert"} | one()
        assert place_of_change(raw(change)).token() == token(1)


@pytest.mark.parametrize("text", ["a" * (1 << 24), "a" * (1 << 24) + "\x13"])
def test_a_large_change_is_mapped_without_a_copy_of_its_bytes(text):
    """PyMongo passes it as a view of the answer, which exists anyway."""
    change = memoryview(raw(one(fullDocument={"_id": 1, "text": text})))
    mapper = MongoMapper(MongoView(ADDRESS, "mongo:x:0"))
    tracemalloc.start()
    try:
        (event,) = mapper.events([change], 0, 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert event.new_item_state == {"_id": 1, "text": text}
    assert peak < 1.5 * len(text)


@pytest.mark.parametrize(
    "key",
    [
        {"_id": ObjectId("6b0ab06b73134ff611626a39")},
        {"_id": Decimal128("1.50")},
        {"_id": {"b": 1, "a": b"x"}},
        {"region": "eu", "_id": 2.0},
    ],
    ids=str,
)
def test_the_position_of_a_change_names_the_key_that_its_event_has(key):
    mapper = MongoMapper(MongoView(ResourceAddress("shop", "orders"), "p"))
    change = raw(one(0) | {"documentKey": key})
    (event,) = mapper.events([change], 0, 1)
    damaged = raw(one(0) | {"documentKey": key, "fullDocument": {"text": "damaged"}})
    position = mapper.fault([damaged.replace(b"damaged", b"damage\xff")], 0, None).position
    assert digest_in(position) == key_digest(encode_json(event.key.components).decode())
