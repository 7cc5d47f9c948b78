"""Runs random snapshots through the Delta sink: the table must equal the source, despite kills and expiry.

Each run plans and reads micro-batches as Spark does, and stores Spark's checkpoint in a folder. The process
dies before or after any commit of the table, and between the commit of the table and the update of the
checkpoint.
"""

import json
import os
import random
import uuid
from datetime import timedelta
from functools import partial

import deltalake
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.table import TableMerger
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from multiclouddb_api import MulticloudDbError
from multiclouddb_embedded import EmbeddedStore
from pyspark_multiclouddb import drop_tombstones, merge_into_delta, sinks
from pyspark_multiclouddb.connection import close_connections
from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.options import parse_options
from pyspark_multiclouddb.readers import PlainStreamReader
from pyspark_multiclouddb.rows import ROW_SCHEMA
from pyspark_multiclouddb.stream import ChangeFeedStreamReader

from .conftest import COLLECTION, Source
from .test_sinks import documents, rows
from .test_tombstones import tombstones

LIVES = int(os.environ.get("MULTICLOUDDB_LIVES", "1"))


class Killed(BaseException):
    """Raised to simulate the death of the process at this point."""


class Query:
    """A query with its checkpoint, as Spark runs it.

    Attributes:
        table: The Delta table.
        checkpoint: The folder of the checkpoint.
    """

    def __init__(self, source, folder, name="query", *, limit=None, plain=False, told=True, **options):
        self.source, self.table, self.name, self.limit = source, folder / "table", name, limit
        self.checkpoint, self.plain, self.told = folder / name, plain, told
        for part in ("offsets", "commits"):
            (self.checkpoint / part).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": uuid.uuid4().hex}))
        bound = {} if limit is None else {"maxRecordsPerTrigger": str(limit)}
        given = {"startingPosition": "snapshot", "pollInterval": "0", **bound, **options}
        self.settings = parse_options(source.options(**given))
        self.restart()

    def restart(self):
        close_connections()
        make = PlainStreamReader if self.plain else ChangeFeedStreamReader
        self.reader = make(self.settings.for_stream())
        if self.plain and self.numbers("offsets"):
            last = self.offset(self.numbers("offsets")[-1])
            self.reader.partitions(last, last)

    def numbers(self, part):
        return sorted(int(path.name) for path in (self.checkpoint / part).iterdir())

    def offset(self, number):
        return json.loads((self.checkpoint / "offsets" / str(number)).read_text().splitlines()[2])

    def step(self):
        """Run the pending batch, or plan the next one. Return False if there are no changes to read."""
        done, planned = self.numbers("commits"), self.numbers("offsets")
        number = len(planned) - 1
        if len(done) == len(planned):
            number += 1
            start = self.offset(number - 1) if number else self.reader.initialOffset()
            most = ReadMaxRows(self.limit) if self.limit else ReadAllAvailable()
            end = self.reader.latestOffset() if self.plain else self.reader.latestOffset(start, most)
            if end == start:
                return False
            text = "\n".join(["v1", json.dumps({"batchWatermarkMs": 0}), json.dumps(end)])
            (self.checkpoint / "offsets" / str(number)).write_text(text)
        self.run(number)
        (self.checkpoint / "commits" / str(number)).write_text("v1\n{}")
        return True

    def run(self, number):
        start = self.offset(number - 1) if number else self.reader.initialOffset()
        tasks = self.reader.partitions(start, self.offset(number))
        batches = [batch for task in reversed(tasks) for batch in self.reader.read(task)]
        table = pa.Table.from_batches(batches, schema=ROW_SCHEMA)
        where = self.checkpoint if self.told else None
        return merge_into_delta(table, number, self.table, self.name, checkpoint=where)

    def drain(self):
        while self.step():
            pass

    def snapshot(self):
        return self.offset(self.numbers("offsets")[-1])["s"]


