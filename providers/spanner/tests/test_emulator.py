"""Tests feeds on Google's emulator: both dialects, and the streams of a table."""

from decimal import Decimal

import pytest
from google.cloud.spanner_admin_database_v1 import DatabaseDialect

from multiclouddb_api import (
    ChangeFeedRequest,
    ChangeType,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    ResourceAddress,
    Snapshot,
    canonical_json,
    connect,
)

from .servers.emulator import STILL

pytestmark = pytest.mark.emulator(*STILL)

POSTGRES = {"columns": "id varchar, n bigint, text varchar", "dialect": DatabaseDialect.POSTGRESQL}
REQUIRE = {"new_item_state_mode": NewItemStateMode.REQUIRE}


def page(client, address, start, size=0, **settings):
    start = FromContinuationToken(start) if isinstance(start, str) else start
    return client.read_changes(ChangeFeedRequest(address, start, max_page_size=size, **settings))


def drained(client, address, start, **settings):
    start = FromContinuationToken(start) if isinstance(start, str) else start
    return list(client.iterate_changes(ChangeFeedRequest(address, start, **settings), until_idle=True))


def refused(category, client, address, start=None, **settings):
    with pytest.raises(MulticloudDbError) as caught:
        page(client, address, start or Now(), **settings)
    assert caught.value.category == category, caught.value
    assert "; " in caught.value.message
    return caught.value.message


@pytest.fixture(params=["googlesql", "postgresql"])
def either(request, made):
    return made() if request.param == "googlesql" else made(**POSTGRES)


def test_in_both_dialects_rows_come_as_they_were_written(either, ours):
    table, here = either
    token = page(ours, here, Now()).continuation_token
    table.insert(["a", 2**62, "x"], ["b", None, None])
    table.update(["a", 7], names=("id", "n"))
    table.delete("b")
    old = {"old_item_state_mode": OldItemStateMode.INCLUDE_IF_AVAILABLE}
    events = drained(ours, here, token, include_native=True, **old)
    told = [(e.type, e.key.components["id"], e.new_item_state, e.old_item_state) for e in events]
    created = {"id": "a", "n": 2**62, "text": "x"}
    empty = {"id": "b", "n": None, "text": None}
    assert sorted(told, key=lambda each: (each[1], each[0].value)) == [
        (ChangeType.CREATE, "a", created, None),
        (ChangeType.UPDATE, "a", {**created, "n": 7}, created),
        (ChangeType.CREATE, "b", empty, None),
        (ChangeType.DELETE, "b", None, empty),
    ]
    for event in events:
        assert event.native["number_of_records_in_transaction"] >= 1
        assert event.native["column_types"][0]["name"] == "id"
        (mod,) = event.native["mods"]
        assert mod["keys"] == dict(event.key.components)


NUMBERS = """{"int64": 9223372036854775807, "uint64": 18446744073709551615, "int": 18446744073709551616,
    "long": [123456789012345678901234567890, 1e309, -1e309], "float": [0.1, 1.10, 0.0, 2.50e-3],
    "decimal": [12345678901234567890.125, 3.141592653589793238, 1e-400]}"""
EXACT = {
    "int64": 2**63 - 1,
    "uint64": 2**64 - 1,
    "int": 2**64,
    "long": [123456789012345678901234567890, 10**309, -(10**309)],
    "float": [0.1, 1.1, 0.0, 0.0025],
    "decimal": [Decimal("12345678901234567890.125"), Decimal("3.141592653589793238"), Decimal("1e-400")],
}
ROUNDED = """{"floats": [1.8446744073709552e+19, 0.1, 1e-5],
    "ints": [18446744073709551615, -9223372036854775808]}"""


@pytest.mark.parametrize(
    ("settings", "text", "value"),
    [
        ({"columns": "id varchar, j jsonb", "dialect": DatabaseDialect.POSTGRESQL}, NUMBERS, EXACT),
        (
            {"columns": "id STRING(9), j JSON"},
            ROUNDED,
            {"floats": [2.0**64, 0.1, 1e-5], "ints": [2**64 - 1, -(2**63)]},
        ),
    ],
    ids=["jsonb", "json"],
)
def test_numbers_in_json_are_what_the_database_stores(made, ours, settings, text, value):
    """JSONB stores a number as it is written; GoogleSQL's JSON stores int64, uint64 and float64."""
    table, here = made(**settings)
    token = page(ours, here, Now()).continuation_token
    table.put(["a", text], names=("id", "j"))
    rows = [event for event in drained(ours, here, Snapshot()) if event.backfilled]
    (changed,), (key,) = drained(ours, here, token), [row.key for row in rows]
    for event in (changed, *rows, ours.lookup(here, [key])[key]):
        assert canonical_json(event.new_item_state) == canonical_json({"id": "a", "j": value})


class TestStreamOfATable:
    def test_of_several_one_has_to_be_named(self, made, still, ours):
        table, here = made(streams=("first", "second"))
        assert "'first', 'second'" in refused(ErrorCategory.INVALID_REQUEST, ours, here)
        with connect(f"{still.url}&change_stream=second") as client:
            token = page(client, here, Now()).continuation_token
            table.put(["a", 1, ""])
            assert len(drained(client, here, token)) == 1
        with connect(f"{still.url}&change_stream=first") as client:
            refused(ErrorCategory.INVALID_REQUEST, client, here, FromContinuationToken(token))
        with connect(f"{still.url}&change_stream=third") as client:
            refused(ErrorCategory.NOT_FOUND, client, here)

    @pytest.mark.parametrize("watch", ["items(n)", "items()"])
    def test_one_that_leaves_columns_out_has_to_be_named(self, made, still, ours, watch):
        table, here = made(watch=watch)
        assert "some columns" in refused(ErrorCategory.INVALID_REQUEST, ours, here)
        with connect(f"{still.url}&change_stream=items_stream") as client:
            token = page(client, here, Now()).continuation_token
            table.put(["a", 1, "x"])
            (event,) = drained(client, here, token)
            assert event.new_item_state is None
            message = refused(ErrorCategory.UNSUPPORTED_CAPABILITY, client, here, **REQUIRE)
            assert "SET FOR items" in message

    def test_names_that_are_not_there(self, table, ours, still, here):
        database = table.database.database_id
        table.ddl("CREATE TABLE bare (id INT64) PRIMARY KEY (id)")
        message = refused(ErrorCategory.NOT_FOUND, ours, ResourceAddress(database, "bare"))
        assert "CREATE CHANGE STREAM bare_stream FOR bare OPTIONS" in message
        for address in (ResourceAddress(database, "Items"), ResourceAddress("no-such-db", "items")):
            refused(ErrorCategory.NOT_FOUND, ours, address)
        refused(ErrorCategory.INVALID_REQUEST, ours, ResourceAddress(None, "items"))
        with connect(still.url.replace("/tests?", "/no-such-instance?")) as client:
            refused(ErrorCategory.NOT_FOUND, client, here)
        token = page(ours, here, Now()).continuation_token
        table.ddl("DROP CHANGE STREAM items_stream")
        for start in (FromContinuationToken(token), Now()):
            assert "CREATE CHANGE STREAM" in refused(ErrorCategory.NOT_FOUND, ours, here, start)
