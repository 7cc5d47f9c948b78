"""Tests that a key has one form: two keys are equal exactly if the service takes them for one row.

The truth is Google's emulator: it refuses to insert a second row whose key it takes for that of the first.
"""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest
from google.api_core.exceptions import AlreadyExists
from hypothesis import given
from hypothesis import strategies as st

from multiclouddb_api import (
    ErrorCategory,
    MulticloudDbError,
    MulticloudDbKey,
    ResourceAddress,
    Snapshot,
    canonical_json,
)
from multiclouddb_spanner.values import KEY_FORMS, key_part, key_value, normal

from .feeds import Feed
from .servers.emulator import STILL
from .test_emulator import drained

TYPES = {
    "i": "INT64", "n": "NUMERIC", "f": "FLOAT64", "g": "FLOAT32", "z": "TIMESTAMP", "d": "DATE",
    "b": "BYTES(9)",
}  # fmt: skip
NAN = float("nan")
NOON = datetime(2024, 1, 2, 12, 4, 5, 120_000, timezone(timedelta(hours=9)))
# For each column: values as they are written, and the forms in which the same key may be given.
WRITTEN = {
    "i": {"5": [5, Decimal(5), Decimal("5.0"), "5", 5.0], str(-(2**63)): [-(2**63), Decimal(-(2**63))]},
    "n": {
        "5": [Decimal(5), Decimal("5.0"), 5, "5", 5.0],
        "1.50": [Decimal("1.5"), Decimal("1.500"), "1.50", 1.5],
        "1E2": [Decimal("1E+2"), 100, Decimal(100)],
        "0": [Decimal("-0"), 0, -0.0],
        "99999999999999999999999999999.999999999": [Decimal("99999999999999999999999999999.999999999")],
    },
    "f": {
        -0.0: [0.0, -0.0, 0, Decimal(0)],
        5.0: [5.0, 5, Decimal(5)],
        0.1: [0.1, Decimal("0.1")],
        NAN: [NAN, "NaN"],
        float("-inf"): [float("-inf")],
    },
    "g": {0.1: [0.1, 0.10000000149011612], -0.0: [0.0, -0.0], 16777217.0: [16777216, 16777216.0]},
    "z": {
        "2024-01-02T03:04:05Z": [
            "2024-01-02T03:04:05Z", "2024-01-02T03:04:05.000Z", "2024-01-02T03:04:05+00:00",
            "2024-01-02T04:04:05+01:00", datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
        ],
        "2024-01-02T03:04:05.120000000Z": ["2024-01-02T03:04:05.12Z", "2024-01-02T03:04:05.120Z", NOON],
        "2024-01-02T03:04:05.123456789Z": ["2024-01-02T03:04:05.123456789Z"],
    },
    "d": {"2024-1-2": ["2024-01-02", "2024-1-2"]},
    "b": {"AP8=": [b"\x00\xff", "AP8="]},
}  # fmt: skip


@pytest.fixture(scope="module")
def tables():
    from .servers.emulator import shared

    statements = [f"CREATE TABLE {name} (k {kind} NOT NULL) PRIMARY KEY (k)" for name, kind in TYPES.items()]
    made = shared(STILL).database(*statements, "CREATE CHANGE STREAM s FOR ALL")
    yield made
    made.drop()


@pytest.mark.emulator(*STILL)
class TestForms:
    @pytest.mark.parametrize("table", WRITTEN)
    def test_a_row_is_found_under_each_form_of_its_key(self, tables, ours, table):
        here = ResourceAddress(tables.database_id, table)
        with tables.batch() as batch:
            batch.insert(table, ["k"], [[value] for value in WRITTEN[table]])
        rows = {row.key for row in drained(ours, here, Snapshot()) if row.backfilled}
        assert len(rows) == len(WRITTEN[table])
        for forms in WRITTEN[table].values():
            keys = [MulticloudDbKey({"k": form}) for form in forms]
            found = ours.lookup(here, keys)
            assert list(found) == list(dict.fromkeys(keys))
            assert {row.key for row in found.values()} <= rows  # and none is None
            assert len({row.key for row in found.values()}) == 1

    @pytest.mark.parametrize(
        ("table", "values"),
        [
            ("f", [7.0, 0.25]),
            ("n", ["7", "0.25", "1E1", "10.0", "0010"]),
            ("z", ["2025-01-01T00:00:00Z", "2025-01-01T00:00:00.0Z", "2025-01-01T00:00:00.000000001Z"]),
            ("d", ["2025-02-03", "2025-2-3", "2025-02-04"]),
            ("b", ["AAA=", "AAE="]),
        ],
    )
    def test_two_keys_are_equal_exactly_if_there_is_one_row(self, tables, table, values):
        code = TYPES[table].partition("(")[0]
        for number, one in enumerate(values):
            for other in values[number:]:
                same = key_value("k", code, one) == key_value("k", code, other)
                with tables.batch() as batch:
                    batch.insert_or_update(table, ["k"], [[one]])
                try:
                    with tables.batch() as batch:
                        batch.insert(table, ["k"], [[other]])
                except AlreadyExists:
                    assert same, (one, other)
                else:
                    assert not same, (one, other)
                with tables.batch() as batch:
                    batch.delete(table, spanner_keys(one, other))