@pytest.fixture
def kills(monkeypatch):
    """Return a function that makes the process die once, at a random commit to the table."""
    left = {"dice": None, "chance": 0.0}

    def around(original, *args, **kwargs):
        dice, chance = left["dice"], left["chance"]
        if dice is not None and dice.random() < chance:
            left["dice"] = None
            if dice.random() < 0.5:
                original(*args, **kwargs)
            raise Killed
        return original(*args, **kwargs)

    def patched(original):
        return lambda *args, **kwargs: around(original, *args, **kwargs)

    monkeypatch.setattr(DeltaTable, "update", patched(DeltaTable.update))
    monkeypatch.setattr(TableMerger, "execute", patched(TableMerger.execute))
    monkeypatch.setattr(DeltaTable, "create", staticmethod(patched(DeltaTable.create)))
    monkeypatch.setattr(deltalake, "write_deltalake", patched(deltalake.write_deltalake))
    return partial(left.update)


def stale(path):
    """Return the keys whose rows are marked as older than the snapshot."""
    table = DeltaTable(path).to_pyarrow_dataset().scanner(use_threads=False).to_table()
    return [row["key"] for row in table.to_pylist() if not row["order_key"]]


def check(query):
    assert documents(query.table) == query.source.documents
    assert stale(query.table) == []
    assert {json.loads(key)["id"] for key in tombstones(query.table)}.isdisjoint(query.source.documents)


def lose(source):
    """Expire all changes, including deletes, that were made while the query was stopped."""
    source.write(15, seed="lost")
    source.store.trim(COLLECTION, max_count=0)
    source.write(3, seed="kept")


ORDERS = ["ordered", "interleaved", "auto"]


class TestLives:
    @pytest.mark.parametrize("plain", [False, True], ids=["4.2", "4.0"])
    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("seed", range(LIVES))
    def test_equal_after_kills_splits_expired_positions_and_another_query(
        self, tmp_path, kills, order, plain, seed
    ):
        dice = random.Random(f"{seed} {order} {plain}")
        with EmbeddedStore(tmp_path / "store.db", durable=False) as store:
            source = Source(store)
            source.write(120, seed=seed)
            options = {"snapshotOrder": order, "snapshotSegments": dice.choice(["1", "5", "12"])}
            start = partial(
                Query, source, tmp_path, plain=plain, limit=dice.choice([None, 8, 20]),
                failOnDataLoss="resnapshot", **options,
            )  # fmt: skip
            query, deaths, losses = start("first"), 0, 0
            for moment in range(40):
                kills(dice=dice, chance=dice.choice([0.0, 0.3]))
                try:
                    query.step()
                except Killed:
                    deaths += 1
                    query.restart()
                source.write(dice.choice([0, 2, 5]), seed=f"{seed} {moment}")
                if dice.random() < 0.1:
                    source.split(dice.randrange(9))
                pending = query.numbers("offsets") != query.numbers("commits")
                if moment in (12, 25) and not pending:
                    lose(source)
                    losses += 1
                    query.restart()
                if moment == 32:
                    # Another query repairs the same table.
                    query = start("second")
            kills(dice=None)
            query.restart()
            query.drain()
            assert query.snapshot()["over"]
            assert deaths + losses > 1
            check(query)


