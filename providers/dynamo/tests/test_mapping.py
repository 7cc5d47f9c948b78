"""Tests that stream records are converted to events and to Arrow rows with equal content.

If a record is damaged, the error names the first damaged record.
"""

import copy
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiclouddb_api import ChangeEvent, ChangeType, MulticloudDbKey, ResourceAddress
from multiclouddb_api.arrow import EVENT_SCHEMA, events_to_arrow
from multiclouddb_dynamo.mapping import View, order_key, seconds_of, seq_of, to_arrow, to_events
from multiclouddb_dynamo.position import After, place_of
from multiclouddb_spi import RecordFault

from .test_values import documents, tagged, texts
from .world import patiently

ADDRESS = ResourceAddress(collection="orders")
SHARD = "shardId-00000001541626099285-f35f62ef"
NAMES = [("pk",), ("pk", "$sk")]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BY_SERVICE = {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"}
IMAGES = {
    "KEYS_ONLY": (),
    "NEW_IMAGE": ("NewImage",),
    "OLD_IMAGE": ("OldImage",),
    "NEW_AND_OLD_IMAGES": ("NewImage", "OldImage"),
}
HAS = {"INSERT": {"NewImage"}, "MODIFY": {"NewImage", "OldImage"}, "REMOVE": {"OldImage"}}
TYPES = {"INSERT": ChangeType.CREATE, "MODIFY": ChangeType.UPDATE, "REMOVE": ChangeType.DELETE}
MALFORMED_IDENTITIES = ["Service", 7, ["Type"]]

key_values = st.one_of(
    texts.filter(bool).map(lambda text: tagged("S", text)),
    st.integers(-(10**38) + 1, 10**38 - 1).map(lambda number: tagged("N", number, str(number))),
    st.just(tagged("B", b"hi", "aGk=", b"hi")),
)

identities = st.sampled_from(
    [
        None,
        {},
        BY_SERVICE,
        {"principalId": "dynamodb.amazonaws.com", "type": "Service"},
        {"PrincipalId": "replication.dynamodb.amazonaws.com", "Type": "Service"},
        {"PrincipalId": "dynamodb.amazonaws.com", "Type": "User"},
    ]
)
clocks = st.integers(0, 4_102_444_800) | st.sampled_from(
    [1_763_634_171.0, 1_763_634_171.25, 1_763_634_171.0625]
)


@st.composite
def records(draw, names, kind, seq):
    """Return one record in three forms: as sent on the wire, as parsed by boto3, and as Python values."""
    event = draw(st.sampled_from(list(TYPES)))
    keys = {name: draw(key_values) for name in names}
    seconds, event_id, identity = draw(clocks), draw(st.sampled_from(["", "id"])), draw(identities)
    images = {name: draw(documents) for name in IMAGES[kind] if name in HAS[event]}
    forms = []
    for form in (1, 2):
        data = {
            "Keys": {name: value[form] for name, value in keys.items()},
            "SequenceNumber": seq,
            "ApproximateCreationDateTime": seconds if form == 1 else EPOCH + timedelta(seconds=seconds),
            "StreamViewType": kind,
            **{name: image[form] for name, image in images.items()},
        }
        record = {"eventName": event, "dynamodb": data}
        if event_id:
            record["eventID"] = f"{event_id}-{seq}"
        if identity is not None:
            record["userIdentity"] = identity
        forms.append(record)
    values = {name: image[0] for name, image in images.items()}
    return *forms, {"key": {name: value[0] for name, value in keys.items()}, **values}


@st.composite
def shards(draw):
    """Return records of one shard in three forms, with the reader for each form."""
    names, kind = draw(st.sampled_from(NAMES)), draw(st.sampled_from(list(IMAGES)))
    first = draw(st.integers(1, 10**24))
    rows = [draw(records(names, kind, f"{first + number:021}")) for number in range(draw(st.integers(1, 5)))]
    view = View(
        ADDRESS,
        f"dynamo:1.2:{SHARD}",
        SHARD,
        names,
        with_new=draw(st.booleans()),
        with_old=draw(st.booleans()),
    )
    wire, parsed, values = (list(column) for column in zip(*rows, strict=True))
    return wire, parsed, values, view


def one(event="INSERT", *, images=("NewImage",), **more):
    """Return a record of one item."""
    data = {
        "Keys": {"pk": {"S": "a"}},
        "SequenceNumber": "000000000000000000042",
        "ApproximateCreationDateTime": 1_763_634_171,
        **{name: {"pk": {"S": "a"}, "n": {"N": "1"}} for name in images},
    }
    return {"eventID": "e", "eventName": event, "dynamodb": data, **more}


def mapped(record, **look):
    (event,) = to_events([record], 0, 1, View(ADDRESS, "p", SHARD, ("pk",), **look))
    return event


class TestEvents:
    @patiently
    @given(shards())
    def test_they_have_what_the_records_have(self, shard):
        wire, parsed, values, view = shard
        for form in (wire, parsed):
            for event, record, value in zip(to_events(form, 0, len(form), view), wire, values, strict=True):
                data = record["dynamodb"]
                assert event == ChangeEvent(
                    event_id=record.get("eventID") or f"{SHARD}:{data['SequenceNumber']}",
                    key=MulticloudDbKey(value["key"]),
                    type=TYPES[record["eventName"]],
                    timestamp=EPOCH + timedelta(seconds=data["ApproximateCreationDateTime"]),
                    new_item_state=value.get("NewImage") if view.with_new else None,
                    old_item_state=value.get("OldImage") if view.with_old else None,
                    order_key=order_key(data["SequenceNumber"]),
                    by_expiry=event.by_expiry,
                    backfilled=False,
                    address=ADDRESS,
                    partition_id=view.partition_id,
                )
                assert list(event.key.components) == list(view.key_names)
                assert event.native is None
            assert [each.event_id for each in to_events(form, 0, len(form), view)] == [
                each.event_id for each in to_events(parsed, 0, len(form), view)
            ]

    @patiently
    @given(shards(), st.data())
    def test_arrow_has_the_same(self, shard, data):
        wire, parsed, _, view = shard
        start = data.draw(st.integers(0, len(wire)))
        stop = data.draw(st.integers(start, len(wire)))
        expected = events_to_arrow(to_events(wire, start, stop, view))
        for form in (wire, parsed):
            found = to_arrow(form, start, stop, view)
            assert found.schema == EVENT_SCHEMA
            assert found.equals(expected)
            found.validate(full=True)

    @pytest.mark.parametrize("kind", IMAGES)
    @pytest.mark.parametrize("event", HAS)
    def test_an_item_is_whole_or_not_there(self, kind, event):
        there = [name for name in IMAGES[kind] if name in HAS[event]]
        found = mapped(one(event, images=there), with_old=True)
        item = {"pk": "a", "n": 1}
        assert found.new_item_state == (item if "NewImage" in there else None)
        assert found.old_item_state == (item if "OldImage" in there else None)

    def test_an_item_that_was_not_asked_for_is_not_decoded(self):
        record = one("MODIFY", images=["NewImage", "OldImage"])
        record["dynamodb"]["NewImage"] = record["dynamodb"]["OldImage"] = {"a": "damaged"}
        assert mapped(record, with_new=False).new_item_state is None

    def test_native_is_the_record_itself(self):
        record = one()
        assert mapped(record, native=True).native is record
        assert mapped(record).native is None

    def test_the_key_is_in_the_table_s_order(self):
        record = one()
        record["dynamodb"]["Keys"] = {"sk": {"N": "7"}, "pk": {"S": "a"}}
        (event,) = to_events([record], 0, 1, View(ADDRESS, "p", SHARD, ("pk", "sk")))
        assert (event.key.partition_key, event.key.sort_key) == ({"pk": "a"}, {"sk": 7})


class TestExpiry:
    @pytest.mark.parametrize(
        "identity", [BY_SERVICE, {name.lower(): value for name, value in BY_SERVICE.items()}], ids=str
    )
    def test_a_delete_by_the_service_in_both_spellings(self, identity):
        assert mapped(one("REMOVE", images=(), userIdentity=identity)).by_expiry is True
        assert mapped(one("MODIFY", userIdentity=identity)).by_expiry is False

    @pytest.mark.parametrize(
        "more",
        [
            {},
            {"userIdentity": None},
            {"userIdentity": {}},
            {"userIdentity": {"PrincipalId": "dynamodb.amazonaws.com"}},
            {"userIdentity": {"PrincipalId": "AIDAEXAMPLE", "Type": "Service"}},
            {"userIdentity": {"PrincipalId": "dynamodb.amazonaws.com", "Type": "User"}},
        ],
        ids=str,
    )
    def test_any_other_delete(self, more):
        assert mapped(one("REMOVE", images=(), **more)).by_expiry is False


class TestTime:
    @pytest.mark.parametrize(
        "moment",
        [
            1_763_634_171,
            1_763_634_171.0,
            datetime(2025, 11, 20, 10, 22, 51, tzinfo=UTC),
            datetime.fromisoformat("2025-11-20T12:22:51+02:00"),
        ],
        ids=str,
    )
    def test_the_same_in_every_form(self, moment):
        record = one()
        record["dynamodb"]["ApproximateCreationDateTime"] = moment
        event = mapped(record)
        assert event.timestamp.isoformat() == "2025-11-20T10:22:51+00:00"
        assert seconds_of(record) == 1_763_634_171

    @pytest.mark.parametrize("moment", [None, "1763634171", -1, [], {}])
    def test_none_that_makes_sense(self, moment):
        record = one()
        record["dynamodb"]["ApproximateCreationDateTime"] = moment
        assert seconds_of(record) is None
        del record["dynamodb"]["ApproximateCreationDateTime"]
        assert seconds_of(record) is None


class TestOrder:
    @patiently
    @given(*[st.integers(0, 10**39) | st.integers(0, 1000)] * 2, st.integers(0, 40))
    def test_it_sorts_as_the_numbers_do(self, a, b, width):
        left, right = order_key(f"{a:0{width}}"), order_key(str(b))
        assert (left < right, left == right) == (a < b, a == b)

    @pytest.mark.parametrize("seq", ["", "-1", "1.0", "\u0667", "x", "7" * 41, 7, None])
    def test_what_is_no_sequence_number(self, seq):
        record = one()
        record["dynamodb"]["SequenceNumber"] = seq
        with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
            seq_of(record)

    def test_a_sequence_number(self):
        assert seq_of(one()) == "000000000000000000042"


def deep(levels):
    value = {"S": "a"}
    for _ in range(levels):
        value = {"L": [value]}
    return value


def without(name):
    def damage(record):
        del record["dynamodb"][name]

    return damage


def with_data(name, value):
    def damage(record):
        record["dynamodb"][name] = value

    return damage


def with_top(name, value):
    def damage(record):
        record[name] = value

    return damage


DAMAGES = {
    "no keys": without("Keys"),
    "another key": with_data("Keys", {"id": {"S": "a"}}),
    "a key that is none": with_data("Keys", {"pk": "a"}),
    "keys in a list": with_data("Keys", [{"pk": {"S": "a"}}]),
    "no time": without("ApproximateCreationDateTime"),
    "a time that is text": with_data("ApproximateCreationDateTime", "now"),
    "a time beyond all": with_data("ApproximateCreationDateTime", 1e300),
    "another event": with_top("eventName", "TRUNCATE"),
    "no event": lambda record: record.pop("eventName"),
    "an image that is none": with_data("NewImage", [7]),
    "an image of text": with_data("NewImage", {"a": "b"}),
    "an unknown type": with_data("NewImage", {"a": {"XS": "b"}}),
    "no number": with_data("NewImage", {"a": {"N": "many"}}),
    "a number beyond all": with_data("NewImage", {"a": {"N": "9" * 5000}}),
    "no base64": with_data("NewImage", {"a": {"B": "%"}}),
    "an endless set": with_data("NewImage", {"a": {"SS": "ab"}}),
    # The maximum depth that orjson accepts. DynamoDB's maximum is 32.
    "too deep": with_data("NewImage", {"a": deep(500)}),
}


@pytest.mark.parametrize("mapping", [to_events, to_arrow], ids=["events", "arrow"])
class TestPoison:
    VIEW = View(ADDRESS, "p", SHARD, ("pk",), with_old=True)

    def page(self, count=5):
        made = [one("MODIFY", images=["NewImage", "OldImage"]) for _ in range(count)]
        for number, record in enumerate(made):
            record["dynamodb"]["SequenceNumber"] = f"{100 + number:021}"
        return copy.deepcopy(made)

    @pytest.mark.parametrize("index", [0, 3])
    @pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
    def test_the_first_damaged_record_is_named(self, mapping, damage, index):
        page = self.page()
        for broken in page[index:]:
            damage(broken)
        with pytest.raises(RecordFault) as caught:
            mapping(page, 0, 5, self.VIEW)
        fault = caught.value
        assert fault.index == index
        assert fault.position == f"sequence {100 + index:021}"
        place = place_of(fault.skip_cursor)
        assert isinstance(place, After)
        assert place.seq == f"{100 + index:021}"
        assert len(mapping(page, 0, index, self.VIEW)) == index

    def test_the_index_is_of_the_batch_and_not_of_the_part(self, mapping):
        page = self.page()
        page[3]["eventName"] = "TRUNCATE"
        with pytest.raises(RecordFault) as caught:
            mapping(page, 2, 5, self.VIEW)
        assert caught.value.index == 3
        assert len(mapping(page, 4, 5, self.VIEW)) == 1

    def test_a_removed_item_with_an_identity_that_is_none(self, mapping):
        for identity in MALFORMED_IDENTITIES:
            with pytest.raises(RecordFault):
                mapping([one("REMOVE", images=(), userIdentity=identity)], 0, 1, self.VIEW)

    def test_no_content_of_the_record_is_told(self, mapping):
        page = self.page()
        page[0]["dynamodb"]["NewImage"] = {"card": {"N": "4111-1111"}}
        with pytest.raises(RecordFault) as caught:
            mapping(page, 0, 5, self.VIEW)
        assert "4111" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
