"""Tests what the begin and the end of a snapshot do to the rows that a Delta table already has."""

import json
from datetime import timedelta

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from multiclouddb_api import MulticloudDbError
from pyspark_multiclouddb import drop_tombstones, merge_into_delta

from .test_sinks import documents, rows
from .test_tombstones import tombstones


class Merging:
    """A query whose checkpoint is written by hand, and its table.

    Attributes:
        table: The Delta table.
        passes_checkpoint: True to pass the checkpoint to the sink.
    """

    def __init__(self, folder, name="query"):
        self.table, self.name, self.checkpoint, self.number = folder / "table", name, folder / name, 0
        self.passes_checkpoint = True
        for part in ("offsets", "commits"):
            (self.checkpoint / part).mkdir(parents=True)

    def batch(self, changes, *, plan="p", floor="000010~", over=False):
        """Merge the next batch, which belongs to the snapshot with this id and floor."""
        offset = {"v": 1, "src": "x", "c": {}, "inc": None}
        offset["s"] = {"plan": plan, "floor": floor, "over": over, "whole": True}
        text = "\n".join(["v1", "{}", json.dumps(offset)])
        (self.checkpoint / "offsets" / str(self.number)).write_text(text)
        self.number += 1
        checkpoint = self.checkpoint if self.passes_checkpoint else None
        return merge_into_delta(changes, self.number - 1, self.table, self.name, checkpoint=checkpoint)


def scanned(*keys, plan="p", floor="000010~", value="scan"):
    """Make the rows that a scan finds."""
    found = rows(*((key, 0, {value: key}) for key in keys))
    columns = {
        "order_key": [floor] * len(keys),
        "event_id": [f"snapshot:{plan}:{key}" for key in keys],
        "backfilled": [True] * len(keys),
    }
    for name, values in columns.items():
        place = found.column_names.index(name)
        found = found.set_column(place, found.schema.field(name), pa.array(values))
    return found


@pytest.fixture
def query(tmp_path):
    return Merging(tmp_path)


def times(path):
    found = DeltaTable(path).to_pyarrow_dataset().scanner(use_threads=False).to_table()
    return dict(zip(found["key"].to_pylist(), found["_deleted_at"].to_pylist(), strict=True))


class TestBegin:
    def test_second_snapshot_with_the_floor_of_the_first(self, query):
        """On DynamoDB, all snapshots have the same floor, so the rows of the first one must be marked."""
        query.batch(scanned("a", "gone", floor="00"), floor="00", over=True)
        again = {"plan": "q", "floor": "00"}
        query.batch(rows(), **again)
        query.batch(scanned("a", **again, value="again"), **again, over=True)
        assert documents(query.table) == {"a": {"again": "a"}}
        assert tombstones(query.table) == {'{"id": "gone"}': "00"}

    def test_rows_below_the_floor_are_not_rewritten(self, query):
        merge_into_delta(rows(("a", 1, {}), ("b", 2, {})), 0, query.table, "older")
        before = DeltaTable(query.table).file_uris()
        query.batch(rows())
        assert DeltaTable(query.table).file_uris() == before
        query.batch(scanned("a", "b", "c"), over=True)
        before = DeltaTable(query.table).file_uris()
        query.batch(rows(), plan="later", floor="000020~")
        assert DeltaTable(query.table).file_uris() == before

    def test_rows_of_another_snapshot_than_that_of_the_checkpoint(self, query):
        query.batch(scanned("a"))
        with pytest.raises(MulticloudDbError, match=r"belongs to the snapshot p, but the batch .* of other"):
            query.batch(scanned("b", plan="other"))
        assert documents(query.table) == {"a": {"scan": "a"}}

    @pytest.mark.parametrize("separate", [True, False], ids=["own line", "same line"])
    def test_query_that_also_reads_another_source(self, query, separate):
        """The rows of the other source are not in the snapshot, so the sink would delete them."""
        query.batch(rows())
        offsets = query.checkpoint / "offsets" / "0"
        *lines, offset = offsets.read_text().splitlines()
        lines += [offset, offset] if separate else [json.dumps({"one": offset, "other": json.loads(offset)})]
        offsets.write_text("\n".join(lines))
        query.number = 0
        with pytest.raises(MulticloudDbError, match="a query that reads a snapshot and another source"):
            merge_into_delta(rows(("a", 1, {})), 0, query.table, "query", checkpoint=query.checkpoint)
        assert not query.table.exists()

    def test_checkpoint_that_comes_when_a_scan_without_rows_is_over(self, query):
        """The sink does not know what the table contained before the scan, so it leaves these rows alone."""
        query.passes_checkpoint = False
        query.batch(rows(), over=True)
        query.batch(rows(("early", 1, {"n": 1}), ("a", 11, {"n": 11})), over=True)
        query.passes_checkpoint = True
        query.batch(rows(("a", 12, {"n": 12})), over=True)
        assert documents(query.table) == {"early": {"n": 1}, "a": {"n": 12}}


