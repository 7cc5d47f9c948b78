"""Lives of a table that Spark merges and the embedded store, judged by a model of their own."""

import runpy
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from multiclouddb_api.arrow import events_to_arrow
from pyspark_multiclouddb import TableTarget, merge_into_table
from testing.model_lives import DECLARED, Life, ModelRow, with_columns
from testing.planted import PLANTED, lives_until_noticed
from testing.seeds import in_soak

from .scala_catalog import table_in

LIVES = [
    pytest.param(0, 1, id="short"),
    *(pytest.param(seed, 9, marks=pytest.mark.soak, id=str(seed)) for seed in in_soak(0, 5)),
]
SOURCE = runpy.run_path(str(Path(__file__).parents[2] / "tables" / "verify" / "tests" / "embedded_model.py"))
VALUES = (1, 1.5, None, "é", [{"a": 1}], True)
COLUMNS = {"text": "new_item_state", "deleted": "_deleted_at"}

pytestmark = [pytest.mark.usefixtures("few_tasks"), pytest.mark.timeout(1800)]


class SparkModelTable:
    """A table of the test catalog; an older version of it is set back by its files."""

    def __init__(self, spark, folder, columns=None):
        self._columns, self._names = columns, () if columns is None else columns.names
        self._spark, self._lake, self._folder = spark, folder, folder / "shop" / "orders"
        self._table, self._number = table_in(spark, folder), 0
        self._read = None, []

    def merge(self, page):
        batch = pa.Table.from_batches([events_to_arrow(page.events)])
        if self._number and not batch.num_rows:
            return  # a batch without rows changes no table
        # Without rows, a frame needs its columns.
        rows = batch if batch.num_rows else []
        frame = self._spark.createDataFrame(rows, from_arrow_schema(batch.schema, prefer_timestamp_ntz=True))
        merge_into_table(frame, self._number, self._table, create_using="test", columns=self._columns)
        self._number += 1

    def target(self):
        return TableTarget(self._spark, self._table)

    def _versions(self):
        return sorted(int(each.stem) for each in self._folder.glob("*.version"))

    def rows(self):
        """Read the table, unless there is no commit since it was read."""
        if self._read[0] != (versions := self._versions()):
            columns = ["key", "order_key", "new_item_state", "_deleted_at IS NOT NULL", *self._names]
            found = self._spark.sql(f"SELECT {', '.join(columns)} FROM {self._table}").collect()
            self._read = (
                versions,
                [
                    ModelRow(
                        key, order, with_columns(text, dict(zip(self._names, values, strict=True))), deleted
                    )
                    for key, order, text, deleted, *values in found
                ],
            )
        return self._read[1]

    def update(self, key, **values):
        columns = dict(COLUMNS)
        if self._columns is not None and values.get("text") is not None:
            columns["text"] = self._names[0]  # the document stays as it is
        sets = [
            f"{columns.get(name, name)} = {'current_timestamp()' if name == 'deleted' else literal(value)}"
            for name, value in values.items()
        ]
        self._spark.sql(f"UPDATE {self._table} SET {', '.join(sets)} WHERE key = {literal(key)}")

    def add(self, row):
        values = ", ".join(map(literal, (row.key, row.order_key, row.text)))
        self._spark.sql(f"INSERT INTO {self._table} (key, order_key, new_item_state) VALUES ({values})")

    def delete(self, key):
        self._spark.sql(f"DELETE FROM {self._table} WHERE key = {literal(key)}")

    def go_back(self, dice):
        versions = self._versions()
        old, new = dice.choice(versions), versions[-1] + 1
        shutil.copy(self._folder / f"{old}.version", self._folder / f"{new}.version")

    def drop(self):
        shutil.rmtree(self._lake)
        self._number, self._read = 0, (None, [])


def literal(text):
    return "NULL" if text is None else "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def live(seed, folder, spark, steps=9, columns=None):
    folder = folder / str(seed)
    folder.mkdir()
    source = SOURCE["EmbeddedSource"](folder, VALUES)
    try:
        table = SparkModelTable(spark, folder / "lake", columns)
        Life(seed, folder, source, table, steps=steps).live()
    finally:
        source.close()


@pytest.mark.parametrize(("seed", "steps"), LIVES)
def test_every_verdict_is_todays_and_no_right_row_is_damaged(seed, steps, tmp_path, spark):
    live(seed, tmp_path, spark, steps)


@pytest.mark.parametrize(("seed", "steps"), LIVES)
def test_every_verdict_is_todays_with_declared_columns(seed, steps, tmp_path, spark):
    live(seed, tmp_path, spark, steps, DECLARED)


@pytest.mark.soak
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_noticed(name, tmp_path, spark):
    assert lives_until_noticed(name, lambda seed: live(seed, tmp_path, spark))
