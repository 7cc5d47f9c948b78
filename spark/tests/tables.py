"""Makes changes for Delta tables, and shows what a table contains after they were merged."""

import json

import pyarrow as pa
from deltalake import DeltaTable

from pyspark_multiclouddb import live_rows
from pyspark_multiclouddb.rows import ROW_SCHEMA

LOST = "lost"
"""The document of a change that the service sends without its document."""


class Killed(BaseException):
    """Raised to simulate the death of the process at this point."""


def rows(*changes):
    """Make changes from tuples of key, order and document. For a delete, the document is None."""
    return pa.Table.from_pylist(
        [
            {
                "event_id": f"{key}@{order}",
                "type": "DELETE" if document is None else "UPDATE",
                "key": json.dumps({"id": key}),
                "new_item_state": None if document in (None, LOST) else json.dumps(document),
                "order_key": f"{order:06d}",
                "sequence": number,
            }
            for number, (key, order, document) in enumerate(changes)
        ],
        schema=ROW_SCHEMA,
    )


def with_columns(table, **values):
    """Replace columns of a table; a column keeps its type if the values allow it."""
    for name, each in values.items():
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.array(each))
    return table


def scanned(*keys, plan="p", floor="000010~", value="scan"):
    """Make the rows that the scan of a snapshot finds."""
    found = rows(*((key, 0, {value: key}) for key in keys))
    names = [f"snapshot:{plan}:{key}" for key in keys]
    many = len(keys)
    return with_columns(found, order_key=[floor] * many, event_id=names, backfilled=[True] * many)


def random_changes(dice, first, count, keys=20):
    return [
        (f"k{dice.randrange(keys)}", order, {"n": order} if dice.random() < 0.75 else None)
        for order in range(first, first + count)
    ]


def apply(model, changes):
    for key, _, document in sorted(changes, key=lambda change: change[1]):
        if document is None:
            model.pop(key, None)
        else:
            model[key] = document


def documents(path):
    """Return the documents of a table by their ids."""
    table = live_rows(path).read_all()
    found = {json.loads(row["key"])["id"]: json.loads(row["new_item_state"]) for row in table.to_pylist()}
    assert len(found) == table.num_rows
    return found


def table_of(path):
    """Return all rows of a table by the ids of their documents."""
    found = DeltaTable(path).to_pyarrow_dataset().scanner(use_threads=False).to_table().to_pylist()
    table = {json.loads(row["key"])["id"]: row for row in found}
    assert len(table) == len(found)
    return table


def tombstones(path):
    return {key: row["order_key"] for key, row in table_of(path).items() if row["_deleted_at"] is not None}


def check_equal(path, source):
    """Check that a table contains what its source contains, and that no row waits for a snapshot."""
    assert documents(path) == source.documents
    assert all(row["order_key"] for row in table_of(path).values())


def make_checkpoint(folder, query=None, batches=0):
    """Make the folder of a checkpoint, with the id of its query and with offsets without a snapshot."""
    for part in ("offsets", "commits"):
        (folder / part).mkdir(parents=True)
    if query is not None:
        (folder / "metadata").write_text(json.dumps({"id": query}))
    for number in range(batches):
        write_offset(folder, number)
    return folder


def write_offset(folder, number, **fields):
    offset = {"v": 1, "src": "x", "c": {}, "inc": None, **fields}
    text = "\n".join(["v1", json.dumps({"batchWatermarkMs": 0}), json.dumps(offset)])
    (folder / "offsets" / str(number)).write_text(text)


def notes_of(path, name):
    """Return what the commits of a table say under a name, from the oldest commit on."""
    history = DeltaTable(path).history()
    return [each[f"multiclouddb.{name}"] for each in reversed(history) if f"multiclouddb.{name}" in each]
