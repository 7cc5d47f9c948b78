"""Tests that a batch number counts only for the query that has stored it."""

import json
import logging
from types import SimpleNamespace

import pytest
from deltalake import DeltaTable

from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_spi.faults import AFTER_AN_OUTAGE
from pyspark_multiclouddb import merge_into_delta

from .test_sinks import documents, rows
from .test_snapshot_sink import Killed, kills

assert kills

A, B, C = ("a", 1, {"n": 1}), ("b", 2, {"n": 2}), ("c", 3, {"n": 3})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table"


def checkpoint(folder, query, batches=3):
    """Make a checkpoint as Spark does, for a query that does not read a snapshot."""
    (folder / "offsets").mkdir(parents=True)
    if query is not None:
        (folder / "metadata").write_text(json.dumps({"id": query}))
    for number in range(batches):
        (folder / "offsets" / str(number)).write_text("v1\n{}\n" + json.dumps({"v": 1, "src": "x", "c": {}}))
    return folder


@pytest.fixture
def first(tmp_path):
    return checkpoint(tmp_path / "first", "query-1")


@pytest.fixture
def second(tmp_path):
    return checkpoint(tmp_path / "second", "query-2")


class TestAnotherQuery:
    @pytest.mark.parametrize("number", [0, 1, 2])
    def test_is_refused_under_the_same_app_id(self, path, first, second, number):
        """The numbers of a new checkpoint begin again; 0 and 1 would count as replays."""
        merge_into_delta(rows(A), 0, path, "app", checkpoint=first)
        merge_into_delta(rows(B), 1, path, "app", checkpoint=first)
        version = DeltaTable(path).version()
        with pytest.raises(MulticloudDbError, match=r"app_id: is 'app'.*after-an-outage") as caught:
            merge_into_delta(rows(C), number, path, "app", checkpoint=second)
        assert caught.value.category == ErrorCategory.INVALID_REQUEST
        assert DeltaTable(path).version() == version

    def test_has_its_own_app_id(self, path, first, second):
        merge_into_delta(rows(A), 0, path, "app", checkpoint=first)
        assert merge_into_delta(rows(B), 0, path, "other", checkpoint=second)
        assert not merge_into_delta(rows(B), 0, path, "other", checkpoint=second)
        assert documents(path) == {"a": {"n": 1}, "b": {"n": 2}}

    def test_number_and_query_are_one_commit(self, path, first):
        merge_into_delta(rows(A), 0, path, "app", checkpoint=first)
        version = DeltaTable(path).version()
        merge_into_delta(rows(B), 1, path, "app", checkpoint=first)
        assert DeltaTable(path).version() == version + 1


class TestOlderTable:
    """A table whose batch numbers were stored without the id of a query."""

    @pytest.mark.parametrize("number", [0, 4, 5])
    def test_no_batch_is_left_out_and_the_way_out_is_said_once(self, path, tmp_path, second, caplog, number):
        merge_into_delta(rows(A), 4, path, "app")
        query = checkpoint(tmp_path / "query", "query-1", batches=8)
        with caplog.at_level(logging.WARNING, "multiclouddb.spark"):
            assert merge_into_delta(rows(B), number, path, "app", checkpoint=query)
            assert merge_into_delta(rows(C), number + 1, path, "app", checkpoint=query)
        [said] = caplog.records
        assert "after-an-outage" in said.getMessage()
        assert documents(path) == {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}}
        assert not merge_into_delta(rows(C), number + 1, path, "app", checkpoint=query)
        with pytest.raises(MulticloudDbError, match="app_id: is 'app'"):
            merge_into_delta(rows(C), 0, path, "app", checkpoint=second)

    def test_process_that_dies_between_two_pieces(self, spark, path, tmp_path, kills):
        """The old number must not count for the new query while its batch is incomplete."""
        merge_into_delta(rows(A), 4, path, "app")
        query = checkpoint(tmp_path / "query", "query-1")
        changes = rows(*((f"k{number}", number, {"n": number}) for number in range(10, 20)))

        def merge():
            frame = spark.createDataFrame(changes)
            return merge_into_delta(frame, 0, path, "app", checkpoint=query, max_bytes=1)

        kills(dice=SimpleNamespace(random=iter([1, 0, 1]).__next__), chance=0.5)  # at the second commit
        version = DeltaTable(path).version()
        with pytest.raises(Killed):
            merge()
        assert DeltaTable(path).version() > version
        kills(dice=None)
        assert merge()
        assert len(documents(path)) == 11


