"""Tests that a batch number counts only for the query that has stored it."""

import json
import logging
from types import SimpleNamespace

import pytest
from deltalake import DeltaTable

from multiclouddb_api import ErrorCategory, MulticloudDbError
from pyspark_multiclouddb import merge_into_delta

from .tables import Killed, documents, make_checkpoint, notes_of, rows, write_offset
from .test_source import run_sink

A, B, C = rows(("a", 1, {"n": 1})), rows(("b", 2, {"n": 2})), rows(("c", 3, {"n": 3}))


@pytest.fixture
def first(tmp_path):
    return make_checkpoint(tmp_path / "first", "query-1", batches=8)


@pytest.fixture
def second(tmp_path):
    return make_checkpoint(tmp_path / "second", "query-2", batches=8)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_another_query_is_refused_under_the_same_app_id(path, first, second, number):
    """The numbers of a new checkpoint begin again; 0 and 1 would count as replays."""
    merge_into_delta(A, 0, path, "app", checkpoint=first)
    merge_into_delta(B, 1, path, "app", checkpoint=first)
    version = DeltaTable(path).version()
    assert version == 2, "number and query are one commit with the rows"
    with pytest.raises(MulticloudDbError, match=r"app_id: is 'app'.*after-an-outage") as caught:
        merge_into_delta(C, number, path, "app", checkpoint=second)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert DeltaTable(path).version() == version
    assert merge_into_delta(C, 0, path, "other", checkpoint=second)
    assert not merge_into_delta(C, 0, path, "other", checkpoint=second)
    assert documents(path) == {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}}


class TestOlderTable:
    """A table whose batch numbers were stored without the id of a query."""

    @pytest.mark.parametrize("number", [0, 4, 5])
    def test_no_batch_is_left_out_and_the_way_out_is_said_once(self, path, first, second, caplog, number):
        merge_into_delta(A, 4, path, "app")
        with caplog.at_level(logging.WARNING, "multiclouddb.spark"):
            assert merge_into_delta(B, number, path, "app", checkpoint=first)
            assert merge_into_delta(C, number + 1, path, "app", checkpoint=first)
        [said] = caplog.records
        assert "after-an-outage" in said.getMessage()
        assert documents(path) == {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}}
        assert not merge_into_delta(C, number + 1, path, "app", checkpoint=first)
        with pytest.raises(MulticloudDbError, match="app_id: is 'app'"):
            merge_into_delta(C, 0, path, "app", checkpoint=second)

    def test_process_that_dies_between_two_pieces(self, spark, path, first, kills):
        """The old number must not count for the new query while its batch is incomplete."""
        merge_into_delta(A, 4, path, "app")
        changes = rows(*((f"k{number}", number, {"n": number}) for number in range(10, 20)))

        def merge():
            frame = spark.createDataFrame(changes)
            return merge_into_delta(frame, 0, path, "app", checkpoint=first, max_bytes=1)

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
    write_offset(first, 1, poison=poison, warning="lost 5 to 7", lost=True)
    for number, change in enumerate((A, B, C)):
        merge_into_delta(change, number, path, "app", checkpoint=first)
    assert [json.loads(each) for each in notes_of(path, "poison")] == [poison]
    assert notes_of(path, "warning") == ["lost 5 to 7"]
    assert "multiclouddb.poison" in DeltaTable(path).history()[1]


def test_batch_of_which_nothing_can_be_decoded_is_noted_once(path, first):
    merge_into_delta(A, None, path, None)
    poison = {"count": 1, "first": [["p0", "sequence 4"]]}
    write_offset(first, 7, poison=poison)
    for _ in range(2):
        assert not merge_into_delta(rows(), 7, path, "app", checkpoint=first)
    assert [json.loads(each) for each in notes_of(path, "poison")] == [poison]


class TestWithoutAQuery:
    def test_table_or_page_is_left_out_by_its_number_alone(self, path, first):
        merge_into_delta(A, 4, path, "app")
        assert not merge_into_delta(B, 4, path, "app")
        merge_into_delta(B, 1, path, "other", checkpoint=first)
        assert not merge_into_delta(C, 1, path, "other")
        assert documents(path) == {"a": {"n": 1}, "b": {"n": 2}}

    def test_frame_that_no_query_runs(self, spark, path):
        frame = spark.createDataFrame(A)
        assert merge_into_delta(frame, 0, path, "app")
        assert not merge_into_delta(frame, 0, path, "app")

    def test_frame_of_connect_needs_the_checkpoint(self, spark, path, tmp_path, monkeypatch):
        frame = spark.createDataFrame(A)
        unknown = property(lambda session: (_ for _ in ()).throw(AttributeError("not over Connect")))
        monkeypatch.setattr(type(spark), "sparkContext", unknown)
        for checkpoint in (None, make_checkpoint(tmp_path / "no id", batches=1)):
            with pytest.raises(MulticloudDbError, match=r"app_id: .*pass checkpoint="):
                merge_into_delta(frame, 0, path, "app", checkpoint=checkpoint)
        assert merge_into_delta(frame, None, path, None)


def test_spark_with_a_new_checkpoint_directory_and_the_same_app_id(spark, source, path, tmp_path):
    """The refused query has merged nothing."""

    def run(name):
        def merge(frame, batch_id):
            if name == "second":
                with pytest.raises(MulticloudDbError, match="app_id: is 'app'"):
                    merge_into_delta(frame.toArrow(), batch_id, path, "app")
            merge_into_delta(frame, batch_id, path, "app")

        return run_sink(spark, source, tmp_path / name, merge)

    source.write(30)
    run("first")
    before = documents(path)
    assert before == source.documents
    source.write(30)
    with pytest.raises(Exception, match=r"INVALID_REQUEST.*app_id: is 'app'"):
        run("second")
    assert documents(path) == before
