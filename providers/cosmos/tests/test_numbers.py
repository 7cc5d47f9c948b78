"""Tests that whole numbers keep their digits, however they are read."""

import attrs
import pytest

from multiclouddb_api import Beginning, ChangeFeedRequest, FromContinuationToken, Now, connect, encode_json
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_cosmos_emulator import service

from .world import ADDRESS, READ

pytestmark = pytest.mark.usefixtures("hasty")
LATEST, BACKFILL = CosmosOptions(mode="latest"), CosmosOptions(backfill=True)
STAND_IN = 1_234_567
NUMBERS = [
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    -(2**63) - 1,
    2**64,
    -(10**19),
    18_446_744_073_709_552_000,  # 2^64 as JavaScript writes it
    123_456_789_012_345_678_901_234,
    -(10**30) - 1,
]


@pytest.fixture
def write(monkeypatch):
    """Return a function that makes the server answer with a number in place of the stored one."""

    def install(number):
        def with_number(answer):
            def call(request):
                reply = answer(request)
                body = reply.body.replace(b"%d" % STAND_IN, b"%d" % number)
                return attrs.evolve(reply, body=body)

            return call

        calls = {name: with_number(service._CALLS[name]) for name in (READ, "ReadItem", "QueryItems")}
        monkeypatch.setattr(service, "_CALLS", {**service._CALLS, **calls})

    return install


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("whose", ["library", "application"])
def test_a_whole_number_keeps_its_digits(world, native, write, number, whose):
    """Azure/azure-sdk-for-js issue 13645: the service keeps the digits, and a parser may not."""
    world.container.upsert_item({"id": "a", "pk": "a", "n": STAND_IN})
    world.container.upsert_item({"id": "b%41", "pk": "b", "n": [STAND_IN, {"m": STAND_IN}]})
    write(number)
    expected = {"a": {"id": "a", "pk": "a", "n": number}}
    expected["b%41"] = {"id": "b%41", "pk": "b", "n": [number, {"m": number}]}
    own = {} if whose == "library" else {"native_client": native}
    with connect(world.config(), **own) as client:
        start = client.read_changes(ChangeFeedRequest(ADDRESS, Now())).continuation_token
        world.container.upsert_item({"id": "a", "pk": "a", "n": STAND_IN})
        world.container.upsert_item({"id": "b%41", "pk": "b", "n": [STAND_IN, {"m": STAND_IN}]})
        for begin, options in (
            (Beginning(), LATEST),
            (Beginning(), BACKFILL),
            (FromContinuationToken(start), None),
        ):
            request = ChangeFeedRequest(ADDRESS, begin, provider_options=options)
            events = list(client.iterate_changes(request, until_idle=True))
            assert {event.key["id"]: event.new_item_state for event in events} == expected
            rows = client.lookup(ADDRESS, [event.key for event in events])
            assert [encode_json(rows[event.key].new_item_state) for event in events] == [
                encode_json(event.new_item_state) for event in events
            ]
