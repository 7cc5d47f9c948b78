"""Tests the declaration of columns, its form in the mark, and the values that it makes of documents."""

import attrs
import pyarrow as pa
import pytest

from multiclouddb_api import MulticloudDbError, decode_json, encode_json
from multiclouddb_conformance.sink_harness import SOURCE
from multiclouddb_conformance.targets.declared import FITS, MISFITS
from multiclouddb_tables import Column, Columns, TableMark, conversion
from multiclouddb_tables.mark import emptied, lacked

TOML = """
document = false
misfits = "rescue"

[columns]
customer = "string"
total    = { type = "Decimal(12, 2)" }
city     = { path = ["address", "city"], type = "string" }
tenant   = { key = "tenant", type = "string" }
tags     = "json"
"""


def refused(columns, **more):
    with pytest.raises(MulticloudDbError) as caught:
        Columns(columns, **more)
    return caught.value.message


class TestDeclaration:
    def test_a_file_and_a_value_are_the_same(self, tmp_path):
        (tmp_path / "columns.toml").write_text(TOML)
        columns = Columns.from_toml(tmp_path / "columns.toml")
        assert columns == Columns(
            {
                "customer": "string",
                "total": "decimal(12,2)",
                "city": {"path": ["address", "city"], "type": "string"},
                "tenant": {"type": "string", "key": "tenant"},
                "tags": "json",
            },
            document=False,
            misfits="rescue",
        )
        assert columns.columns[2] == Column("city", "string", ("address", "city"))
        assert columns.names == ("customer", "total", "city", "tenant", "tags", "_rescued")
        assert columns.key_names == ("tenant",)
        assert Columns.from_dict(columns.to_dict()) == columns

    @pytest.mark.parametrize(
        "name",
        ["key", "order_key", "timestamp", "new_item_state", "_deleted_at", "_stale_since", "type", "event_id",
         "old_item_state", "by_expiry", "backfilled", "database", "collection", "partition_id", "sequence",
         "_rescued", "_long_key", "Type", "KEY"],
    )  # fmt: skip
    def test_names_of_the_sink_and_of_the_event_are_refused_with_path_as_the_way_out(self, name):
        message = refused({name: "string"})
        assert f"column {name}" in message
        assert f'path = ["{name}"]' in message
        assert Columns({"other": {"path": [name], "type": "string"}}).columns[0].path == (name,)

    @pytest.mark.parametrize(
        ("columns", "told"),
        [
            ({"n": "integer"}, "int64"),
            ({"n": "decimal(39,2)"}, "38 digits"),
            ({"n": "decimal(2,3)"}, "38 digits"),
            ({"n": "decimal"}, "decimal(12,2)"),
            ({"n": {"path": ["n"]}}, "has the type None"),
            ({"n": {"type": "string", "paht": ["n"]}}, "'path'"),
            ({"n": {"type": "string", "path": "a.b"}}, '["address", "city"]'),
            ({"n": {"type": "string", "path": []}}, "path"),
            ({"n": {"type": "string", "path": ["a"], "key": "b"}}, "both path and key"),
            ({"n": {"type": "string", "key": 1}}, "component"),
            ({"n": 1}, "write a type"),
            ({"": "string"}, "name"),
            ({"n": "string", "N": "string"}, "upper and lower case"),
            (["n"], "dictionary"),
        ],
    )
    def test_what_is_no_declaration_is_refused_with_the_way_out(self, columns, told):
        assert told in refused(columns)

    def test_what_is_no_file_is_refused(self, tmp_path):
        for text, told in (
            ("[columns", "no TOML"), ('colums = {}\n[columns]\nn = "string"', "'columns'"),
            ("document = true", "has no [columns]"), ('misfits = "ignore"\n[columns]', '"rescue"'),
        ):  # fmt: skip
            (tmp_path / "columns.toml").write_text(text)
            with pytest.raises(MulticloudDbError, match="INVALID_REQUEST") as caught:
                Columns.from_toml(tmp_path / "columns.toml")
            assert told in caught.value.message
        with pytest.raises(MulticloudDbError) as caught:
            Columns.from_toml(tmp_path / "none.toml")
        assert "none.toml cannot be read" in caught.value.message

    def test_what_has_to_be_filled(self):
        one = Columns({"a": "int64", "b": "string"})
        assert one.to_fill(one) == ()
        assert one.to_fill(None) == ("a", "b")
        assert one.to_fill(Columns({"a": "int32", "c": "date"})) == ("a", "b", "c")
        assert attrs.evolve(one, document=False).to_fill(one) == ("new_item_state",)
        rescued = attrs.evolve(one, misfits="rescue")
        assert (rescued.to_fill(one), one.to_fill(rescued)) == ((), ("_rescued",))