class TestAnotherSnapshot:
    @pytest.mark.parametrize("order", ORDERS)
    def test_expired_position_begins_one_that_also_finds_missed_deletes(self, source, tmp_path, order):
        source.write(80)
        query = Query(source, tmp_path, snapshotOrder=order, failOnDataLoss="resnapshot")
        query.drain()
        first = query.snapshot()["plan"]
        gone = sorted(source.documents)[:5]
        for key in gone:
            source.store.delete(COLLECTION, key)
            del source.documents[key]
        lose(source)
        query.restart()
        query.drain()
        assert query.snapshot()["plan"] != first
        check(query)
        # A deleted row stays deleted when an older change arrives.
        older = rows(*((key, 1, {"old": True}) for key in gone))
        keys = pa.array([json.dumps({"id": key}, separators=(",", ":")) for key in gone])
        orders = pa.array(["0" * 18 + "1"] * len(gone))
        for name, values in (("key", keys), ("order_key", orders)):
            older = older.set_column(older.column_names.index(name), name, values)
        merge_into_delta(older, None, query.table, None)
        check(query)

    def test_query_that_began_without_a_snapshot_begins_one_too(self, source, tmp_path):
        source.write(40)
        query = Query(source, tmp_path, startingPosition="beginning", failOnDataLoss="resnapshot")
        query.drain()
        lose(source)
        query.restart()
        query.drain()
        assert query.snapshot()["over"]
        check(query)

    def test_new_query_repairs_a_table_that_is_stale(self, source, tmp_path):
        source.write(80)
        Query(source, tmp_path, "first").drain()
        lose(source)
        query = Query(source, tmp_path, "second", limit=10, snapshotSegments="8")
        query.drain()
        check(query)

    def test_position_below_old_changes_as_on_dynamodb(self, source, tmp_path):
        """The floor of the snapshot is lower than every `order_key`, so all older rows must be marked."""
        checkpoint, table = tmp_path / "checkpoint", tmp_path / "table"
        for part in ("offsets", "commits"):
            (checkpoint / part).mkdir(parents=True)

        def batch(number, batch_rows, *, over):
            snapshot = {"plan": "p", "floor": "00", "over": over, "whole": True}
            offset = {"v": 1, "src": "x", "c": {}, "inc": None, "s": snapshot}
            (checkpoint / "offsets" / str(number)).write_text("\n".join(["v1", "{}", json.dumps(offset)]))
            merge_into_delta(batch_rows, number, table, "second", checkpoint=checkpoint)

        def scanned(*keys):
            found = rows(*((key, 0, {"scan": key}) for key in keys))
            floor = pa.array(["00"] * len(keys))
            return found.set_column(found.column_names.index("order_key"), "order_key", floor)

        old = (("a", 1, {}), ("b", 2, {}), ("c", 3, {}), ("gone", 4, {}), ("d", 5, None), ("e", 6, None))
        merge_into_delta(rows(*old), 0, table, "first")
        batch(0, rows(), over=False)
        batch(1, pa.concat_tables([scanned("a", "d"), rows(("c", 9, None), ("b", 8, {"n": 8}))]), over=False)
        batch(2, scanned("c"), over=True)
        batch(3, rows(("d", 10, {"n": 10})), over=True)
        assert documents(table) == {"a": {"scan": "a"}, "b": {"n": 8}, "d": {"n": 10}}
        found = {json.loads(key)["id"]: order for key, order in tombstones(table).items()}
        assert found == {"c": "000009", "e": "00", "gone": "00"}
        [gone] = [row for row in DeltaTable(table).to_pyarrow_table().to_pylist() if "gone" in row["key"]]
        assert gone["new_item_state"] is None

    def test_death_after_a_first_batch_of_which_no_change_can_be_decoded(self, tmp_path, monkeypatch):
        checkpoint, table = tmp_path / "checkpoint", tmp_path / "table"
        (checkpoint / "offsets").mkdir(parents=True)
        snapshot = {"plan": "p", "floor": "00", "over": False, "whole": True}
        poison = {"count": 1, "first": []}
        offset = {"v": 1, "src": "x", "c": {}, "inc": None, "s": snapshot, "poison": poison}
        (checkpoint / "offsets" / "0").write_text("\n".join(["v1", "{}", json.dumps(offset)]))

        def dies(*_):
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(sinks, "_end", dies)
            with pytest.raises(Killed):
                merge_into_delta(rows(), 0, table, "second", checkpoint=checkpoint)
        assert not merge_into_delta(rows(), 0, table, "second", checkpoint=checkpoint)
        assert DeltaTable(table).transaction_version("multiclouddb-snapshot:p") == 0


