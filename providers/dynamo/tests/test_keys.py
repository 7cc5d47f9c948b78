"""Tests that two keys are one key for the library exactly if DynamoDB takes them for one item."""

import contextlib
import json
import math
import uuid
from datetime import UTC, datetime
from decimal import Context, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    MulticloudDbKey,
    NotKnown,
    ResourceAddress,
    Snapshot,
)
from multiclouddb_api.arrow import events_to_arrow
from multiclouddb_conformance.open_client import open_client
from multiclouddb_conformance.refusals import refused
from multiclouddb_dynamo.mapping import DynamoMapper, DynamoView
from multiclouddb_dynamo.provider import PLUGIN
from multiclouddb_dynamo.snapshots import ItemMapper
from multiclouddb_dynamo.values import encode_key, key_value, spelled_otherwise
from multiclouddb_spi import Scan

from .servers.local import shared
from .servers.server import REGION, session
from .world import ADDRESS, World, patiently

WIDE = Context(prec=60)
SEGMENT = Scan("00", datetime(2026, 1, 1, tzinfo=UTC), 1).segment("0")
NUMBERS, SPELLINGS = ResourceAddress(collection="numbers"), ResourceAddress(collection="spellings")
# Each group has the forms of one number, and no two groups have the same.
GROUPS = [
    [0, -0.0, Decimal("-0"), Decimal("0E+9"), Decimal("0.000")],
    [5, 5.0, Decimal(5), Decimal("5.0"), Decimal("5E0"), Decimal("0.5E1")],
    [100, 1e2, Decimal("1E2"), Decimal("100.00")],
    [Decimal("2.5"), 2.5, Decimal("2.50"), Decimal("25E-1")],
    [0.1, Decimal("0.1"), Decimal("1E-1")],
    [Decimal("0.1000000000000000055511151231257827")],
    [2**53, float(2**53), Decimal(2**53)],
    [2**53 + 1, Decimal(2**53 + 1)],
    [-(10**37), Decimal("-1E37"), -1e37],
    [Decimal("0." + "1" * 38)],
    [10**125, Decimal("1E125"), 1e125],
    [Decimal("1E-130"), 1e-130, Decimal("10E-131")],
]


def spelled(number, kind):
    """Return a number as text: as Python writes it, without an exponent, with one, or with more zeros."""
    plain = f"{number:f}"
    more = plain + ("0" if "." in plain else ".00")
    return [str(number), plain, f"{number:E}", more][kind]


@st.composite
def spellings(draw):
    """Return two texts of numbers: often of one number, sometimes of two that are close to each other."""
    digits = draw(st.integers(-20, 20) | st.integers(1 - 10**38, 10**38 - 1))
    number = Decimal(digits).scaleb(draw(st.integers(-20, 20)), WIDE)
    other = WIDE.add(number, draw(st.sampled_from([0, 0, 1, Decimal("1E-9"), Decimal("1E-30")])))
    kinds = st.integers(0, 3)
    return spelled(number, draw(kinds)), spelled(other, draw(kinds))


@pytest.fixture(scope="module")
def local():
    """Provide a table on DynamoDB Local, and a client."""
    server = shared()
    with contextlib.suppress(server.client().exceptions.ResourceInUseException):
        server.create_table("spellings", sort_key="id", types={"id": "N"})
    place = {"session": server.session(), "region": REGION, "endpoint_url": server.endpoint_url}
    config = ClientConfig("dynamo", place)
    with open_client(PLUGIN, config) as client:
        yield server.client(), client


def key_of(case, number):
    return MulticloudDbKey({"pk": case, "id": number})


@patiently
@given(spellings())
def test_two_spellings_are_one_key_exactly_if_dynamodb_local_has_one_item(local, pair):
    items, client = local
    case, stored = uuid.uuid4().hex, []
    for text in pair:
        item = {"pk": {"S": case}, "id": {"N": text}}
        try:
            items.put_item(TableName="spellings", Item=item)
        except items.exceptions.ClientError:  # the server cannot store this number, and the library says so
            with refused(ErrorCategory.INVALID_REQUEST, "cannot store"):
                encode_key("id", Decimal(text))
        else:
            stored.append(Decimal(text))
    found = client.lookup(SPELLINGS, [key_of(case, number) for number in stored])
    asked = {":pk": {"S": case}}
    answer = items.query(
        TableName="spellings",
        KeyConditionExpression="pk = :pk",
        ExpressionAttributeValues=asked,
        ConsistentRead=True,
    )
    assert len({str(encode_key("id", number)) for number in stored}) == answer["Count"]
    assert len({row.key for row in found.values()}) == answer["Count"]
    for number in stored:
        assert found[key_of(case, number)].new_item_state == {"pk": case, "id": number}


