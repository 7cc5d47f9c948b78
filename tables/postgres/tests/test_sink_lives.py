"""Lives of a PostgreSQL table that is dropped and restored, and whose checkpoint is restored and copied."""

import psycopg
import pytest

from multiclouddb_postgres import merge_into_postgres
from multiclouddb_tables.merging import MergeRules
from testing.model_lives import ModelRow
from testing.seeds import seeds
from testing.sink_lives import SinkLife

SEEDS = seeds(1, 100)
MOST = 100


class PostgresLifeTable:
    """A table that no statement of the server sets back to an earlier version; a dump of it does."""

    def __init__(self, dsn, dies, server):
        self._dsn, self.dies, self._server = dsn, dies, server
        self._own = psycopg.connect(dsn, autocommit=True)

    def close(self):
        self._own.close()

    def _run(self, text):
        # Not `Connection.execute`, at which the sink dies.
        return self._own.cursor().execute(text)

    @property
    def exists(self):
        return self._run("SELECT to_regclass('orders') IS NOT NULL").fetchone()[0]

    def merge(self, batch, number, checkpoint, **options):
        merge_into_postgres(batch, number, self._dsn, "orders", "app", checkpoint=checkpoint, **options)

    def rows(self):
        found = self._run("SELECT key, order_key, to_json(t) ->> 'new_item_state', _deleted_at FROM orders t")
        return [ModelRow(*row, at is not None) for *row, at in found.fetchall()]

    def values(self, names):
        columns = ", ".join(f"{name}::text" for name in names)
        return {key: values for key, *values in self._run(f"SELECT key, {columns} FROM orders").fetchall()}

    def restore(self, dice):
        return False

    def copy(self, place):
        tables = ("-t", "orders", "-t", "multiclouddb_marks")
        place.write_text(self._server.run("pg_dump", self._dsn, *tables))
        return True

    def put_back(self, place):
        self._run("DROP TABLE IF EXISTS orders, multiclouddb_marks")
        self._server.run("psql", self._dsn, "-q", "-v", "ON_ERROR_STOP=1", text=place.read_text())

    def drop(self):
        self._run("DROP TABLE orders")


@pytest.fixture
def lived(dsn, deaths, server, tmp_path):
    """Return a function that lets a life happen."""

    def run(seed, **more):
        folder = tmp_path / str(seed)
        folder.mkdir()
        table = PostgresLifeTable(dsn, deaths, server)
        try:
            return SinkLife(seed, folder, table, **more).live()
        finally:
            if table.exists:
                table.drop()
            table.close()

    return run


@pytest.mark.parametrize("seed", SEEDS)
def test_table_equals_its_collection_or_the_sink_refuses(seed, lived):
    lived(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_declared_columns_equal_their_documents_or_the_sink_refuses(seed, lived):
    assert lived(seed, declares=True).compared


def test_every_action_and_both_ends_occur(lived):
    lives = [lived(seed) for seed in range(3)]
    assert all(life.compared for life in lives)
    assert any(life.refused for life in lives)


# `make test` looks for them in lives of a Delta table, whose judge is the same.
@pytest.mark.soak
class TestDefects:
    """Each defect is found by one of the first lives."""

    def find(self, lived):
        for seed in range(MOST):
            try:
                lived(seed)
            except AssertionError:
                return
        pytest.fail(f"{MOST} lives have not found it")

    def test_mark_is_ignored(self, lived, monkeypatch):
        monkeypatch.setattr(MergeRules, "check_place", lambda *_: None)
        self.find(lived)

    def test_batch_is_left_out_because_of_its_number(self, lived, monkeypatch):
        merge, seen = PostgresLifeTable.merge, {}

        def skipping(table, batch, number, checkpoint):
            query = (checkpoint / "metadata").read_text()
            if number > seen.get(query, -1):
                merge(table, batch, number, checkpoint)
                seen[query] = number

        monkeypatch.setattr(PostgresLifeTable, "merge", skipping)
        self.find(lived)
