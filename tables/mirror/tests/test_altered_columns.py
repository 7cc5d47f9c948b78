"""Tests what is told of a declared column that has another type in the table, and that it helps."""

import sqlite3
from contextlib import closing

import psycopg
import pytest
from deltalake import DeltaTable, write_deltalake

from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_tables.columns import Columns

from .worlds import FIRST

NUMBERS = Columns({"total": "int64"})


def altered(world):
    """Give the column `total` of a table the type of texts, as somebody else might."""
    if world.kind == "postgres":
        with psycopg.connect(world.server.dsn) as database:
            database.execute("ALTER TABLE orders ALTER total TYPE text")
    elif world.kind == "sqlite":
        with closing(sqlite3.connect(world.folder / "table.db")) as database:
            database.execute("ALTER TABLE orders DROP COLUMN total")
            database.execute("ALTER TABLE orders ADD COLUMN total TEXT")
    else:
        table = DeltaTable(world.folder / "table")
        rows = table.to_pyarrow_table()
        place = rows.schema.get_field_index("total")
        texts = rows.set_column(place, "total", rows["total"].cast("string"))
        write_deltalake(table, texts, mode="overwrite", schema_mode="overwrite")


def test_a_declared_column_of_another_type_is_told_with_what_helps(world):
    world.run(columns=NUMBERS)
    altered(world)
    world.put("o-9", 9)
    for settings in ({}, {"resync": True}, {"columns": NUMBERS, "refill": True}):
        with pytest.raises(MulticloudDbError, match="column total: is declared so that") as caught:
            world.run(**settings)
        assert caught.value.category is ErrorCategory.INVALID_REQUEST
        assert "give it the declared type again there" in caught.value.message
        assert "cast it" not in caught.value.message
    assert world.run(columns=Columns({"total": "string"}), refill=True, prove=True).proof.equal
    assert world.run(columns=NUMBERS, refill=True, prove=True).proof.equal
    assert world.rows() == {**FIRST, "o-9": 9}
    assert world.values("total")["o-9"] == 9