def test_changes_rows_and_look_ups_of_dynamodb_local_have_the_same_keys(local):
    items, client = local
    case = uuid.uuid4().hex
    for group in GROUPS:
        for form in group:
            items.put_item(TableName="spellings", Item={"pk": {"S": case}, "id": {"N": str(form)}})
    found = client.lookup(SPELLINGS, [key_of(case, form) for group in GROUPS for form in group])
    texts = {row.key.canonical() for row in found.values()}
    assert len(texts) == len(GROUPS)
    for start in (Beginning(), Snapshot()):
        events = client.iterate_changes(ChangeFeedRequest(SPELLINGS, start), until_idle=True)
        assert {event.key.canonical() for event in events if event.key["pk"] == case} == texts


@pytest.fixture(scope="module")
def numbers():
    """Provide a table with one number of each group."""
    with World() as world:
        world.server.create_table("numbers", partition_key="id", types={"id": "N"})
        for group in GROUPS:
            item = {"id": {"N": str(group[0])}, "n": {"S": str(group[0])}}
            world.server.client().put_item(TableName="numbers", Item=item)
        with open_client(PLUGIN, world.config()) as client:
            yield client


def test_every_form_of_a_number_finds_its_row(numbers):
    asked = {MulticloudDbKey({"id": form}): str(group[0]) for group in GROUPS for form in group}
    found = numbers.lookup(NUMBERS, list(asked))
    assert {key: row.new_item_state["n"] for key, row in found.items()} == asked
    for group in GROUPS:
        assert len({found[MulticloudDbKey({"id": form})].key for form in group}) == 1


def test_a_missing_number_is_missing_in_every_form(numbers):
    asked = [MulticloudDbKey({"id": form}) for form in (6, 6.0, Decimal("6.00"), Decimal("0.6E1"))]
    assert numbers.lookup(NUMBERS, asked) == dict.fromkeys(asked)


class TestNumbersThatAreComparedAsTexts:
    """Some servers with the API of DynamoDB do so. They tell no more than that there is no such item."""

    @pytest.fixture
    def asked(self):
        """Return a function that stores numbers and looks one up; the server compares them as texts."""
        made, stored = session.__wrapped__(), set()

        def as_written(params, **_):
            body = json.loads(params["body"])
            for asked in body["RequestItems"].values():
                for value in (value for key in asked["Keys"] for value in key.values()):
                    if value.get("N") not in (None, *stored):
                        value["N"] = "77"
            params["body"] = json.dumps(body).encode()

        made.events.register("before-call.dynamodb.BatchGetItem", as_written)
        with World() as world:
            world.server.create_table("numbers", "NEW_IMAGE", partition_key="id", types={"id": "N"})
            place = {"session": made, "region": REGION, "endpoint_url": world.script.endpoint_url}
            with open_client(PLUGIN, ClientConfig("dynamo", place)) as client:

                def asked(number, *texts):
                    stored.update(texts)
                    for text in texts:
                        world.server.client().put_item(TableName="numbers", Item={"id": {"N": text}})
                    key = MulticloudDbKey({"id": number})
                    return client.lookup(NUMBERS, [key])[key]

                yield asked

    def test_no_absence_is_claimed(self, asked):
        assert asked(7) is None  # the table is empty
        answer = asked(Decimal("1E-7"), "0.0000001")
        assert isinstance(answer, NotKnown)
        assert "written in another form" in answer.reason
        assert asked(5, "5").key["id"] == 5
        assert isinstance(asked(6), NotKnown)

    @pytest.mark.parametrize("text", ["5", "-2.5", "0", "9.9E+125", "1E-130"])
    def test_it_is_found_out_with_every_number(self, asked, text):
        assert isinstance(asked(6, text), NotKnown)


