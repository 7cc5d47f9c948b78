"""Lives of a table of PostgreSQL that is dropped, and whose Spark checkpoint is restored and copied."""

import psycopg
import pytest

from multiclouddb_postgres import merge_into_postgres
from multiclouddb_tables.merging import MergeRules
from testing.model_lives import ModelRow
from testing.sink_lives import SinkLife

SEEDS = [pytest.param(seed, marks=[pytest.mark.soak] * (seed >= 1)) for seed in range(350)]
MOST = 100


class PostgresLifeTable:
    """A table that no statement of the server sets back to an earlier version."""

    def __init__(self, dsn, dies):
        self._dsn, self.dies = dsn, dies
        self._own = psycopg.connect(dsn, autocommit=True)

    def close(self):
        self._own.close()

    def _run(self, text):
        # Not `Connection.execute`, at which the sink dies.
        return self._own.cursor().execute(text)

    @property
    def exists(self):
        return self._run("SELECT to_regclass('orders') IS NOT NULL").fetchone()[0]

    def merge(self, batch, number, checkpoint):
        merge_into_postgres(batch, number, self._dsn, "orders", "app", checkpoint=checkpoint)

    def rows(self):
        found = self._run("SELECT key, order_key, new_item_state::text, _deleted_at IS NOT NULL FROM orders")
        return [ModelRow(*row) for row in found.fetchall()]

    def restore(self, dice):
        return False

    def copy(self, place):
        return False

    def put_back(self, place):
        raise NotImplementedError

    def drop(self):
        self._run("DROP TABLE orders")


def lived(seed, folder, dsn, dies):
    folder.mkdir()
    table = PostgresLifeTable(dsn, dies)
    try:
        return SinkLife(seed, folder, table).live()
    finally:
        if table.exists:
            table.drop()
        table.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_table_equals_its_collection_or_the_sink_refuses(seed, tmp_path, dsn, deaths):
    lived(seed, tmp_path / "life", dsn, deaths)


def test_every_action_and_both_ends_occur(tmp_path, dsn, deaths):
    lives = [lived(seed, tmp_path / str(seed), dsn, deaths) for seed in range(3)]
    assert all(life.compared for life in lives)
    assert any(life.refused for life in lives)


# `make test` looks for them in lives of a Delta table, whose judge is the same.
@pytest.mark.soak
class TestDefects:
    """Each defect is found by one of the first lives."""

    def find(self, folder, dsn, dies):
        for seed in range(MOST):
            try:
                lived(seed, folder / str(seed), dsn, dies)
            except AssertionError:
                return
        pytest.fail(f"{MOST} lives have not found it")

    def test_mark_is_ignored(self, tmp_path, dsn, deaths, monkeypatch):
        monkeypatch.setattr(MergeRules, "check_place", lambda *_: None)
        self.find(tmp_path, dsn, deaths)

    def test_batch_is_left_out_because_of_its_number(self, tmp_path, dsn, deaths, monkeypatch):
        merge, seen = PostgresLifeTable.merge, {}

        def skipping(table, batch, number, checkpoint):
            query = (checkpoint / "metadata").read_text()
            if number > seen.get(query, -1):
                merge(table, batch, number, checkpoint)
                seen[query] = number

        monkeypatch.setattr(PostgresLifeTable, "merge", skipping)
        self.find(tmp_path, dsn, deaths)