def test_commit_names_what_the_offset_says_is_left_out(path, first):
    poison = {"count": 2, "first": [["p0", "7"]]}
    offset = {"v": 1, "src": "x", "c": {}, "poison": poison, "warning": "lost 5 to 7", "lost": True}
    (first / "offsets" / "1").write_text("v1\n{}\n" + json.dumps(offset))
    for number, change in enumerate((A, B, C)):
        merge_into_delta(rows(change), number, path, "app", checkpoint=first)
    last, marked, *_ = DeltaTable(path).history()
    assert json.loads(marked["multiclouddb.poison"]) == poison
    assert marked["multiclouddb.warning"] == "lost 5 to 7"
    assert not any(name.startswith("multiclouddb") for name in last)


class TestWithoutAQuery:
    def test_table_or_page_is_left_out_by_its_number_alone(self, path, first):
        merge_into_delta(rows(A), 4, path, "app")
        assert not merge_into_delta(rows(B), 4, path, "app")
        merge_into_delta(rows(B), 1, path, "other", checkpoint=first)
        assert not merge_into_delta(rows(C), 1, path, "other")
        assert documents(path) == {"a": {"n": 1}, "b": {"n": 2}}

    def test_frame_that_no_query_runs(self, spark, path):
        frame = spark.createDataFrame(rows(A))
        assert merge_into_delta(frame, 0, path, "app")
        assert not merge_into_delta(frame, 0, path, "app")

    def test_frame_of_connect_needs_the_checkpoint(self, spark, path, tmp_path, monkeypatch):
        frame = spark.createDataFrame(rows(A))
        unknown = property(lambda session: (_ for _ in ()).throw(AttributeError("not over Connect")))
        monkeypatch.setattr(type(spark), "sparkContext", unknown)
        with pytest.raises(MulticloudDbError, match=r"app_id: .*pass checkpoint="):
            merge_into_delta(frame, 0, path, "app")
        with pytest.raises(MulticloudDbError, match=r"app_id: .*pass checkpoint="):
            merge_into_delta(frame, 0, path, "app", checkpoint=checkpoint(tmp_path / "no id", None))
        assert merge_into_delta(frame, None, path, None)


def test_spark_with_a_new_checkpoint_directory_and_the_same_app_id(spark, source, tmp_path):
    """The refused query has merged nothing; with another name it merges everything."""

    def run(name, app_id):
        def merge(frame, batch_id):
            if name == "second":
                with pytest.raises(MulticloudDbError, match="app_id: is 'app'"):
                    merge_into_delta(frame.toArrow(), batch_id, tmp_path / "table", app_id)
            merge_into_delta(frame, batch_id, tmp_path / "table", app_id)

        stream = spark.readStream.format("multiclouddb").options(
            **source.options(startingPosition="beginning")
        )
        writer = stream.load().writeStream.foreachBatch(merge)
        writer = writer.option("checkpointLocation", str(tmp_path / name))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    source.write(30)
    run("first", "app")
    source.write(5)
    run("first", "app")
    assert documents(tmp_path / "table") == source.documents
    source.write(30)
    with pytest.raises(Exception, match=r"INVALID_REQUEST.*app_id: is 'app'"):
        run("second", "app")
    [first, *_] = run("third", "another").recentProgress
    assert AFTER_AN_OUTAGE in str(first["sources"][0]["endOffset"])
    assert documents(tmp_path / "table") == source.documents
