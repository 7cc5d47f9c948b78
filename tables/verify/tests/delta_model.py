"""A Delta table that the model of `testing.model_lives` reads and damages itself."""

import shutil

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from multiclouddb_verify import DeltaTarget
from pyspark_multiclouddb import merge_into_delta
from testing.model_lives import ModelRow, with_columns


class DeltaModelTable:
    """The table; with `columns`, each row has the fields of its document in columns of these names too."""

    def __init__(self, path, columns=None):
        self.path, self.columns = path, columns
        self._read = None, []

    def merge(self, page):
        merge_into_delta(page, None, self.path, None, create="always", columns=self.columns)

    def target(self):
        return DeltaTarget(self.path)

    def rows(self):
        """Read the table, unless there is no commit since it was read."""
        commits = sorted(each.name for each in (self.path / "_delta_log").iterdir())
        if self._read[0] != commits:
            self._read = commits, self._rows()
        return self._read[1]

    def _rows(self):
        table = DeltaTable(self.path).to_pyarrow_dataset().scanner(use_threads=False).to_table()
        return [
            ModelRow(row["key"], row["order_key"], self._text(row), row["_deleted_at"] is not None)
            for row in table.to_pylist()
        ]

    def _text(self, row):
        names = () if self.columns is None else self.columns.names
        return with_columns(row["new_item_state"], {name: row[name] for name in names})

    def update(self, key, **values):
        sql = {}
        for name, value in values.items():
            column = {"text": "new_item_state", "deleted": "_deleted_at"}.get(name, name)
            sql[column] = "NULL" if value is None else f"'{value}'"
            if name == "deleted":
                sql[column] = "to_timestamp_micros(1)"
        if self.columns is not None and values.get("text") is not None:
            # Only a column is wrong: the document stays as it is.
            sql[self.columns.names[0]] = sql.pop("new_item_state")
        DeltaTable(self.path).update(predicate=_is(key), updates=sql)

    def add(self, row):
        schema = DeltaTable(self.path).to_pyarrow_dataset().schema
        values = {"key": row.key, "order_key": row.order_key, "new_item_state": row.text}
        added = pa.Table.from_pylist([values], schema=schema)
        write_deltalake(self.path, added, mode="append")

    def delete(self, key):
        DeltaTable(self.path).delete(_is(key))

    def go_back(self, dice):
        table = DeltaTable(self.path)
        table.restore(dice.randrange(table.version()))

    def drop(self):
        shutil.rmtree(self.path)
        self._read = None, []


def _is(key):
    return "key = '" + key.replace("'", "''") + "'"
