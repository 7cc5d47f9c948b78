"""Lives of a table of PostgreSQL and the embedded store, judged by a model of their own."""

import runpy
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from multiclouddb_postgres import PostgresTarget, long_keys, merge_into_postgres
from testing.model_lives import DECLARED, Life, ModelRow, with_columns
from testing.planted import PLANTED, lives_until_noticed
from testing.seeds import seeds

SEEDS = seeds(1, 120)
SOURCE = runpy.run_path(str(Path(__file__).parents[2] / "verify" / "tests" / "embedded_model.py"))
# In the life of seed 3, a column is damaged.
DECLARED_SEEDS = seeds(range(3, 4), 50)
VALUES = (1, 1.5, None, "é", [{"a": 1}], True)
COLUMNS = {"text": "new_item_state", "deleted": "_deleted_at", "order_key": "order_key"}


class PostgresModelTable:
    """A table with a primary key: no key has two rows, and no version can be restored.

    With `hashes`, it has the hash of every key.
    """

    def __init__(self, dsn, documents, *, hashes, columns=None):
        self.dsn, self.documents, self.hashes, self.columns = dsn, documents, hashes, columns
        self._own = psycopg.connect(dsn, autocommit=True)

    def close(self):
        self._own.execute("DROP TABLE IF EXISTS orders")
        self._own.close()

    def merge(self, page):
        merge_into_postgres(
            page, None, self.dsn, "orders", None, documents=self.documents,
            long_keys="hash" if self.hashes else "refuse", columns=self.columns,
        )  # fmt: skip

    def target(self):
        return PostgresTarget(self.dsn, "orders")

    def rows(self):
        names = () if self.columns is None else self.columns.names
        found = self._own.execute(
            f"SELECT {'_long_key' if self.hashes else 'key'}, order_key, new_item_state::text, "
            f"_deleted_at IS NOT NULL{''.join(f', {name}::text' for name in names)} FROM orders"
        )
        return [
            ModelRow(key, order, with_columns(text, dict(zip(names, values, strict=True))), is_deleted)
            for key, order, text, is_deleted, *values in found.fetchall()
        ]

    def update(self, key, **values):
        for name, value in values.items():
            column = COLUMNS[name]
            if self.columns is not None and name == "text" and value is not None:
                column = self.columns.names[0]  # the document stays as it is
            statement = sql.SQL("UPDATE orders SET {} = %s WHERE key = %s").format(sql.Identifier(column))
            self._own.execute(statement, (value, self._stored(key)))

    def _stored(self, key):
        return long_keys.stored(key) if self.hashes else key

    def add(self, row):
        stored = self._stored(row.key)
        self._own.execute(
            "INSERT INTO orders (key, order_key, new_item_state) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
            (stored, row.order_key, row.text),
        )
        if self.hashes:
            self._own.execute("UPDATE orders SET _long_key = %s WHERE key = %s", (row.key, stored))

    def delete(self, key):
        self._own.execute("DELETE FROM orders WHERE key = %s", (self._stored(key),))

    def go_back(self, dice):
        """Restore the rows of a dump: here, all of them are older than the source."""
        self._own.execute("""UPDATE orders SET new_item_state = '{"n":-2}', order_key = '0'""")

    def drop(self):
        self._own.execute("DROP TABLE orders")


def live(seed, folder, dsn, columns=None):
    folder = folder / str(seed)
    folder.mkdir()
    source = SOURCE["EmbeddedSource"](folder, VALUES)
    hashes = seed % 4 > 1
    table = PostgresModelTable(dsn, ["json", "jsonb"][seed % 2], hashes=hashes, columns=columns)
    try:
        with pytest.MonkeyPatch.context() as patch:
            if hashes:
                patch.setattr(long_keys, "MOST_KEY_BYTES", 0)
            Life(seed, folder, source, table).live()
    finally:
        table.close()
        source.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_verdict_is_todays_and_no_right_row_is_damaged(seed, tmp_path, dsn):
    live(seed, tmp_path, dsn)


@pytest.mark.parametrize("seed", DECLARED_SEEDS)
def test_every_verdict_is_todays_with_declared_columns(seed, tmp_path, dsn):
    live(seed, tmp_path, dsn, DECLARED)


# `make test` looks for them in lives of a Delta table, whose judge is the same.
@pytest.mark.soak
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_noticed(name, tmp_path, dsn):
    assert lives_until_noticed(name, lambda seed: live(seed, tmp_path, dsn))