def spanner_keys(*values):
    from google.cloud import spanner

    return spanner.KeySet(keys=[[value] for value in values])


class TestOneForm:
    """On the scripted server, because Google's emulator loses NaN and fractions in change records."""

    @pytest.mark.parametrize("postgres", [False, True])
    def test_change_scan_and_lookup_have_the_same_text(self, postgres):
        if postgres:
            table = "CREATE TABLE items (f float8, z timestamptz, d date, b bytea, PRIMARY KEY (f, z, d, b))"
            stream = "CREATE CHANGE STREAM s FOR items WITH (value_capture_type = 'NEW_ROW')"
        else:
            table = "CREATE TABLE items (f FLOAT64, z TIMESTAMP, d DATE, b BYTES(9)) PRIMARY KEY (f, z, d, b)"
            stream = "CREATE CHANGE STREAM s FOR items OPTIONS (value_capture_type = 'NEW_ROW')"
        items = Feed(table, stream, postgres=postgres)
        try:
            token = items.token()
            times = ["2024-01-02T03:04:05.1200Z", "2024-01-02T03:04:05Z", "0001-01-01T00:00:00.000000001Z"]
            rows = [(value, at, "2024-1-2", "AP8=") for value in (-0.0, "NaN", 0.5) for at in times]
            items.scripted.server.commit(items.scripted.database, write(rows, ("f", "z", "d", "b")))
            events = items.drain(token)
            scanned = [row for row in items.drain(Snapshot()) if row.backfilled]
            keys = {event.key.canonical(): event.key for event in events}
            assert len(keys) == len(events) == 9
            assert {row.key.canonical() for row in scanned} == set(keys)
            found = items.client.lookup(items.address, list(keys.values()))
            assert [row.key.canonical() for row in found.values()] == list(keys)
            assert all(str(key["f"]) != "-0.0" for key in keys.values())
            # The rows are as they were stored.
            stored = {str(event.new_item_state["f"]) for event in events}
            assert stored == {"-0.0", "nan", "0.5"}
            for one, other in zip(sorted(events, key=text), sorted(scanned, key=text), strict=True):
                assert canonical_json(one.new_item_state) == canonical_json(other.new_item_state)
        finally:
            items.close()

    @given(st.datetimes(timezones=st.just(UTC)), st.integers(0, 9))
    def test_a_time_has_one_text(self, at, zeros):
        text = at.isoformat(timespec="microseconds").removesuffix("+00:00")
        form = normal(f"{text}{'0' * min(zeros, 3)}Z", KEY_FORMS["TIMESTAMP"])
        assert form == key_value("z", "TIMESTAMP", at) == key_value("z", "TIMESTAMP", f"{text}+00:00")
        assert not form.rstrip("Z").endswith("0") or "." not in form

    @given(st.decimals(-(10**29), 10**29, places=9), st.integers(0, 5))
    def test_a_number_has_one_text(self, number, zeros):
        if abs(number) >= 10**29:
            return
        text = format(number, "f") + "0" * zeros if "." in format(number, "f") else format(number, "f")
        form = key_value("n", "NUMERIC", text)
        assert str(form) == str(key_value("n", "NUMERIC", number))
        assert form == number
        assert key_part("n", form) == str(form)

    def test_another_spelling_of_a_float_of_32_bits_is_the_same_number(self):
        for text in ("0.1", "0.10000000149011612"):
            assert key_value("g", "FLOAT32", text) == key_value("g", "FLOAT32", 0.1) == 0.10000000149011612


def write(rows, names):
    from multiclouddb_spanner_emulator import Write

    return Write("insert", "items", names, [list(row) for row in rows])


def text(event):
    return event.key.canonical()


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("INT64", 5.5), ("INT64", 2**63), ("INT64", True), ("INT64", "x5"), ("INT64", b"5"), ("INT64", NAN),
        ("NUMERIC", Decimal("0.0000000001")), ("NUMERIC", NAN), ("NUMERIC", "x5"),
        ("NUMERIC", Decimal("1E+999999")),
        ("FLOAT64", 2**53 + 1), ("FLOAT64", Decimal("0.1000000000000000000001")), ("FLOAT64", "x5"),
        ("FLOAT32", 1e300), ("TIMESTAMP", "2024-13-01x5"), ("TIMESTAMP", datetime(2024, 1, 1)),  # noqa: DTZ001
        ("DATE", "x5"), ("DATE", datetime(2024, 1, 1, tzinfo=UTC)), ("BYTES", "x5"), ("UUID", "x5"),
        ("BOOL", 1), ("STRING", 5),
    ],
)  # fmt: skip
def test_what_no_row_can_have_is_refused_without_its_value(code, value):
    with pytest.raises(MulticloudDbError) as caught:
        key_value("k", code, value)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert code in caught.value.message
    assert "x5" not in caught.value.message


def test_a_uuid_may_be_given_as_text():
    value = UUID("12345678-1234-5678-1234-56781234567a")
    for form in (value, str(value).upper(), value.hex):
        assert key_value("u", "UUID", form) == value
