"""Tests how the stream of a table is found in the catalogue, also where no emulator has the case."""

import attrs
import pytest

from multiclouddb_api import ErrorCategory, NewItemStateMode, OldItemStateMode, ResourceAddress
from multiclouddb_spanner.catalog import check_provisioned, find, watch_of
from multiclouddb_spanner.client import CancelScope
from multiclouddb_spi import Deadline, FeedSpec, ProviderFault

HERE = ResourceAddress("shop", "orders")
WATCHED = ["s", "", "orders", True]


class FakeClient:
    """Answers queries on the catalogue with the given rows."""

    role = None

    def __init__(
        self,
        tables=(WATCHED,),
        options=(),
        streams=(),
        dialect="",
        keys=(("", "orders", "id", "INT64"),),
        without_key=(),
    ):
        names = dict.fromkeys([each[0] for each in tables], False) | dict(streams)
        self.answers = {
            "database_options": [[dialect]] if dialect else [],
            "index_columns": [list(key) for key in keys],
            "tables": [list(name) for name in {key[:2]: None for key in keys} | dict.fromkeys(without_key)],
            "change_streams": [[name, everything] for name, everything in names.items()],
            "change_stream_tables": [list(each) for each in tables],
            "change_stream_options": [list(each) for each in options],
        }

    def rows(self, sql, columns, scope, at=None):
        table = sql.partition("information_schema.")[2].split()[0]
        assert all(len(row) == columns for row in self.answers[table])
        return self.answers[table]


def found(address=HERE, configured=None, **settings):
    return find(FakeClient(**settings), address, configured, CancelScope(Deadline.after(5)))


def refused(category, *arguments, **settings):
    with pytest.raises(ProviderFault) as caught:
        found(*arguments, **settings)
    assert caught.value.fault.category == category
    return caught.value.fault.message


class TestFound:
    def test_defaults_are_the_service_s(self):
        stream = found()
        assert (stream.stream, stream.whole, stream.capture, stream.retention) == (
            "s", True, "OLD_AND_NEW_VALUES", None,
        )  # fmt: skip

    def test_retention(self):
        for text, seconds in {"7d": 604800, "36h": 129600, "90m": 5400, "100s": 100, "": None}.items():
            assert found(options=[["s", "retention_period", text]]).retention == seconds

    def test_a_stream_of_everything_watches_it_too(self):
        assert found(tables=(), streams=[("all_stream", True)]).stream == "all_stream"
        keys = (("public", "orders", "id", "bigint"),)
        assert found(tables=(), streams=[("all_stream", "YES")], dialect="POSTGRESQL", keys=keys).postgres

    def test_a_table_of_another_schema_is_another(self):
        columns = (("", "orders", "id"), ("sales", "orders", "b"), ("sales", "orders", "a"))
        keys = tuple((*each, "INT64") for each in columns)
        tables = (WATCHED, ["t", "sales", "orders", True])
        assert found(tables=tables, keys=keys).stream == "s"
        there = found(ResourceAddress("shop", "sales.orders"), tables=tables, keys=keys)
        assert (there.stream, there.key_names) == ("t", ("b", "a"))

    def test_a_name_in_the_configuration_need_not_have_the_case_of_the_stream(self):
        assert found(configured="S").stream == "s"

    @pytest.mark.parametrize("name", ["Items", "items"])
    def test_of_two_names_that_differ_in_case_the_exact_one_is_meant(self, name):
        """In the PostgreSQL dialect, quoted names keep their case."""
        tables = (["Items", "public", "orders", True], ["items", "public", "orders", True])
        there = {"tables": tables, "dialect": "POSTGRESQL", "keys": (("public", "orders", "id", "bigint"),)}
        assert found(configured=name, **there).stream == name
        assert "several" in refused(ErrorCategory.INVALID_REQUEST, configured="ITEMS", **there)

    def test_the_default_schema_of_postgresql_may_be_written(self):
        there = {"tables": (["s", "public", "orders", True],), "dialect": "POSTGRESQL"}
        there["keys"] = (("public", "orders", "id", "bigint"), ("sales", "orders", "n", "bigint"))
        for table in ("orders", "public.orders"):
            stream = found(ResourceAddress("shop", table), **there)
            assert (stream.table, stream.key_names) == ("orders", ("id",))
        assert "no table" in refused(ErrorCategory.NOT_FOUND, ResourceAddress("shop", "public.orders"))

    def test_whether_all_columns_are_watched_is_asked_again(self):
        stream = found()
        assert watch_of(FakeClient(), stream, CancelScope(Deadline.after(5))).whole("orders")
        for tables in ([["s", "", "orders", False]], []):
            watch = watch_of(FakeClient(tables=tables), stream, CancelScope(Deadline.after(5)))
            assert not watch.whole("orders")


