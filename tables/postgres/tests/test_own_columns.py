"""Two values of a column are equal exactly if the column holds them as one; the server is asked."""

import json
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.numeric import FloatLoader, IntLoader, NumericLoader

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    MulticloudDbError,
    ResourceAddress,
    connect,
    encode_json,
)
from multiclouddb_conformance.sink_harness import rows
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_postgres import PostgresTarget, merge_into_postgres
from multiclouddb_postgres.column_types import column_type
from multiclouddb_tables import Columns
from multiclouddb_tables.column_values import as_stored, own_state
from multiclouddb_verify import DifferenceKind, verify
from multiclouddb_verify.own_columns import OwnColumns

ID, AT = uuid.UUID(int=0xABC), datetime(2026, 1, 1, 12, 0, 0, 600, UTC)
LAST = AT.replace(1999, 12, 31, 23, 59, 59, 500000, None)
HELD = [
    ("numeric", ["1.50", Decimal("1.5"), 1.5], "1.51"),
    ("numeric", ["5.00", 5, 5.0, Decimal(5), Decimal("5.0")], "6"),
    ("numeric", ["1e20", 1e20, 10**20], "100000000000000000001"),
    ("numeric", ["0", 0, -0.0, Decimal("-0.00")], "0.1"),
    ("numeric", ["'NaN'", float("nan"), Decimal("-NaN")], "'Infinity'"),
    ("numeric", ["'Infinity'", float("inf")], "'-Infinity'"),
    ("numeric", [f"{10**50}", 10**50], f"{10**50 + 1}"),
    ("numeric(50,2)", ["1.5", 1.5, Decimal("1.495"), Decimal("1.504")], "1.51"),
    ("numeric(3,-2)", ["12345", 12300, 12345], "12400"),
    ("numeric[]", ["'{{1,2.0},{3,NULL}}'", [[1, 2], [Decimal("3.0"), None]]], "'{1,2}'"),
    ("json", ["""'{"b": null, "a":[1.50]}'""", {"a": [1.5], "b": None}, '{"a":[1.5], "b":null}'], "'{}'"),
    ("json", ["'null'", "null"], "NULL"),
    ("json", ["NULL", None], "'null'"),
    ("json", ["'1'", 1, "1"], "'1.0'"),
    ("json", ["'true'", True, "true"], "'1'"),
    ("json", ["'\"1\"'", '"1"'], "'1'"),
    ("json", ["'9007199254740993'", 2**53 + 1], "'9007199254740992'"),
    ("json", ["""'{"a":"é\\u00e9"}'""", {"a": "éé"}], """'{"a":1,"a":"éé"}'"""),
    ("json", ["""'{"at":"2026-01-01"}'""", {"at": date(2026, 1, 1)}], "'{}'"),
    ("jsonb", ["""'{"b":1e20,"a":-0.0}'""", {"a": -0.0, "b": 1e20}, {"b": 1e20, "a": 0.0}], "'{}'"),
    ("jsonb", ["'1e-7'", 1e-7, "0.0000001"], "'1e-8'"),
    ("uuid", [f"'{ID}'", ID, str(ID).upper()], f"'{uuid.UUID(int=1)}'"),
    ("uuid[]", [f"ARRAY['{ID}'::uuid]", [str(ID).upper()]], "'{}'"),
    ("character(5)", ["'ab'", "ab", "ab  "], "'ac'"),
    ("character varying(5)", ["'ab'", "ab"], "'ac'"),
    ("boolean", ["true", True], "false"),
    ("oid", ["5", 5], "6"),
    ("time", ["'01:02:03'", time(1, 2, 3)], "'01:02:04'"),
    ("date", ["'2026-01-01'", date(2026, 1, 1)], "'2026-01-02'"),
    ("timestamptz(3)", [f"'{AT.isoformat()}'", AT, AT + timedelta(microseconds=899)], "'2026-01-01Z'"),
    ("timestamp(0)", ["'1999-12-31 23:59:59.5'", LAST], "'2000-01-01'"),
    ("timestamptz", ["'infinity'", "infinity"], "'-infinity'"),
    ("timestamptz[]", ["'{12000-01-01Z}'", ["12000-01-01 00:00:00+00"]], "'{12000-01-02Z}'"),
    ("timestamp", ["'12000-01-01'", "12000-01-01 00:00:00"], "'2000-01-01'"),
    ("date", ["'0044-03-15 BC'", "0044-03-15 BC"], "'0044-03-15'"),
    ("time", ["'24:00'", "24:00:00"], "'00:00'"),
    ("mood", ["'ok'", "ok"], "'bad'"),
    ("price", ["1.50", 1.5, Decimal("1.5")], "1.51"),
]  # fmt: skip


