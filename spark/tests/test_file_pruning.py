"""Tests that a merge reads only the files that can contain its keys, and never skips such a file."""

import json
import random

import pyarrow as pa
from deltalake import DeltaTable

from pyspark_multiclouddb import merge_into_delta

from .test_sinks import apply, documents, random_changes, rows


def metrics(path):
    return DeltaTable(path).history(1)[0]["operationMetrics"]


def test_neighbouring_keys_are_merged_without_the_other_files(tmp_path):
    path = tmp_path / "table"
    for first in range(0, 800, 100):
        merge_into_delta(rows(*((f"k{first + n:04d}", 1, {}) for n in range(100))), None, path, None)
    assert len(DeltaTable(path).file_uris()) == 8
    merge_into_delta(rows(*((f"k{number:04d}", 2, {}) for number in range(310, 320))), None, path, None)
    found = metrics(path)
    assert found["num_target_files_scanned"] == 1
    assert found["num_target_files_skipped_during_scan"] == 7
    assert found["num_target_rows_updated"] == 10


def test_keys_of_any_length_and_script_are_found_again(tmp_path):
    """Delta truncates the statistics of long texts, and cannot round up a text of the highest character."""
    path, dice, model = tmp_path / "table", random.Random(3), {}
    ends = ["", "a", "é", "\uffff", "\U0010ffff", "\U0010ffff" * 40, "z" * 300, "\U0010fffe"]
    names = [
        head * many + end for head in ("", "a", "\U0010ffff", "ü") for many in (1, 63, 200) for end in ends
    ]
    names = sorted(set(names))
    for batch in range(15):
        first = dice.randrange(len(names))
        some = names[first : first + 8]
        changes = [
            (name, order, document)
            for (_, order, document), name in zip(
                random_changes(dice, batch * 100, 20), dice.choices(some, k=20), strict=True
            )
        ]
        apply(model, changes)
        table = rows(*changes)
        keys = pa.array([json.dumps({"id": name}, ensure_ascii=False) for name, _, _ in changes])
        table = table.set_column(table.column_names.index("key"), "key", keys)
        merge_into_delta(table, None, path, None)
    assert documents(path) == model
    found = DeltaTable(path).to_pyarrow_dataset().scanner(use_threads=False).to_table()["key"]
    assert len(found) == len(found.unique())
