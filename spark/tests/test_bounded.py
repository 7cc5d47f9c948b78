"""Tests a micro-batch that is larger than the driver accepts: the stream must still make progress."""

import random
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.table import TableMerger

from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_conformance.sink_harness import rows as changes
from multiclouddb_tables import Columns
from pyspark_multiclouddb import latest_by_key, live_rows, merge_into_delta, pieces

from .micro_batches import apply, documents, random_changes, read_counted, rows, scanned, with_columns

SPARSE = [f"'f{number}', CAST(NULL AS BIGINT)" for number in range(25)]
"""The fields of a struct without values. Arrow needs eight bytes for each of them."""
MOSTLY = {
    "text": ["repeat('é', 150)"],
    "struct": ["named_struct('a', named_struct('b', repeat('x', 300)))"],
    "array": ["sequence(1, 40)"],
    "array of sparse structs": [f"transform(sequence(1, 2), n -> named_struct({', '.join(SPARSE)}))"],
    "numbers": [f"{number} AS f{number}" for number in range(25)],
    "maps and times": ["named_struct('n', 1) as `a.b`", "now() AS at", "map(id, true) as flags"],
}
# These are the values whose size is the hardest to estimate.
OFTEN = ("text", "array of sparse structs", "maps and times")


def collected_in_pieces(frame, max_bytes):
    """Collect changes that belong to no snapshot."""
    added = [f"CAST(NULL AS STRING) AS {name}" for name in pieces.HELPERS]
    return pieces.collected_in_pieces(frame.selectExpr("*", *added), max_bytes)


def is_nothing_kept(spark):
    return spark._jsparkSession.sharedState().cacheManager().isEmpty()


def test_piece_takes_at_most_half_of_what_the_driver_accepts():
    most, limits = 64 << 20, {"1g": 64 << 20, "1m": 512 << 10, "10KB": 5 << 10, "3000": 1500, "0": 64 << 20}
    cases = [(limit, most, expected) for limit, expected in limits.items()]
    for limit, max_bytes, expected in [*cases, ("1g", 1 << 30, 512 << 20), ("1m", 7, 7)]:
        conf = {"spark.driver.maxResultSize": limit}
        frame = SimpleNamespace(sparkSession=SimpleNamespace(conf=conf))
        assert pieces._bound(frame, max_bytes) == expected, limit