class TestRefusals:
    def test_another_snapshot_without_the_checkpoint(self, source, tmp_path):
        source.write(30)
        query = Query(source, tmp_path, told=False, failOnDataLoss="resnapshot")
        query.drain()
        lose(source)
        query.restart()
        with pytest.raises(MulticloudDbError, match=r"checkpoint.*startingPosition=snapshot, this table"):
            query.drain()

    def test_checkpoint_that_comes_when_rows_were_merged_without_it(self, source, tmp_path):
        """Without the checkpoint, the sink cannot distinguish the snapshot's rows from older rows."""
        source.write(40)
        merge_into_delta(rows(("old", 1, {})), None, tmp_path / "table", None)
        query = Query(source, tmp_path, limit=5, snapshotSegments="8", told=False)
        query.step()
        query.told = True
        with pytest.raises(MulticloudDbError, match=r"was not given when the snapshot began"):
            query.drain()

    def test_checkpoint_that_comes_when_the_table_was_new(self, source, tmp_path):
        source.write(40)
        query = Query(source, tmp_path, limit=5, snapshotSegments="8", told=False)
        for _ in range(4):
            query.step()
        query.told = True
        query.drain()
        check(query)

    def test_app_id_of_another_query(self, source, tmp_path):
        source.write(10)
        Query(source, tmp_path).drain()
        (tmp_path / "query").rename(tmp_path / "old")
        with pytest.raises(MulticloudDbError, match=r"app_id: is 'query', under which another query"):
            Query(source, tmp_path).drain()

    def test_checkpoint_of_another_snapshot(self, source, tmp_path):
        source.write(10)
        query, other = Query(source, tmp_path, "one"), Query(source, tmp_path, "two")
        for each in (query, other):
            each.step()
        other.step()
        query.checkpoint, other.checkpoint = other.checkpoint, query.checkpoint
        with pytest.raises(MulticloudDbError, match=r"has no offsets/9"):
            merge_into_delta(rows(("a", 1, {})), 9, query.table, "one", checkpoint=query.checkpoint)

    def test_checkpoint_without_a_number(self, tmp_path):
        with pytest.raises(MulticloudDbError, match="checkpoint: must be given together with batch_id"):
            merge_into_delta(rows(("a", 1, {})), None, tmp_path / "table", None, checkpoint=tmp_path)

    def test_batch_that_was_planned_and_expired_says_what_to_do(self, source, tmp_path):
        source.write(40)
        query = Query(source, tmp_path, limit=5, failOnDataLoss="resnapshot")
        while query.step():
            pass
        source.write(20, seed="more")
        query.told = False  # the process dies before the sink
        query.run = lambda number: (_ for _ in ()).throw(Killed)
        with pytest.raises(Killed):
            query.step()
        del query.run
        query.told = True
        lose(source)
        query.restart()
        with pytest.raises(SourceError, match=r"CHECKPOINT_EXPIRED.*startingPosition=snapshot"):
            query.step()
        second = Query(source, tmp_path, "second")
        second.drain()
        check(second)


class TestTombstones:
    def test_stay_until_a_batch_after_the_scan_is_completed(self, source, tmp_path):
        source.write(60)
        query = Query(source, tmp_path, limit=10, snapshotOrder="interleaved", snapshotSegments="8")
        drop = partial(drop_tombstones, query.table, checkpoint=query.checkpoint)
        query.step()
        query.step()
        for key in sorted(source.documents)[:6]:
            source.store.delete(COLLECTION, key)
            del source.documents[key]
        while not query.snapshot()["over"]:
            query.step()
            if not query.snapshot()["over"]:
                assert drop(timedelta(0)) == 0
        last = query.numbers("commits")[-1]
        (query.checkpoint / "commits" / str(last)).unlink()
        assert drop(timedelta(0)) == 0
        query.drain()
        kept = len(tombstones(query.table))
        assert kept >= 1
        assert drop(timedelta(0)) == kept
        check(query)