class TestEnd:
    def test_tombstone_that_is_older_than_the_snapshot_keeps_its_time(self, query):
        merge_into_delta(rows(("a", 1, {}), ("b", 2, None)), 0, query.table, "older")
        before = times(query.table)['{"id": "b"}']
        query.batch(rows())
        query.batch(scanned("c"), over=True)
        assert times(query.table)['{"id": "b"}'] == before
        assert set(tombstones(query.table)) == {'{"id": "a"}', '{"id": "b"}'}

    def test_table_without_tombstones_gets_them(self, query):
        """An earlier version of the sink created the table, and the snapshot contains no rows."""
        schema = pa.schema([("key", pa.string()), ("order_key", pa.string()), ("n", pa.int64())])
        table = pa.Table.from_pylist([{"key": '{"id": "a"}', "order_key": "000001", "n": 1}], schema=schema)
        write_deltalake(query.table, table)
        query.batch(rows(), over=True)
        assert tombstones(query.table) == {'{"id": "a"}': "000010~"}

    def test_happens_once(self, query):
        query.batch(scanned("a"), over=True)
        version = DeltaTable(query.table).version()
        assert not query.batch(rows(), over=True)
        assert DeltaTable(query.table).version() == version
        query.batch(rows(("a", 11, {"n": 11})), over=True)
        assert DeltaTable(query.table).version() == version + 1
        merge_into_delta(rows(("late", 1, {"n": 1})), None, query.table, None)
        query.batch(rows(("a", 12, {"n": 12})), over=True)
        assert documents(query.table) == {"a": {"n": 12}, "late": {"n": 1}}

    def test_table_that_is_partitioned(self, query):
        """A document that the snapshot did not contain keeps its partition, and loses its other columns."""
        schema = rows().schema
        kept = [schema.field(name) for name in ("key", "order_key", "timestamp", "new_item_state")]
        DeltaTable.create(query.table, pa.schema([*kept, ("day", pa.string())]), partition_by="day")
        batch = rows(("a", 1, {"n": 1}), ("gone", 2, {"n": 2}))
        merge_into_delta(batch.append_column("day", pa.array(["mo", "tu"])), 0, query.table, "older")
        query.batch(rows())
        query.batch(scanned("a").append_column("day", pa.array(["we"])), over=True)
        assert documents(query.table) == {"a": {"scan": "a"}}
        found = DeltaTable(query.table).to_pyarrow_dataset().scanner(use_threads=False).to_table()
        found = {row["key"]: (row["day"], row["new_item_state"]) for row in found.to_pylist()}
        assert found == {'{"id": "a"}': ("we", '{"scan": "a"}'), '{"id": "gone"}': ("tu", None)}


class TestCleaning:
    def test_waits_for_the_first_completed_batch_and_for_the_end_of_the_scan(self, query):
        def drop():
            return drop_tombstones(query.table, timedelta(0), checkpoint=query.checkpoint)

        query.batch(rows(("a", 11, None)))
        assert drop() == 0
        commits = query.checkpoint / "commits"
        (commits / "0").touch()
        assert drop() == 0
        query.batch(scanned("b"), over=True)
        assert drop() == 0
        (commits / "1").touch()
        assert drop() == 1
