"""Tests the statements of the page Columns that read a decimal in JSON text."""

import re
import sqlite3
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest

from multiclouddb_conformance.sink_harness import events, page
from multiclouddb_postgres import merge_into_postgres
from multiclouddb_tables.sqlite import merge_into_sqlite

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/columns.md"
TOTALS = {"a": 30, "b": Decimal("1.5"), "c": Decimal("100")}
ODD = {"d": float("nan"), "e": Decimal("NaN"), "f": {"of": "an object"}, "g": None}


def statement(tab):
    [found] = re.findall(rf'=== "{tab}"\n\n    ```sql\n(.*?)    ```', PAGE.read_text(), re.DOTALL)
    return found


@pytest.fixture
def changes():
    live = [(key, 1, {"total": total}) for key, total in TOTALS.items()]
    return page(events(*live, ("gone", 1, None)))


def test_sqlite(changes, tmp_path):
    merge_into_sqlite(changes, None, tmp_path / "shop.db", "orders", None)
    assert sqlite3.connect(tmp_path / "shop.db").execute(statement("SQLite")).fetchone() == (131.5,)


@pytest.mark.parametrize("documents", ["json", "jsonb"])
def test_postgres(changes, dsn, documents):
    merge_into_postgres(changes, None, dsn, "orders", None, documents=documents)
    with psycopg.connect(dsn) as connection:
        assert connection.execute(statement("PostgreSQL")).fetchone() == (Decimal("131.5"),)


def test_documents_that_are_no_trouble_for_the_sum(changes, dsn, tmp_path):
    """In PostgreSQL, NUL in any text of a `json` document ends a query that reads another field of it."""
    odd = [(key, 1, {"total": total}) for key, total in ODD.items()]
    odd += [("h", 1, {"total": 2, "note": "\0a\0\0b"}), ("i", 1, {"total": 3, "note": "\\u0000 \\\0"})]
    merge_into_postgres(changes, None, dsn, "odd", None)
    merge_into_postgres(page(events(*odd)), None, dsn, "odd", None)
    merge_into_sqlite(changes, None, tmp_path / "shop.db", "orders", None)
    merge_into_sqlite(page(events(*odd)), None, tmp_path / "shop.db", "orders", None)
    with psycopg.connect(dsn) as connection:
        found = connection.execute(statement("PostgreSQL").replace("orders", "odd")).fetchone()
    assert found == (Decimal("136.5"),)
    assert sqlite3.connect(tmp_path / "shop.db").execute(statement("SQLite")).fetchone() == (136.5,)