@pytest.mark.parametrize("text", ["5", "50E-1", "500E-2", "-2.5", "0", "0.0", "9.9E+125", "1E-130", "1" * 38])
def test_another_form_is_of_the_same_number(local, text):
    items, _ = local
    case = uuid.uuid4().hex
    items.put_item(TableName="spellings", Item={"pk": {"S": case}, "id": {"N": text}})
    other = spelled_otherwise({"N": text})
    assert other != {"N": text}
    assert spelled_otherwise({"S": text}) == {"S": text}
    assert "Item" in items.get_item(TableName="spellings", Key={"pk": {"S": case}, "id": other})


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        Decimal("NaN"),
        10**38 + 1,
        10**126,
        10**4000,
        Decimal("1E-131"),
        Decimal("1E+6000"),
    ],
    ids=range(8),
)
def test_a_number_that_no_item_can_have_is_refused_with_the_limits(numbers, value):
    with refused(ErrorCategory.INVALID_REQUEST, "a number that DynamoDB cannot store; give a number of at"):
        numbers.lookup(NUMBERS, [MulticloudDbKey({"id": value})])


def test_bytes_of_every_python_type_find_their_row():
    with World() as world:
        world.server.create_table("numbers", partition_key="id", types={"id": "B"})
        world.server.client().put_item(TableName="numbers", Item={"id": {"B": b"\x00\xff"}})
        with open_client(PLUGIN, world.config()) as client:
            for form in (b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff")):
                (row,) = client.lookup(NUMBERS, [MulticloudDbKey({"id": form})]).values()
                assert row.key == MulticloudDbKey({"id": b"\x00\xff"})


@pytest.mark.parametrize("text", ["5", "5.0", "5E0", "0.50E+1", "+5", "05"])
@pytest.mark.parametrize("name", ["id", "$id"])
def test_a_server_that_keeps_the_spelling_gives_the_same_key(text, name):
    """moto answers numbers as they were written; the item stays as it is stored."""
    data = {"Keys": {name: {"N": text}}, "SequenceNumber": "1" * 21, "NewImage": {name: {"N": text}}}
    record = {"eventID": "e", "eventName": "INSERT", "dynamodb": data}
    view = DynamoView(ADDRESS, "p", "shard", (name,))
    for mapper, each in (
        (DynamoMapper(view), record),
        (ItemMapper(view, SEGMENT), data["NewImage"]),
    ):
        (event,) = mapper.events([each], 0, 1)
        assert event.key == MulticloudDbKey({name: 5})
        assert mapper.arrow([each], 0, 1).equals(events_to_arrow([event]))


@pytest.mark.parametrize("texts", [["0.5", "0.50", "5E-1", "+.500"], ["-2.5", "-2.50", "-25E-1"]])
def test_a_fraction_has_one_key_in_every_form(texts):
    """Two decimals with different zeros at their end are equal in Python, but have different texts."""
    view, forms = DynamoView(ADDRESS, "p", "shard", ("id",)), set()
    for text in texts:
        item = {"id": {"N": text}}
        data = {"Keys": item, "SequenceNumber": "1" * 21, "NewImage": item}
        record = {"eventID": "e" * 32, "eventName": "INSERT", "dynamodb": data}
        for mapper, each in ((DynamoMapper(view), record), (ItemMapper(view, SEGMENT), item)):
            (event,) = mapper.events([each], 0, 1)
            (found,) = mapper.arrow([each], 0, 1).column("key").to_pylist()
            forms.add((repr(event.key), event.key.canonical(), found))
        asked = MulticloudDbKey({"id": key_value(encode_key("id", Decimal(text)))})
        forms.add((repr(asked), asked.canonical(), found))
    assert len(forms) == 1


def test_only_the_key_takes_the_normal_form():
    item = {"id": {"N": "2.50"}, "price": {"N": "2.50"}}
    (event,) = ItemMapper(DynamoView(ADDRESS, "p", "", ("id",)), SEGMENT).events([item], 0, 1)
    assert event.key == MulticloudDbKey({"id": Decimal("2.5")})
    assert str(event.new_item_state["id"]) == str(event.new_item_state["price"]) == "2.50"
