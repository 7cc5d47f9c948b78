"""Tests what two sinks do to one Delta table at the same time."""

import pyarrow as pa
import pytest

from multiclouddb_api import MulticloudDbError
from multiclouddb_conformance.sink_harness import SOURCE, rows
from multiclouddb_tables.delta import DeltaTarget
from multiclouddb_tables.mark import TableMark

NAMES = ["key", "order_key", "new_item_state", "type"]


def test_column_that_another_sink_adds_first_with_another_type(tmp_path):
    """`deltalake` would write the text 007 as the number 7."""
    path, batch = tmp_path / "table", rows(("a", 1, {})).select(NAMES)
    made = DeltaTarget(path)
    made.prepare(batch.drop_columns("type").schema, TableMark(SOURCE))
    sinks = [DeltaTarget(path, new_columns="add") for _ in range(2)]
    assert all(sink.exists for sink in sinks)
    numbers, texts = (batch.append_column("n", pa.array([value])) for value in (7, "007"))
    sinks[0].prepare(numbers.drop_columns("type").schema)
    with pytest.raises(MulticloudDbError, match=r"column n: is string in the batch and long"):
        sinks[1].prepare(texts.drop_columns("type").schema)
    sinks[0].merge(numbers, {}, is_last=True)
    [found] = [row for part in DeltaTarget(path).rows(own=["n"]) for row in part.to_pylist()]
    assert found["state"] == '{"n":7}'