class TestPieces:
    def changes(self, count=500):
        dice = random.Random(7)
        changes = random_changes(dice, 0, count, keys=150)
        model = {}
        apply(model, changes)
        dice.shuffle(changes)
        return changes, model

    def test_batch_is_several_commits_and_the_source_is_read_once(self, spark, tmp_path, path):
        changes, model = self.changes()
        frame = spark.createDataFrame(rows(*changes)).repartition(3)
        frame = read_counted(frame, tmp_path / "reads")
        assert merge_into_delta(frame, 0, path, "app", max_bytes=4000)
        assert (tmp_path / "reads").read_text() == "read\n" * 3
        assert documents(path) == model
        table = DeltaTable(path)
        assert table.version() > 3
        # The part that was already merged is merged again, which changes nothing.
        assert merge_into_delta(frame, 1, path, "app", max_bytes=9000)
        assert DeltaTable(path).version() == table.version()

    def test_batch_that_fails_at_its_last_piece_is_merged_again(self, spark, tmp_path, path, monkeypatch):
        """A batch that fails keeps nothing in Spark."""
        changes, model = self.changes()
        frame, table = spark.createDataFrame(rows(*changes)), path
        merges, fails_at, execute = [], None, TableMerger.execute

        def failing(merger):
            merges.append(merger)
            if len(merges) == fails_at:
                raise RuntimeError("the last piece fails")
            return execute(merger)

        monkeypatch.setattr(TableMerger, "execute", failing)
        merge_into_delta(frame, 0, tmp_path / "other", "app", max_bytes=4000)
        assert len(merges) > 2
        fails_at = len(merges)
        merges.clear()
        with pytest.raises(MulticloudDbError, match="the last piece fails") as caught:
            merge_into_delta(frame, 0, table, "app", max_bytes=4000)
        assert is_nothing_kept(spark), caught
        assert merge_into_delta(frame, 0, table, "app", max_bytes=9000)
        assert documents(table) == model
        assert is_nothing_kept(spark)

    def test_pieces_are_full_and_share_no_key(self, spark, monkeypatch):
        """With few parts, each part contains keys, so a piece that reads one part too many would show."""
        monkeypatch.setattr(pieces, "_BUCKETS", 64)
        changes, _ = self.changes()
        frame = spark.createDataFrame(rows(*changes)).select("key", "order_key", "type", "new_item_state")
        found = [piece.rows for piece in collected_in_pieces(frame, 3000)]
        keys = [key for piece in found for key in piece["key"].to_pylist()]
        assert len(keys) == len(set(keys)) == len({key for key, _, _ in changes})
        # Two pieces in sequence are together larger than the bound.
        assert 3 < len(found) <= 2 * sum(piece.nbytes for piece in found) / 3000 + 2
        assert max(piece.num_rows for piece in found[1:]) > 10

    def test_snapshot_without_the_checkpoint_is_refused_where_rows_are(self, spark, path):
        merge_into_delta(rows(("old", 1, {"n": 1})), 0, path, "older")
        frame = spark.createDataFrame(scanned("a", "b"))
        with pytest.raises(MulticloudDbError, match=r"snapshot of which .* has no mark"):
            merge_into_delta(frame, 0, path, "app")
        assert documents(path) == {"old": {"n": 1}}

    def test_column_may_have_any_name(self, spark, path):
        names = ["_size", "_bucket", "row", "a`b", "a.b", "Total"]
        batch = rows(("a", 1, {}), ("a", 2, {}), ("b", 1, {}))
        for name in names:
            batch = batch.append_column(name, pa.array([1, 2, 3]))
        merge_into_delta(spark.createDataFrame(batch), 0, path, "app", max_bytes=1)
        found = DeltaTable(path).to_pyarrow_table().sort_by("key").to_pylist()
        assert [[row[name] for name in names] for row in found] == [[2] * len(names), [3] * len(names)]

    @pytest.mark.parametrize(
        "values",
        [
            pytest.param(values, id=name, marks=[] if name in OFTEN else pytest.mark.soak)
            for name, values in MOSTLY.items()
        ],
    )
    def test_bound_holds_for_what_arrow_really_takes_of_mostly(self, spark, values):
        columns = ["CAST(id AS STRING) AS key", "'1' AS order_key", "'CREATE' AS type", *values]
        frame = spark.range(100).selectExpr(*columns)
        found = list(collected_in_pieces(frame, 10_000))
        # A table needs a fixed amount for each column, and the sizes of its buffers are rounded up.
        assert max(piece.rows.nbytes for piece in found) <= 10_000 + 1_000
        assert sum(piece.rows.num_rows for piece in found) == 100
        assert [piece.is_last for piece in found] == [*[False] * (len(found) - 1), True]
        assert found[0].rows.column_names == frame.columns

    def test_frame_without_rows_makes_the_table_only_if_it_is_the_first(self, spark, path):
        frame = spark.createDataFrame(rows(("a", 1, {}))).where("false")
        assert not merge_into_delta(frame, None, path, None)
        assert not path.exists()
        assert not merge_into_delta(frame, 0, path, "app")
        assert documents(path) == {}

    def test_single_row_above_the_bound_is_a_piece(self, spark):
        frame = spark.createDataFrame(rows(("a", 1, {"text": "x" * 9000}), ("b", 1, {})))
        assert sorted(piece.rows.num_rows for piece in collected_in_pieces(frame, 1000)) == [1, 1]

    def test_latest_by_key_of_a_frame_is_that_of_its_table(self, spark):
        changes, _ = self.changes()
        table = rows(*changes).append_column("a.b", pa.array(range(len(changes))))
        frame = latest_by_key(spark.createDataFrame(table))
        assert frame.columns == table.column_names
        expected = latest_by_key(table).sort_by("key").drop_columns("timestamp")
        assert frame.sort("key").toArrow().drop_columns("timestamp") == expected

    @pytest.mark.parametrize(
        ("values", "match"),
        [
            ({"type": ["UPDATE", "van"]}, "whose type is not CREATE, UPDATE or DELETE"),
            ({"key": ["a", None]}, "rows without key, order_key or type"),
            ({"order_key": ["1", None]}, "rows without key, order_key or type"),
            ({"type": ["UPDATE", None]}, "rows without key, order_key or type"),
            ({"Total": [1, 1], "total": [2, 2]}, "column total: differs from the column Total only in"),
        ],
    )
    def test_invalid_batch_is_an_error(self, spark, path, values, match):
        batch = rows(("a", 1, {}), ("a", 2, {}))
        for name in values:
            if name not in batch.column_names:
                batch = batch.append_column(name, pa.array(values[name]))
        batch = with_columns(batch, **values)
        with pytest.raises(MulticloudDbError, match=match):
            merge_into_delta(spark.createDataFrame(batch), 0, path, "app")
        assert not path.exists()


def test_a_misfit_in_a_later_piece_is_refused_before_the_first_is_committed(spark, path):
    batch = changes(*((f"k{number}", 1, {"n": number}) for number in range(20)), ("bad", 1, {"n": "x"}))
    frame, columns = spark.createDataFrame(batch), Columns({"n": "int64"})
    with pytest.raises(MulticloudDbError, match="1 of the documents") as caught:
        merge_into_delta(frame, 0, path, "app", max_bytes=1, columns=columns)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert not path.exists()
    rescued = Columns(columns.columns, misfits="rescue")
    assert merge_into_delta(frame, 0, path, "app", max_bytes=1, columns=rescued)
    assert len(live_rows(path, ["n"]).read_all()) == 21