class TestRefused:
    @pytest.mark.parametrize(
        "option",
        ["exclude_insert", "exclude_update", "exclude_delete", "exclude_ttl_deletes", "allow_txn_exclusion"],
    )
    def test_what_leaves_changes_out_unless_it_is_named(self, option):
        options = [["s", option, "true"]]
        assert option in refused(ErrorCategory.INVALID_REQUEST, options=options)
        assert found(configured="s", options=options).stream == "s"
        assert found(options=[["s", option, "false"]]).stream == "s"

    @pytest.mark.parametrize("configured", [None, "s"])
    def test_mutable_key_ranges_by_name(self, configured):
        options = [["s", "partition_mode", "MUTABLE_KEY_RANGE"]]
        message = refused(ErrorCategory.UNSUPPORTED_CAPABILITY, configured=configured, options=options)
        assert "'s' has partition_mode = 'MUTABLE_KEY_RANGE'" in message
        assert found(options=[["s", "partition_mode", "IMMUTABLE_KEY_RANGE"]]).stream == "s"

    def test_statements_are_in_the_database_s_dialect(self):
        assert "OPTIONS (" in refused(ErrorCategory.NOT_FOUND, tables=())
        there = {"dialect": "POSTGRESQL", "keys": (("public", "orders", "id", "bigint"),)}
        assert "WITH (" in refused(ErrorCategory.NOT_FOUND, tables=(), **there)

    def test_statements_quote_names_that_postgresql_would_change(self):
        there = {"tables": (), "dialect": "POSTGRESQL", "keys": (("sales", "Orders", "id", "bigint"),)}
        message = refused(ErrorCategory.NOT_FOUND, ResourceAddress("shop", "sales.Orders"), **there)
        assert 'CREATE CHANGE STREAM "Orders_stream" FOR sales."Orders" WITH (' in message

    def test_a_table_that_is_not_there(self):
        assert "no table 'orders'" in refused(ErrorCategory.NOT_FOUND, keys=())

    def test_a_table_without_a_key_column(self):
        """GoogleSQL allows PRIMARY KEY (), a table with one row."""
        message = refused(ErrorCategory.UNSUPPORTED_CAPABILITY, keys=(), without_key=[("", "orders")])
        assert "PRIMARY KEY ()" in message

    @pytest.mark.parametrize(
        ("capture", "new", "old"),
        [
            ("OLD_AND_NEW_VALUES", False, False),
            ("NEW_VALUES", False, False),
            ("NEW_ROW", True, False),
            ("NEW_ROW_AND_OLD_VALUES", True, True),
        ],
    )
    def test_rows_that_are_required_and_not_there(self, capture, new, old):
        stream = found(options=[["s", "value_capture_type", capture]])
        specs = {
            FeedSpec(HERE, new_item_state_mode=NewItemStateMode.REQUIRE): new,
            FeedSpec(HERE, old_item_state_mode=OldItemStateMode.REQUIRE): old,
        }
        for spec, there in specs.items():
            for each in (stream, attrs.evolve(stream, whole=False)):
                if there and each.whole:
                    check_provisioned(each, spec)
                    continue
                with pytest.raises(ProviderFault) as caught:
                    check_provisioned(each, spec)
                assert caught.value.fault.category == ErrorCategory.UNSUPPORTED_CAPABILITY
                assert "ALTER CHANGE STREAM s SET" in caught.value.fault.message
