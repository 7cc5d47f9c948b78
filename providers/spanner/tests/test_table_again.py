"""Tests tables of a stream FOR ALL that are dropped, renamed, or created again while they are read."""

import pytest

from multiclouddb_api import (
    Beginning,
    ErrorCategory,
    MulticloudDbError,
    Now,
    OperationOptions,
    ResourceAddress,
    Snapshot,
    connect,
)
from multiclouddb_spanner import values

from .feeds import feed, once
from .servers.emulator import STILL
from .test_emulator import drained, page, refused

WHOLE = "value_capture_type = 'NEW_ROW_AND_OLD_VALUES'"
TABLE = "CREATE TABLE items (id STRING(9) NOT NULL, n INT64) PRIMARY KEY (id)"
ANOTHER_NAME = "CREATE TABLE items (other STRING(9) NOT NULL, n INT64) PRIMARY KEY (other)"
ANOTHER_TYPE = "CREATE TABLE items (id BYTES(9) NOT NULL, n INT64) PRIMARY KEY (id)"
MORE_COLUMNS = "CREATE TABLE items (id STRING(9) NOT NULL, n INT64) PRIMARY KEY (id, n)"
AGAIN = [ANOTHER_NAME, ANOTHER_TYPE, MORE_COLUMNS]
ALL = f"CREATE CHANGE STREAM everything FOR ALL OPTIONS ({WHOLE})"


@pytest.fixture
def at_once(monkeypatch):
    """Let a client check the table at each read, instead of once a minute."""
    monkeypatch.setattr("multiclouddb_spanner.source._CHECK_SECONDS", 0.0)


@pytest.fixture
def everything(still):
    made = still.database(TABLE, ALL)
    yield made
    made.drop()


def put(database, *rows, names=("id", "n"), table="items"):
    with database.batch() as batch:
        batch.insert(table, names, rows)


@pytest.mark.emulator(*STILL)
@pytest.mark.usefixtures("at_once")
class TestGone:
    @pytest.mark.parametrize("statement", ["DROP TABLE items", "ALTER TABLE items RENAME TO others"])
    def test_a_table_that_is_gone_is_told(self, everything, ours, still, statement):
        here = ResourceAddress(everything.database_id, "items")
        token = page(ours, here, Now()).continuation_token
        put(everything, ["a", 1])
        everything.update_ddl([statement]).result(60)
        for client in (ours, connect(still.url)):
            with pytest.raises(MulticloudDbError) as caught:
                drained(client, here, token)
            assert caught.value.category == ErrorCategory.NOT_FOUND
            # The client that knew the table may look it up anew before it reads on.
            texts = ["there is no table 'items'", *["was dropped or renamed"] * (client is ours)]
            assert any(text in caught.value.message for text in texts), caught.value.message
            refused(ErrorCategory.NOT_FOUND, client, here)
        client.close()

    def test_a_length_may_grow_and_columns_may_come(self, everything, ours):
        here = ResourceAddress(everything.database_id, "items")
        token = page(ours, here, Now()).continuation_token
        longer = "ALTER TABLE items ALTER COLUMN id STRING(MAX) NOT NULL"
        everything.update_ddl([longer, "ALTER TABLE items ADD COLUMN m INT64"]).result(60)
        put(everything, ["a", 1])
        assert len(drained(ours, here, token)) == 1

    @pytest.mark.parametrize("table", AGAIN)
    def test_one_with_another_key_is_refused_by_everybody(self, everything, ours, still, table):
        here = ResourceAddress(everything.database_id, "items")
        token = page(ours, here, Now()).continuation_token
        everything.update_ddl(["DROP TABLE items", table]).result(60)
        with connect(still.url) as client:
            for one in (ours, client):
                assert "recreated under the same name" in refused(
                    ErrorCategory.INVALID_REQUEST, one, here, token
                )
                assert drained(one, here, Now()) == []


class TestKept:
    @pytest.mark.parametrize(
        ("before", "after"), [*((TABLE, again) for again in AGAIN), (MORE_COLUMNS, TABLE)], ids=str
    )
    def test_a_change_with_another_key_is_neither_delivered_nor_poison(self, before, after):
        """It comes before the minute has passed after which the table is looked at.

        With a key column more, two rows would have one key.
        """
        with feed(before, ALL, initial_partitions=1) as items:
            token = items.token()
            items.put(("a", 1))
            token = items.page(token).continuation_token
            items.run("DROP TABLE items", after)
            name = "other" if after is ANOTHER_NAME else "id"
            rows = [("AAAA", 2), ("AAAA", 3)] if after is MORE_COLUMNS else [("AAAA", 2)]
            items.put(*rows, names=(name, "n"))
            for _ in range(2):
                message = items.refused(ErrorCategory.INVALID_REQUEST, token)
                assert "recreated under the same name" in message

    @pytest.mark.parametrize("postgres", [False, True])
    def test_a_type_that_is_not_known_is_not_called_another_table(self, monkeypatch, postgres):
        monkeypatch.delitem(values._PYTHON, "INT64")
        with feed(postgres=postgres, initial_partitions=1) as items:
            items.put(("a", 1))
            with pytest.raises(MulticloudDbError) as caught:
                items.page(Beginning())
            assert "a column has the type 'INT64', which this version does not know" in caught.value.message
            assert caught.value.detail.skip_token

    def test_a_change_of_the_earlier_table_is_named_and_can_be_skipped(self):
        with feed(TABLE, ALL, initial_partitions=1) as items:
            items.put(("a", 1))
            items.run("DROP TABLE items", ANOTHER_NAME)
            items.put(("b", 2), names=("other", "n"))
            with pytest.raises(MulticloudDbError) as caught:
                items.page(Beginning())
            assert caught.value.category == ErrorCategory.PROVIDER_ERROR
            assert "an earlier table 'items', which had another primary key" in caught.value.message
            token = caught.value.detail.skip_token
            for _ in range(3):  # the drop itself may have deleted the row
                try:
                    events = items.drain(token)
                    break
                except MulticloudDbError as error:
                    token = error.detail.skip_token
            once(events, 1)

    def test_the_table_is_looked_at_once_a_minute(self):
        with feed(TABLE, ALL, initial_partitions=1) as items:
            token = items.token()
            items.drain(token)
            items.server.journal.clear()
            for number in range(10):
                items.put((f"k{number}", number))
                items.page(token)
            assert [call for call in items.server.journal.calls if "index_columns" in call.sql] == []


@pytest.mark.emulator(*STILL)
def test_a_table_without_a_key_column_is_refused_by_name(still, ours):
    """GoogleSQL's reference allows `PRIMARY KEY ()`, a table with one row."""
    database = still.database("CREATE TABLE single (v INT64) PRIMARY KEY ()", ALL)
    here = ResourceAddress(database.database_id, "single")
    for start in (Now(), Beginning(), Snapshot()):
        message = refused(ErrorCategory.UNSUPPORTED_CAPABILITY, ours, here, start)
        assert "PRIMARY KEY ()" in message
    assert here in ours.collections(database.database_id, OperationOptions())
    database.drop()
