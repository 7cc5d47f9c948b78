"""Lives of a table that Spark merges, which is dropped, and whose checkpoint is restored and copied."""

import shutil

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from multiclouddb_tables.merging import MergeRules
from pyspark_multiclouddb import merge_into_table
from testing.model_lives import ModelRow
from testing.seeds import in_soak
from testing.sink_lives import SinkLife

from .scala_catalog import table_in

# A batch takes as long as a life on the other tables.
LIVES = [
    pytest.param(0, 2, id="short"),
    *(pytest.param(seed, 12, marks=pytest.mark.soak, id=str(seed)) for seed in in_soak(0, 5)),
]
MOST = 100

pytestmark = [pytest.mark.usefixtures("few_tasks"), pytest.mark.timeout(1800)]


class SparkLifeTable:
    """A table of the test catalog, which has no statement that restores a version."""

    def __init__(self, spark, folder, dies):
        self._spark, self._folder, self.dies = spark, folder, dies
        self._table = table_in(spark, folder)

    @property
    def exists(self):
        return self._folder.exists()

    def merge(self, batch, number, checkpoint, **options):
        # Without rows, a frame needs its columns.
        rows = batch if batch.num_rows else []
        frame = self._spark.createDataFrame(rows, from_arrow_schema(batch.schema, prefer_timestamp_ntz=True))
        merge_into_table(frame, number, self._table, checkpoint=checkpoint, create_using="test", **options)

    def rows(self):
        text = "new_item_state" if "new_item_state" in self._spark.table(self._table).columns else "NULL"
        columns = f"key, order_key, {text}, _deleted_at IS NOT NULL"
        return [ModelRow(*row) for row in self._spark.sql(f"SELECT {columns} FROM {self._table}").collect()]

    def values(self, names):
        found = self._spark.table(self._table).select("key", *names).collect()
        return {key: values for key, *values in found}

    def restore(self, dice):
        return False

    def copy(self, place):
        shutil.copytree(self._folder, place)
        return True

    def put_back(self, place):
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(place, self._folder)

    def drop(self):
        shutil.rmtree(self._folder)


def lived(seed, folder, spark, dies, steps=12, **more):
    folder.mkdir()
    return SinkLife(seed, folder, SparkLifeTable(spark, folder / "lake", dies), steps=steps, **more).live()


@pytest.mark.parametrize(("seed", "steps"), LIVES)
def test_table_equals_its_collection_or_the_sink_refuses(seed, steps, tmp_path, spark, table_deaths):
    lived(seed, tmp_path / "life", spark, table_deaths, steps)


@pytest.mark.parametrize(("seed", "steps"), LIVES)
def test_declared_columns_equal_their_documents_or_the_sink_refuses(
    seed, steps, tmp_path, spark, table_deaths
):
    assert lived(seed, tmp_path / "life", spark, table_deaths, steps, declares=True).compared


class TestDefects:
    """Each defect is found by one of the first lives."""

    def find(self, folder, spark, dies):
        for seed in range(MOST):
            try:
                lived(seed, folder / str(seed), spark, dies)
            except AssertionError:
                return
        pytest.fail(f"{MOST} lives have not found it")

    @pytest.mark.soak
    def test_mark_is_ignored(self, tmp_path, spark, table_deaths, monkeypatch):
        monkeypatch.setattr(MergeRules, "check_place", lambda *_: None)
        self.find(tmp_path, spark, table_deaths)

    @pytest.mark.soak
    def test_batch_is_left_out_because_of_its_number(self, tmp_path, spark, table_deaths, monkeypatch):
        merge, seen = SparkLifeTable.merge, {}

        def skipping(table, batch, number, checkpoint):
            query = (checkpoint / "metadata").read_text()
            if number > seen.get(query, -1):
                merge(table, batch, number, checkpoint)
                seen[query] = number

        monkeypatch.setattr(SparkLifeTable, "merge", skipping)
        self.find(tmp_path, spark, table_deaths)
