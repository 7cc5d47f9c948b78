"""Tests that stream records are converted to events and to Arrow rows with equal content.

If a record is damaged, the error names the first damaged record.
"""

import copy
import itertools
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiclouddb_api import ChangeEvent, ChangeType, MulticloudDbKey, ResourceAddress, encode_json
from multiclouddb_api.arrow import EVENT_SCHEMA, events_to_arrow
from multiclouddb_dynamo.mapping import DynamoMapper, DynamoView, order_key, seconds_of, seq_of
from multiclouddb_dynamo.position import After, place_of
from multiclouddb_spi import RecordFault
from multiclouddb_spi.faults import digest_in, key_digest

from .test_values import mapped, nested, tagged
from .world import patiently

ADDRESS = ResourceAddress(collection="orders")
SHARD = "shardId-00000001541626099285-f35f62ef"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECONDS = 1_763_634_171
TYPES = {"INSERT": ChangeType.CREATE, "MODIFY": ChangeType.UPDATE, "REMOVE": ChangeType.DELETE}
BY_SERVICE = {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"}
# Each row: the identity in a record → whether a delete with it was made by the time to live; None if unknown.
IDENTITIES = [
    (None, False),
    ({}, None),
    (BY_SERVICE, True),
    ({"principalId": "dynamodb.amazonaws.com", "type": "Service"}, True),
    ({"PrincipalId": "dynamodb.amazonaws.com"}, None),
    ({"PrincipalId": "replication.dynamodb.amazonaws.com", "Type": "Service"}, None),
    (BY_SERVICE | {"Type": "User"}, False),
]
KEYS = [
    {"pk": tagged("S", "a")},
    {"pk": tagged("N", 10**37, str(10**37))},
    {"pk": tagged("B", b"hi", "aGk=", b"hi"), "$sk": tagged("S", "é")},
]
DOCUMENT = mapped({"$set": nested("M", mapped({"a": tagged("S", "x")})), "n": tagged("N", 7, "7")})


def forms():
    """Return records of every kind as sent on the wire, as parsed by boto3, and as Python values."""
    numbers = itertools.count(41)
    for event, keys, (identity, expires) in itertools.product(TYPES, KEYS, IDENTITIES):
        number = next(numbers)
        images = [name for name, bit in (("NewImage", 1), ("OldImage", 2)) if number & bit]
        images = [
            name for name in images if (event, name) not in {("REMOVE", "NewImage"), ("INSERT", "OldImage")}
        ]
        seconds = SECONDS + number / 16 if number % 3 else SECONDS
        made = []
        for form in (1, 2):
            data = {
                "Keys": {name: value[form] for name, value in keys.items()},
                "SequenceNumber": f"{number:021}",
                "ApproximateCreationDateTime": seconds if form == 1 else EPOCH + timedelta(seconds=seconds),
                **dict.fromkeys(images, DOCUMENT[form]),
            }
            record = {"eventName": event, "dynamodb": data} | (
                {"eventID": f"e{number}"} if number % 2 else {}
            )
            made.append(record | ({} if identity is None else {"userIdentity": identity}))
        yield (
            *made,
            {
                "event_id": f"{SHARD}:{number:021}" + (f":e{number}" if number % 2 else ""),
                "key": MulticloudDbKey({name: value[0] for name, value in keys.items()}),
                "type": TYPES[event],
                "timestamp": EPOCH + timedelta(seconds=seconds),
                "new_item_state": DOCUMENT[0] if "NewImage" in images else None,
                "old_item_state": DOCUMENT[0] if "OldImage" in images else None,
                "order_key": order_key(f"{number:021}"),
                "by_expiry": expires if event == "REMOVE" else False,
            },
        )


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("old", [False, True])
def test_events_and_arrow_have_what_the_records_have(new, old):
    for keys in KEYS:
        names = tuple(keys)
        group = [form for form in forms() if tuple(form[2]["key"].components) == names]
        wire, parsed, expected = (list(column) for column in zip(*group, strict=True))
        view = DynamoView(ADDRESS, "p", SHARD, names, with_new=new, with_old=old)
        hidden = {
            name: None for name, shown in (("new_item_state", new), ("old_item_state", old)) if not shown
        }
        events = [
            ChangeEvent(**each | hidden, backfilled=False, address=ADDRESS, partition_id="p")
            for each in expected
        ]
        for form in (wire, parsed):
            found = DynamoMapper(view).events(form, 0, len(form))
            assert found == events
            assert {tuple(event.key.components) for event in found} == {names}
            found = DynamoMapper(view).arrow(form, 3, 20)
            assert found.schema == EVENT_SCHEMA
            assert found.equals(events_to_arrow(events[3:20]))
            found.validate(full=True)


def one(event="INSERT", *, images=("NewImage",), **more):
    data = {
        "Keys": {"pk": {"S": "a"}},
        "SequenceNumber": "000000000000000000042",
        "ApproximateCreationDateTime": SECONDS,
        **{name: {"pk": {"S": "a"}, "n": {"N": "1"}} for name in images},
    }
    return {"eventID": "e", "eventName": event, "dynamodb": data, **more}


def event_of(record, names=("pk",), **look):
    (event,) = DynamoMapper(DynamoView(ADDRESS, "p", SHARD, names, **look)).events([record], 0, 1)
    return event


def test_native_is_the_record_and_an_item_that_was_not_asked_for_is_not_decoded():
    record = one("MODIFY", images=["NewImage", "OldImage"])
    assert event_of(record, native=True).native is record
    assert event_of(record).native is None
    record["dynamodb"]["NewImage"] = record["dynamodb"]["OldImage"] = {"a": "damaged"}
    assert event_of(record, with_new=False).new_item_state is None


def test_the_key_is_in_the_table_s_order():
    record = one()
    record["dynamodb"]["Keys"] = {"sk": {"N": "7"}, "pk": {"S": "a"}}
    key = event_of(record, ("pk", "sk")).key
    assert (key.partition_key, key.sort_key) == ({"pk": "a"}, {"sk": 7})


def test_a_time_is_the_same_in_every_form_or_none():
    elsewhere = datetime.fromisoformat("2025-11-20T12:22:51+02:00")
    for moment in (SECONDS, float(SECONDS), elsewhere.astimezone(UTC), elsewhere):
        record = one()
        record["dynamodb"]["ApproximateCreationDateTime"] = moment
        assert event_of(record).timestamp.isoformat() == "2025-11-20T10:22:51+00:00"
        assert seconds_of(record) == SECONDS
    for moment in (None, "1763634171", -1, [], {}):
        record["dynamodb"]["ApproximateCreationDateTime"] = moment
        assert seconds_of(record) is None
    del record["dynamodb"]["ApproximateCreationDateTime"]
    assert seconds_of(record) is None


@pytest.mark.parametrize("factor", [1000, 1000_000])
def test_a_time_in_smaller_units_is_that_time(factor):
    record = one()
    record["dynamodb"]["ApproximateCreationDateTime"] = SECONDS * factor
    assert (event_of(record).timestamp, seconds_of(record)) == (EPOCH + timedelta(seconds=SECONDS), SECONDS)


@pytest.mark.parametrize("absent", [True, False], ids=["absent", "null"])
@pytest.mark.parametrize(("known", "first"), [(None, 0), (7, 7)], ids=["nothing known", "known"])
def test_a_record_without_a_time_has_the_last_known_time_of_its_shard(absent, known, first):
    page = [copy.deepcopy(one()) for _ in range(5)]
    given = [None, SECONDS + 0.75, None, SECONDS + 3, None]
    for number, (record, seconds) in enumerate(zip(page, given, strict=True)):
        data = record["dynamodb"]
        data |= {"SequenceNumber": f"{100 + number:021}", "ApproximateCreationDateTime": seconds}
        if absent and seconds is None:
            del data["ApproximateCreationDateTime"]
    begin = None if known is None else After("99", known)
    mapper = DynamoMapper(DynamoView(ADDRESS, "p", SHARD, ("pk",)), begin)
    times = [EPOCH + timedelta(seconds=at) for at in (first, SECONDS + 0.75, SECONDS, *[SECONDS + 3] * 2)]
    assert [event.timestamp for event in mapper.events(page, 0, 5)] == times
    assert mapper.arrow(page, 0, 5).equals(events_to_arrow(mapper.events(page, 0, 5)))
    for start in range(5):  # a page that begins anywhere tells the same, also in another process
        place = place_of(mapper.cursor_after(page, start)) if start else None
        assert place is None or (place.seq, place.time) == (
            f"{99 + start:021}",
            [known, SECONDS, SECONDS, SECONDS + 3][start - 1],
        )
        other = DynamoMapper(mapper.view, begin if place is None else place)
        for found in (mapper.events(page, start, 5), other.events(page[start:], 0, 5 - start)):
            assert [event.timestamp for event in found] == times[start:]


@pytest.mark.parametrize("event", TYPES)
@pytest.mark.parametrize("name", ["NewImage", "OldImage"])
@pytest.mark.parametrize("empty", [{}, None])
def test_an_empty_image_is_none(event, name, empty):
    """Every item has at least its key, so an empty image is no item; some servers send one."""
    record = one(event, images=())
    record["dynamodb"][name] = empty
    found = event_of(record, with_old=True)
    assert (found.new_item_state, found.old_item_state) == (None, None)
    batch = DynamoMapper(DynamoView(ADDRESS, "p", SHARD, ("pk",), with_old=True)).arrow([record], 0, 1)
    assert batch.equals(events_to_arrow([found]))


@pytest.mark.parametrize("event_id", ["9" * 32, str(UUID(int=7))], ids=["DynamoDB", "DynamoDB Local"])
def test_an_id_that_no_other_record_has_is_that_of_the_event(event_id):
    record = one(eventID=event_id)
    assert event_of(record).event_id == event_id
    columns = DynamoMapper(DynamoView(ADDRESS, "p", SHARD, ("pk",))).arrow([record], 0, 1)
    assert columns["event_id"].to_pylist() == [event_id]


@patiently
@given(*[st.integers(0, 10**55) | st.integers(0, 1000)] * 2, st.integers(0, 40))
def test_order_keys_sort_as_the_numbers_do(a, b, width):
    left, right = order_key(f"{a:0{width}}"), order_key(str(b))
    assert (left < right, left == right) == (a < b, a == b)


@pytest.mark.parametrize("seq", ["", "-1", "1.0", "\u0667", "x", "7" * 57, 7, None])
def test_a_damaged_sequence_number_is_refused(seq):
    record = one()
    record["dynamodb"]["SequenceNumber"] = seq
    with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
        seq_of(record)


def deep(levels):
    value = {"S": "a"}
    for _ in range(levels):
        value = {"L": [value]}
    return value


# Each row: what is damaged, and its value; `...` is no value at all.
DAMAGES = [
    ("Keys", ...),
    ("Keys", {"id": {"S": "a"}}),
    ("Keys", {"pk": "a"}),
    ("Keys", [{"pk": {"S": "a"}}]),
    ("ApproximateCreationDateTime", "now"),
    ("ApproximateCreationDateTime", 1e300),
    ("eventName", "TRUNCATE"),
    ("eventName", ...),
    ("userIdentity", "Service"),
    ("userIdentity", 7),
    ("userIdentity", ["Type"]),
    ("NewImage", [7]),
    ("NewImage", {"a": "b"}),
    ("NewImage", {"a": {"XS": "b"}}),
    ("NewImage", {"a": {"N": "9" * 5000}}),
    ("NewImage", {"card": {"N": "4111-1111"}}),
    ("NewImage", {"a": {"B": "%"}}),
    # The maximum depth that orjson accepts. DynamoDB's maximum is 32.
    ("NewImage", {"a": deep(500)}),
]


@pytest.mark.parametrize("way", ["events", "arrow"])
@pytest.mark.parametrize(("part", "value"), DAMAGES, ids=range(len(DAMAGES)))
@pytest.mark.parametrize(("start", "index"), [(0, 0), (2, 3)])
def test_the_first_damaged_record_is_named_without_its_content(way, part, value, start, index):
    page = [copy.deepcopy(one("REMOVE", images=["NewImage", "OldImage"])) for _ in range(5)]
    for number, record in enumerate(page):
        record["dynamodb"]["SequenceNumber"] = f"{100 + number:021}"
        if number >= index:
            at = record if part in ("eventName", "userIdentity") else record["dynamodb"]
            at[part] = value
            if value is ...:
                del at[part]
    mapping = getattr(DynamoMapper(DynamoView(ADDRESS, "p", SHARD, ("pk",), with_old=True)), way)
    with pytest.raises(RecordFault) as caught:
        mapping(page, start, 5)
    fault = caught.value
    assert (fault.index, fault.position.partition(",")[0]) == (index, f"sequence {100 + index:021}")
    assert place_of(fault.skip_cursor).seq == f"{100 + index:021}"
    assert len(mapping(page, start, index)) == index - start
    assert "4111" not in str(fault)
    assert (fault.__cause__, fault.__suppress_context__) == (None, True)


@pytest.mark.parametrize("value", [{"S": "a"}, {"N": "1.50"}, {"N": "1e3"}, {"B": b"xx"}], ids=str)
def test_the_position_of_a_record_names_the_key_that_its_event_has(value):
    record = copy.deepcopy(one("REMOVE"))
    record["dynamodb"] |= {"Keys": {"pk": value}, "SequenceNumber": "100000000000000000001"}
    mapper = DynamoMapper(DynamoView(ADDRESS, "p", SHARD, ("pk",)))
    (event,) = mapper.events([record], 0, 1)
    position = mapper.fault([record], 0, None).position
    assert digest_in(position) == key_digest(encode_json(event.key.components).decode())