class TestMark:
    def test_a_mark_without_a_declaration_has_the_form_that_earlier_versions_read(self):
        text = TableMark(SOURCE, ("key",)).to_json()
        assert text.startswith('{"v":1,')
        assert TableMark.from_json(text, "t") == TableMark(SOURCE, ("key",))

    def test_a_declaration_comes_back(self):
        mark = TableMark(
            SOURCE,
            ("key", "n"),
            None,
            Columns({"n": "int64"}, misfits="rescue"),
            ("n",),
            ("n", "_rescued"),
            3,
        )
        text = mark.to_json()
        assert text.startswith('{"v":2,')
        assert TableMark.from_json(text, "t") == mark
        for old, new in (("int64", "int63"), ('"unfilled"', '"filled"'), ('"v":2', '"v":3')):
            with pytest.raises(MulticloudDbError):
                TableMark.from_json(text.replace(old, new), "t")

    def test_what_a_tombstone_and_what_a_change_empties(self):
        columns = Columns({"tenant": {"key": "t", "type": "string"}, "n": "int64"})
        mark = TableMark(SOURCE, ("key", "new_item_state", "Old", "tenant", "n"), declared=columns)
        names = ["key", "order_key", "new_item_state", "old", "tenant", "n", "note", "_deleted_at"]
        assert emptied(mark, names) == ["new_item_state", "old", "n"]
        assert lacked(mark, names, ["n", "new_item_state"]) == ["old"]
        assert emptied(None, names) == ["new_item_state", "old", "tenant", "n", "note"]
        assert lacked(None, names, ["n"]) == []


class TestValues:
    @pytest.mark.parametrize(("kind", "value", "held"), FITS, ids=range(len(FITS)))
    def test_what_fits_is_exact_or_the_nearest_number(self, kind, value, held):
        columns = Columns({"c": kind})
        found = conversion.values({"c": value}, "{}", columns)["c"]
        assert (found, type(found)) == (held, type(held))
        assert pa.array([found], columns.fields()[0].type).to_pylist() == [held]

    @pytest.mark.parametrize(("kind", "value"), MISFITS, ids=range(len(MISFITS)))
    def test_for_a_misfit_no_column_has_the_value_that_verify_expects(self, kind, value):
        found = conversion.values({"c": value}, "{}", Columns({"c": kind}))["c"]
        assert isinstance(found, conversion.Misfit)
        told = conversion.values({"c": value}, "{}", Columns({"c": kind}, misfits="rescue"))
        assert told["c"] is None
        assert decode_json(told["_rescued"])["c"]["path"] == ["c"]

    def test_names_that_begin_with_a_dollar_and_tagged_values_are_no_objects_by_mistake(self):
        columns = Columns(
            {
                "a": {"path": ["$x", "$date"], "type": "string"},
                "b": {"path": ["d", "$date"], "type": "string"},
                "c": {"key": "$k", "type": "int64"},
            }
        )
        document = {"$x": {"$date": "text"}, "d": decode_json(b'{"$date":"2026-01-31T12:00:00Z"}')}
        key = encode_json({"$k": 7}).decode()
        assert conversion.values(document, key, columns) == {"a": "text", "b": None, "c": 7}


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"unit": {"price": "double"}}, '"unit.price" = "double".*path = \\["unit", "price"\\]'),
        ({"n": "int64", "misfits": "rescue"}, r"write it above \[columns\]"),
        ({"n": "int64", "document": False}, r"write it above \[columns\]"),
        ({"n": "decimal"}, r"did you mean 'decimal\(12,2\)'"),
        ({"n": "numeric(10, 3)"}, r"did you mean 'decimal\(10,3\)'"),
        ({"n": "int"}, "did you mean 'int64'"),
        ({"n": "varchar(20)"}, "did you mean 'string'"),
        ({"n": "timestmp"}, "did you mean 'timestamp'"),
        ({"n": "?"}, "; choose among"),
    ],
)
def test_a_wrong_declaration_says_what_was_meant(columns, told):
    with pytest.raises(MulticloudDbError, match=told):
        Columns(columns)


def test_a_refusal_names_every_column_with_misfits():
    rows = pa.table({"key": ['{"id":1}'], "new_item_state": ['{"a":"x","b":"y","c":1}'], "type": ["CREATE"]})
    with pytest.raises(MulticloudDbError, match=r"column a: .*; so have b; nothing was merged.*--check"):
        conversion.cut(rows, Columns({"a": "int64", "b": "int64", "c": "int64"}))