@pytest.fixture(scope="module")
def connection(database):
    with psycopg.connect(database, autocommit=True) as made:
        made.execute("CREATE TYPE mood AS ENUM ('ok', 'bad'); CREATE DOMAIN price AS numeric")
        merge_into_postgres(rows(("a", 1, {"n": 1})), None, database, "held", None)
        yield made


def state(target):
    [text] = [text for batch in target.rows(own=("x",)) for text in batch.column("state").to_pylist()]
    return text


@pytest.mark.parametrize(("kind", "values", "other"), HELD, ids=lambda each: str(each)[:30])
def test_values_that_the_column_holds_as_one(connection, database, kind, values, other):
    stored, *values = values
    connection.execute(f"ALTER TABLE held DROP COLUMN IF EXISTS x, ADD COLUMN x {kind}")
    target = PostgresTarget(database, "held")
    for literal, is_equal in ((stored, True), (other, False)):
        connection.execute(f"UPDATE held SET x = {literal}")
        for value in values:
            own = OwnColumns.of(lambda _, value=value: {"x": value}, "held", target.columns(), [{}])
            ours = own({})
            assert (encode_json(own_state(ours)).decode() == state(target)) is is_equal, (value, literal)


NUMBERS = st.one_of(
    st.decimals(allow_nan=False, allow_infinity=False),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(numbers=st.lists(NUMBERS, min_size=2, max_size=20))
def test_numbers_are_equal_exactly_if_the_server_says_so(connection, numbers):
    texts = [repr(each) if isinstance(each, float) else str(each) for each in (*numbers, *reversed(numbers))]
    query = "SELECT a, b, a = b FROM unnest(%s::text[]::numeric[], %s::text[]::numeric[]) AS u(a, b)"
    held = column_type("numeric")
    ours = [as_stored(each, held) for each in (*numbers, *reversed(numbers))]
    found = connection.execute(query, (texts, [*texts[1:], texts[0]])).fetchall()
    for one, other, (a, b, is_equal) in zip(ours, [*ours[1:], ours[0]], found, strict=True):
        assert (encode_json(one) == encode_json(other)) is is_equal
        assert [encode_json(as_stored(each, held)) for each in (a, b)] == [
            encode_json(one),
            encode_json(other),
        ]


FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | FINITE | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abé"), inner),
    max_leaves=8,
)


