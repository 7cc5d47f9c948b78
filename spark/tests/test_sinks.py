"""Tests that the sink finds the last change of each key and merges idempotently into a Delta table."""

import json
import random

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from multiclouddb_api import MulticloudDbError
from pyspark_multiclouddb import latest_by_key, live_rows, merge_into_delta
from pyspark_multiclouddb.rows import ROW_SCHEMA


def rows(*changes):
    """Make changes from tuples of key, order and document. For a delete, the document is None."""
    return pa.Table.from_pylist(
        [
            {
                "event_id": f"{key}@{order}",
                "type": "DELETE" if document is None else "UPDATE",
                "key": json.dumps({"id": key}),
                "new_item_state": None if document is None else json.dumps(document),
                "order_key": f"{order:06d}",
                "sequence": number,
            }
            for number, (key, order, document) in enumerate(changes)
        ],
        schema=ROW_SCHEMA,
    )


def documents(path):
    """Return the table as a mapping from key to document."""
    table = live_rows(path).read_all()
    found = {json.loads(row["key"])["id"]: json.loads(row["new_item_state"]) for row in table.to_pylist()}
    assert len(found) == table.num_rows
    return found


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


class TestLatestByKey:
    def test_highest_order_key_wins_in_any_order_of_rows(self):
        table = latest_by_key(rows(("b", 3, {}), ("a", 9, None), ("a", 10, {"n": 1}), ("b", 2, {"n": 2})))
        assert table["event_id"].to_pylist() == ["b@3", "a@10"]
        assert table.schema.equals(ROW_SCHEMA)

    def test_event_that_came_twice_is_one_row(self):
        assert latest_by_key(rows(("a", 1, {}), ("a", 1, {}))).num_rows == 1

    def test_rows_keep_their_order(self):
        table = latest_by_key(rows(("d", 1, {}), ("b", 4, {}), ("c", 2, {}), ("b", 3, {}), ("a", 5, {})))
        assert table["event_id"].to_pylist() == ["d@1", "b@4", "c@2", "a@5"]

    def test_missing_order_key_counts_as_the_highest(self):
        table = rows(("a", 1, {}), ("a", 2, {}), ("a", 3, {}))
        position = table.schema.get_field_index("order_key")
        order_keys = pa.array(
            [*table["order_key"].to_pylist()[:1], None, "9"], table.schema.field(position).type
        )
        table = table.set_column(position, "order_key", order_keys)
        assert latest_by_key(table)["event_id"].to_pylist() == ["a@2"]

    @pytest.mark.parametrize("count", [0, 1])
    def test_few_rows(self, count):
        table = rows(*[("a", 1, {})][:count])
        assert latest_by_key(table).equals(table)

    @pytest.mark.parametrize("keys", [300, 100_000])
    def test_against_a_model(self, keys):
        dice = random.Random(1)
        changes = random_changes(dice, 0, 5000, keys=keys)
        dice.shuffle(changes)
        chunks = [rows(*changes[start : start + 700]) for start in range(0, 5000, 700)]
        got = latest_by_key(pa.concat_tables(chunks))
        model = {}
        for key, order, _ in sorted(changes, key=lambda change: change[1]):
            model[key] = f"{key}@{order}"
        assert sorted(got["event_id"].to_pylist()) == sorted(model.values())


class TestMergeIntoDelta:
    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / "table"

    def test_against_a_model_with_replays(self, path):
        """Batches are merged in order; some are merged twice, as after a crash."""
        dice, model = random.Random(2), {}
        for number in range(12):
            changes = random_changes(dice, number * 100, 100)
            apply(model, changes)
            dice.shuffle(changes)
            assert merge_into_delta(rows(*changes), number, path, "app")
            if dice.random() < 0.5:
                assert not merge_into_delta(rows(*changes), number, path, "app")
            assert documents(path) == model

    def test_batch_that_is_known_is_left_out(self, path):
        merge_into_delta(rows(("a", 1, {"n": 1})), 4, path, "app")
        assert not merge_into_delta(rows(("a", 9, {"n": 9})), 4, path, "app")
        assert not merge_into_delta(rows(("a", 9, {"n": 9})), 3, path, "app")
        assert documents(path) == {"a": {"n": 1}}

    def test_marker_and_rows_are_one_commit(self, path):
        merge_into_delta(rows(("a", 1, {"n": 1})), 4, path, "app")
        version = DeltaTable(path).version()
        merge_into_delta(rows(("a", 2, {"n": 2})), 5, path, "app")
        table = DeltaTable(path)
        assert table.version() == version + 1
        assert table.transaction_version("app") == 5

    def test_another_query_has_its_own_numbers(self, path):
        merge_into_delta(rows(("a", 1, {"n": 1})), 4, path, "first")
        assert merge_into_delta(rows(("a", 2, {"n": 2})), 0, path, "second")
        assert documents(path) == {"a": {"n": 2}}

    def test_older_change_does_not_win(self, path):
        merge_into_delta(rows(("a", 5, {"n": 5})), 0, path, "app")
        merge_into_delta(rows(("a", 4, {"n": 4}), ("a", 3, None)), 1, path, "app")
        assert documents(path) == {"a": {"n": 5}}
        merge_into_delta(rows(("a", 4, None)), 2, path, "app")
        assert documents(path) == {"a": {"n": 5}}

    def test_delete_removes_and_a_delete_of_nothing_is_nothing(self, path):
        merge_into_delta(rows(("a", 1, {"n": 1}), ("b", 2, {"n": 2})), 0, path, "app")
        merge_into_delta(rows(("a", 3, None), ("c", 4, None)), 1, path, "app")
        assert documents(path) == {"b": {"n": 2}}

    def test_empty_batch_makes_no_table(self, path):
        assert not merge_into_delta(rows(), 0, path, "app")
        assert not path.exists()

    def test_columns(self, path):
        merge_into_delta(rows(("a", 1, {"n": 1})), 0, path, "app")
        names = ["key", "timestamp", "new_item_state", "order_key", "_deleted_at"]
        assert [field.name for field in DeltaTable(path).schema().fields] == names

    def test_columns_of_the_user_are_kept(self, path):
        batch = rows(("a", 1, {"n": 1})).select(["type", "key", "order_key"])
        merge_into_delta(batch.append_column("n", pa.array([1])), 0, path, "app")
        assert [field.name for field in DeltaTable(path).schema().fields] == [
            "key",
            "order_key",
            "n",
            "_deleted_at",
        ]

    def test_missing_column_is_named(self, path):
        with pytest.raises(MulticloudDbError, match="batch: has no column order_key"):
            merge_into_delta(rows(("a", 1, {})).drop_columns("order_key"), 0, path, "app")

    def test_frame_of_a_session_in_another_time_zone(self, spark, path):
        table = rows(("a", 1, {"n": 1}))
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        try:
            frame = spark.createDataFrame(table)
            assert merge_into_delta(frame, 0, path, "app")
            assert merge_into_delta(frame.limit(1), 1, path, "app")
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
        assert merge_into_delta(rows(("b", 2, {"n": 2})), 2, path, "app")
        assert documents(path) == {"a": {"n": 1}, "b": {"n": 2}}
