"""Tests what is proposed from documents, and what is told of those that do not fit."""

import tomllib
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest

from multiclouddb_conformance.sink_harness import events
from multiclouddb_tables import Columns
from multiclouddb_tables.proposal import FEWEST, Check, Survey

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def surveyed(*documents):
    found = Survey()
    for event in events(*((f"k{at}", at + 1, document) for at, document in enumerate(documents))):
        found.add(event)
    return found


def proposed(survey):
    return tomllib.loads("\n".join(survey.toml()))["columns"]


class TestSurvey:
    @pytest.mark.parametrize(
        ("values", "kind"),
        [
            ([True, False], "boolean"),
            ([1, 2**63 - 1], "decimal(38,0)"),
            ([1, -(10**17)], "int64"),
            ([2**70, 1], "decimal(38,0)"),
            ([10**40, 1], "string"),
            ([0.1, 5e-324], "double"),
            ([0.1, float("nan")], "double"),
            ([0.1, 2**53], "double"),
            ([0.1, 2**53 + 1], "decimal(38,1)"),
            ([1, Decimal("1.25")], "decimal(38,2)"),
            ([Decimal("1.25"), 0.5], "double"),
            ([Decimal("0.1"), 0.5], "decimal(38,1)"),
            ([Decimal("0.1"), float("nan")], "string"),
            (["2026-01-31", "2026-02-28"], "string"),
            ([Decimal("0." + "1" * 33), 1], "decimal(38,33)"),
            ([Decimal("1E+6000"), Decimal("0E+5")], "string"),
            ([Decimal("1E+30"), Decimal("1E-20")], "string"),
            (["a", "b"], "string"),
            (["a", 1], "string"),
            ([True, 1], "string"),
            ([AT, AT], "timestamp"),
            ([AT, "2026-01-31"], "string"),
            ([b"a", b""], "binary"),
            ([UUID(int=1), UUID(int=2)], "string"),
            ([[1], [2]], "json"),
            ([[1], 1], "json"),
            ([{"a": 1}, "text"], "json"),
            ([{}, {}], "json"),
        ],
        ids=range(28),
    )
    def test_each_type_holds_all_values_that_were_seen(self, values, kind):
        survey = surveyed(*({"v": each} for each in values * FEWEST))
        columns = proposed(survey)
        assert columns.pop("id") == {"key": "id", "type": "string"}
        assert columns == {"v": kind}
        check = Check(Columns(columns))
        for event in events(*((f"k{at}", 1, {"v": each}) for at, each in enumerate(values))):
            check.add(event)
        assert check.unfit == {}

    def test_fields_of_objects_get_columns_and_taken_names_another_one(self):
        document = {
            "a": {"city": "x", "b.c": {"d": 1}},
            "type": "t",
            "a_city": 1,
            "$x": 'quote"\x7f',
            "id": 2,
        }
        columns = proposed(surveyed(*[document] * FEWEST))
        assert columns["a_city"] == {"path": ["a", "city"], "type": "string"}
        assert columns["a_city_"] == {"path": ["a_city"], "type": "int64"}
        assert columns["a_b.c_d"] == {"path": ["a", "b.c", "d"], "type": "int64"}
        assert columns["type_"] == {"path": ["type"], "type": "string"}
        assert columns["id_"] == {"path": ["id"], "type": "int64"}
        assert columns["$x"] == "string"
        assert len(Columns(columns).columns) == len(columns)

    def test_a_field_that_is_the_key_has_one_column(self):
        found = surveyed(*({"id": f"k{at}"} for at in range(FEWEST)))
        assert proposed(found) == {"id": {"key": "id", "type": "string"}}

    def test_a_value_of_a_database_keeps_its_name_and_days_are_told(self):
        document = {"at": {"$mongo.timestamp": [1, 2]}, "day": "2026-01-31"}
        lines = [*surveyed(*[document] * FEWEST).toml()]
        assert any(line.startswith("day") and "so date fits too" in line for line in lines)
        assert not any("so date fits too" in line for line in lines if not line.startswith("day"))

    def test_nothing_is_proposed_from_few_documents_and_the_number_is_told(self):
        survey = surveyed(*[{"often": 1}] * FEWEST, *[{"rare": 1}] * (FEWEST - 1))
        assert "rare" not in proposed(survey)
        assert any("only 19 documents" in line for line in survey.toml())
        assert [row["type"] for row in survey.rows() if row["column"] == "rare"] == [None]

    def test_the_number_of_paths_is_bounded_and_told(self):
        survey = surveyed(*({f"p{at}.{number}": 1 for number in range(100)} for at in range(50)))
        assert len(survey.rows()) == 2_000 + 1
        assert survey.unlisted == 3_000


class TestCheck:
    def test_counts_with_three_keys(self):
        check = Check(Columns({"n": "int8", "t": "string", "id_": {"key": "id", "type": "int64"}}))
        for event in events(*((f"k{at}", 1, {"n": at * 100, "t": at}) for at in range(6))):
            check.add(event)
        assert check.documents == 6
        assert check.unfit.keys() == {"n", "id_"}
        found = check.unfit["n"]
        assert (found.count, dict(found.kinds)) == (4, {"a number": 4})
        assert found.values == ["200", "300", "400"]
        assert found.keys == ['{"id":"k2"}', '{"id":"k3"}', '{"id":"k4"}']


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Decimal("1.2345"), "a decimal with 1 digits before the point and 4 after it"),
        (Decimal("1E+999999"), "a decimal with 1000000 digits"),
        (Decimal("NaN"), "NaN"),
        (Decimal("-Infinity"), "an infinite number"),
        (float("nan"), "NaN"),
        (2**70, "an integer with 22 digits"),
        (b"a", 'an object {"$bytes": …}'),
    ],
)
def test_the_kind_of_a_value_says_why_it_does_not_fit(value, kind):
    check = Check(Columns({"n": "decimal(4,2)"}))
    for event in events(("k", 1, {"n": value})):
        check.add(event)
    assert dict(check.unfit["n"].kinds) == {kind: 1}
