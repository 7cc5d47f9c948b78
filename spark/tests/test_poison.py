"""Tests what a stream, a batch, a page and the sink do with a change that cannot be decoded."""

import json
import logging

import pyarrow as pa
import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    MulticloudDbError,
    ResourceAddress,
    Snapshot,
    connect,
)
from pyspark_multiclouddb import live_rows, merge_into_delta
from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.options import parse_options
from pyspark_multiclouddb.readers import ChangeFeedReader
from pyspark_multiclouddb.source_columns import ROW_SCHEMA

from .conftest import COLLECTION
from .micro_batches import Query, documents, make_checkpoint, notes_of, write_offset

WRITTEN = 12
LEFT = [n for n in range(WRITTEN) if n not in (3, 4, 8)]


@pytest.fixture
def orders(source):
    """Provide a collection whose changes 4, 5 and 9 cannot be decoded."""
    source.fill(WRITTEN)
    source.damage(4, 5, 9)
    return source


def numbers(rows):
    return sorted(json.loads(row["new_item_state"])["n"] for row in rows)


def pinned(source, **options):
    query = Query(source, **options)
    query.step()
    return query


class TestSkip:
    def test_the_offset_the_report_and_the_log_name_what_is_left_out(self, orders, caplog):
        query = pinned(orders, onPoison="skip")
        with caplog.at_level(logging.WARNING, "multiclouddb.spark"):
            assert query.plan("all")
        assert numbers(query.read()) == LEFT
        end = query.log[-1]["poison"]
        assert end["count"] == query.report["poison"]["count"] == 3
        places = [position.partition(",")[0] for _, position in end["first"]]
        assert sorted(places) == ["sequence 4", "sequence 5", "sequence 9"]
        names = {part.partition_id for part in orders.store.partitions(COLLECTION)}
        assert all(name.rpartition(":")[2] in names for name, _ in end["first"])
        assert all(any(place in each.getMessage() for each in caplog.records) for place in places)

    def test_a_limit_counts_them_and_every_change_is_named_once(self, orders):
        query = pinned(orders, onPoison="skip")
        assert numbers(query.drain(2)) == LEFT
        assert sum(len(end["poison"]["first"]) for end in query.log if "poison" in end) == 3

    @pytest.mark.parametrize("option", ["skip", "fail"])
    def test_a_replay_leaves_out_the_same_changes(self, orders, option):
        """Even if the option has been changed in the meantime, the batch is what its offset says."""
        query = pinned(orders, onPoison="skip")
        assert query.plan("all")
        assert numbers(query.restart(onPoison=option).step()) == LEFT
        assert not query.plan("all")

    def test_a_batch_that_was_planned_without_it_goes_on_and_the_next_offset_names_it(self, orders):
        """Spark repeats the batch that has failed; its end is already stored."""
        query = pinned(orders)
        assert query.plan("all")
        assert "poison" not in query.log[-1]
        assert numbers(query.restart(onPoison="skip").step()) == LEFT
        assert query.step("all") == []
        assert query.log[-1]["poison"]["count"] == query.report["poison"]["count"] == 3
        assert not query.plan("all")

    def test_the_first_batch_of_older_versions_of_spark(self, orders):
        query = Query(orders, is_plain=True, onPoison="skip")
        assert numbers(query.step()) == LEFT
        assert query.log[0]["poison"]["count"] == 3

    def test_a_batch_leaves_them_out_and_its_tasks_say_so(self, orders, caplog):
        reader = ChangeFeedReader(parse_options(orders.options(onPoison="skip")).for_batch())
        with caplog.at_level(logging.WARNING, "multiclouddb.spark"):
            batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        assert numbers(row for batch in batches for row in batch.to_pylist()) == LEFT
        assert sum("sequence" in each.getMessage() for each in caplog.records) == 3

    def test_many_are_counted_and_the_first_ones_named(self, source):
        source.fill(60)
        source.damage(*range(1, 51))
        query = pinned(source, onPoison="skip")
        assert numbers(query.step("all")) == list(range(50, 60))
        assert query.log[-1]["poison"]["count"] == 50
        assert len(query.log[-1]["poison"]["first"]) < 50

    def test_a_row_of_a_snapshot_is_never_left_out(self, orders):
        """A sink would take the document for a deleted one."""
        orders.damage(row="k7")
        with pytest.raises(SourceError, match=r"PROVIDER_ERROR\].*onPoison.*change or delete"):
            Query(orders, onPoison="skip", startingPosition="snapshot").drain()


def test_error_names_partition_position_and_option(orders):
    match = r"^\[MULTICLOUDDB:PROVIDER_ERROR\] embedded:\S+: record at sequence \d.*onPoison=skip"
    with pytest.raises(SourceError, match=match):
        Query(orders).drain()


class TestPages:
    def follow(self, source, table, start, **settings):
        """Merge every page of a run, with a client of its own."""
        with connect(f"embedded://{source.store.path}") as client:
            request = ChangeFeedRequest(ResourceAddress(collection=COLLECTION), start)
            for page in client.iterate_changes(request, until_idle=True, **settings).pages():
                merge_into_delta(page, None, table, None)

    def test_a_page_with_a_skipped_row_of_a_snapshot_is_refused(self, source, path):
        source.fill(10)
        self.follow(source, path, Snapshot())
        source.damage(row="k7")
        with pytest.raises(MulticloudDbError, match=r"INVALID_REQUEST.*cannot be decoded"):
            self.follow(source, path, Snapshot(), on_poison="skip")
        assert documents(path) == source.documents

    def test_a_skipped_change_is_no_reason_to_refuse_a_page(self, source, path):
        source.fill(10)
        source.damage(4)
        self.follow(source, path, Beginning(), on_poison="skip")
        assert len(documents(path)) == 9


def test_first_commit_of_a_table_names_what_is_left_out_and_a_replay_is_the_same(source, path, tmp_path):
    """The first batch has no change that can be decoded, and the table does not exist yet."""
    source.fill(2)
    source.damage(1, 2)
    query, checkpoint = pinned(source, onPoison="skip"), make_checkpoint(tmp_path / "checkpoint", "q1")

    def merge(number):
        for at in (number - 1, number):
            write_offset(checkpoint, at, **query.log[at])
        batches = query.restart(onPoison="fail").batches(number)
        table = pa.Table.from_batches(batches, schema=ROW_SCHEMA)
        table = table.append_column("total", pa.array([1.5] * len(table), pa.float64()))
        return merge_into_delta(table, number, path, "app", checkpoint=checkpoint)

    assert query.plan("all")
    for _ in range(2):
        assert not merge(1)
        poison = json.loads(notes_of(path, "poison")[0])
        places = {position.partition(",")[0] for _, position in poison["first"]}
        assert (poison["count"], places) == (2, {"sequence 1", "sequence 2"})
    source.put("k3", {"n": 3})
    assert query.plan("all")
    assert merge(2), "the table has the columns of the batch"
    assert live_rows(path).read_all()["total"].to_pylist() == [1.5]