@pytest.mark.parametrize("kind", ["json", "jsonb"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(values=st.lists(st.lists(PLAIN), min_size=1, max_size=8))
def test_what_a_json_column_gives_back_is_what_was_stored(connection, kind, values):
    texts = [json.dumps(value) for value in values]
    query = f"SELECT (t::{kind})::text FROM unnest(%s::text[]) WITH ORDINALITY AS u(t, n) ORDER BY n"
    found, held = connection.execute(query, (texts,)).fetchall(), column_type(kind)
    for value, written, (text,) in zip(values, texts, found, strict=True):
        assert as_stored(text, held) == as_stored(value, held)
        assert kind == "jsonb" or as_stored(written, held) == as_stored(value, held)


@pytest.mark.parametrize("kind", ["interval", "inet", "money", "int4range", "jsonpath", "json[]", "point"])
def test_a_type_whose_values_cannot_be_compared_is_refused_by_the_columns_name(connection, database, kind):
    connection.execute(f"ALTER TABLE held DROP COLUMN IF EXISTS x, ADD COLUMN x {kind}")
    target = PostgresTarget(database, "held")
    with pytest.raises(MulticloudDbError, match=r"column x of .*cannot compare"):
        OwnColumns.of(lambda _: {"x": 1}, target.name, target.columns(), [{}])
    assert OwnColumns.of(lambda _: {"x": 1}, target.name, target.columns(), []).types == {}


def test_verify_finds_and_repairs_them(dsn, tmp_path, monkeypatch):
    monkeypatch.setattr(EmbeddedFeed, "visible_after", lambda feed: 0.02)
    monkeypatch.setattr("multiclouddb_verify.source._CLOCK_ERROR", 0.0)

    def columns(document):
        n = document["n"]
        return {"total": n * 1.5, "tags": document["tags"], "more": {"n": n}, "at": AT.replace(year=2000 + n)}

    with (
        EmbeddedStore(tmp_path / "shop.db", durable=False) as store,
        connect(f"embedded://{store.path}") as client,
    ):
        address = store.create_collection("orders")
        for number in range(20):
            store.put("orders", f"o-{number}", {"n": number, "tags": ["a", number]})
        page = client.read_changes(ChangeFeedRequest(address, Beginning()))
        merge_into_postgres(page, None, dsn, "orders", None)

        def check(**more):
            return verify(
                client, address, PostgresTarget(dsn, "orders"), position=page.continuation_token,
                state=tmp_path / "state", transform=columns, patience_seconds=30.0, **more,
            )  # fmt: skip

        with psycopg.connect(dsn, autocommit=True) as own:
            own.execute(
                "ALTER TABLE orders ADD COLUMN total numeric, ADD COLUMN tags json, ADD COLUMN more jsonb, "
                "ADD COLUMN at timestamptz; "
                "UPDATE orders SET total = (new_item_state->>'n')::numeric * 1.50, "
                "tags = new_item_state->'tags', more = json_build_object('n', new_item_state->'n'), "
                f"at = '{AT.replace(year=2000).isoformat()}'::timestamptz "
                "+ make_interval(years => (new_item_state->>'n')::int)"
            )
            assert check().equal
            for name, bad in (
                ("total", "1000000.5"),
                ("tags", "'[]'"),
                ("more", """'{"n": -1}'"""),
                ("at", "'infinity'"),
            ):
                own.execute(f"UPDATE orders SET {name} = {bad} WHERE key LIKE '%o-7\"%'")
                assert check().counts.differences == {DifferenceKind.STALE: 1}
                report = check(repair=True)
                assert (report.equal, report.counts.repaired) == (True, 1)
            [(tags, more)] = own.execute("SELECT tags, more FROM orders WHERE key LIKE '%o-7\"%'").fetchall()
            assert (tags, more) == (["a", 7], {"n": 7})


@pytest.mark.parametrize(
    ("kind", "value", "changed"),
    [
        ("decimal(9,2)", Decimal("1.25"), "numeric(9,1)"),
        ("double", 0.1, "real"),
        ("int64", 2**53 + 1, "double precision"),
        ("timestamp", AT, "timestamptz(0)"),
        ("string", "ab ", "character(5)"),
    ],
)
def test_a_type_that_somebody_has_changed_is_refused(kind, value, changed, dsn, tmp_path):
    """The column has rounded its values then, and would round those that it is compared with."""
    with EmbeddedStore(tmp_path / "s.db") as store:
        store.create_collection("orders")
        store.put("orders", "a", {"c": value})
        address = ResourceAddress("main", "orders")
        with connect(f"embedded://{store.path}") as client:
            page = client.read_changes(ChangeFeedRequest(address, Beginning()))
            merge_into_postgres(page, None, dsn, "orders", None, columns=Columns({"c": kind}))
            with psycopg.connect(dsn, autocommit=True) as own:
                own.execute(f"ALTER TABLE orders ALTER c TYPE {changed}")
            for repair in (False, True):
                with pytest.raises(MulticloudDbError, match="column c than its mark") as caught:
                    verify(
                        client, address, PostgresTarget(dsn, "orders"), position=page.continuation_token,
                        state=tmp_path / "state", repair=repair,
                    )  # fmt: skip
                assert kind in caught.value.message


def test_a_loader_that_the_program_has_registered_for_itself_changes_no_value(dsn):
    """psycopg's own pages show how all decimals of a program become floats, which have fewer digits."""
    batch = rows(("a", 1, {})).append_column("total", pa.array([Decimal("12345678901234.1234567890")]))
    batch = batch.append_column("count", pa.array([1]))
    merge_into_postgres(batch, None, dsn, "orders", None, create="always")

    def stored():
        return [
            row["state"] for each in PostgresTarget(dsn, "orders").rows(own=True) for row in each.to_pylist()
        ]

    before = stored()
    assert "12345678901234.1234567890" in before[0]
    psycopg.adapters.register_loader("numeric", FloatLoader)
    psycopg.adapters.register_loader("int8", FloatLoader)
    try:
        with psycopg.connect(dsn) as connection:
            [found] = connection.execute("SELECT 1.50::numeric").fetchone()
        assert isinstance(found, float)
        assert stored() == before
    finally:
        psycopg.adapters.register_loader("numeric", NumericLoader)
        psycopg.adapters.register_loader("int8", IntLoader)
