"""Tests that the sink never writes a change without its document as an empty document."""

import json
import random

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    MulticloudDbError,
    NewItemStateMode,
    ResourceAddress,
    connect,
)
from multiclouddb_spi.sink_rules import LACKS_STATE, lacks_state
from pyspark_multiclouddb import live_rows, merge_into_delta

from .conftest import COLLECTION
from .tables import LOST, apply, documents, random_changes, rows, table_of


@pytest.fixture(params=[False, True], ids=["table", "frame"])
def batch_of(request):
    """Return a function that makes a batch of changes: a table, or a frame."""
    return request.getfixturevalue("spark").createDataFrame if request.param else lambda table: table


def keep(path, *changes):
    return merge_into_delta(rows(*changes), None, path, None, missing_state="keep")


def stale(path):
    return {key for key, row in table_of(path).items() if row["_stale_since"] is not None}


class TestRefuse:
    def test_nothing_of_the_batch_is_written(self, batch_of, path):
        merge_into_delta(rows(("a", 1, {"v": 1})), None, path, None)
        version = DeltaTable(path).version()
        batch = batch_of(rows(("b", 3, {"v": 3}), ("a", 2, LOST), ("c", 4, LOST)))
        with pytest.raises(MulticloudDbError, match=r'2 changes .*\{"id": "a"\}.*REQUIRE') as caught:
            merge_into_delta(batch, 0, path, "app", max_bytes=1)
        assert caught.value.category == ErrorCategory.INVALID_REQUEST
        assert DeltaTable(path).version() == version
        assert documents(path) == {"a": {"v": 1}}

    def test_page(self, source, path):
        source.put("a", {"v": 1})
        address = ResourceAddress(collection=COLLECTION)
        request = ChangeFeedRequest(address, Beginning(), new_item_state_mode=NewItemStateMode.OMIT)
        with connect(f"embedded://{source.store.path}") as client:
            page = client.read_changes(request)
        with pytest.raises(MulticloudDbError, match="batch: contains 1 changes without"):
            merge_into_delta(page, None, path, None)
        assert not path.exists()

    def test_only_the_last_change_of_a_key_counts(self, path):
        batch = rows(("a", 1, LOST), ("a", 2, {"v": 2}), ("b", 3, LOST), ("b", 4, None))
        merge_into_delta(batch, None, path, None)
        assert documents(path) == {"a": {"v": 2}}

    def test_batch_without_documents(self, path):
        assert merge_into_delta(rows(("a", 1, LOST)).drop_columns("new_item_state"), None, path, None)

    def test_wrong_argument_and_column(self, path):
        with pytest.raises(MulticloudDbError, match="missing_state: is 'drop'"):
            merge_into_delta(rows(), None, path, None, missing_state="drop")
        batch = rows(("a", 1, {})).append_column("_stale_since", pa.array([1]))
        with pytest.raises(MulticloudDbError, match="has a column _stale_since"):
            merge_into_delta(batch, None, path, None)


class TestKeep:
    def test_row_keeps_its_document_and_its_order_key_moves(self, batch_of, path):
        merge_into_delta(rows(("a", 1, {"v": 1}), ("b", 2, {"v": 2})), None, path, None)
        batch = batch_of(rows(("a", 5, LOST), ("c", 6, LOST), ("d", 7, {"v": 7})))
        assert merge_into_delta(batch, None, path, None, missing_state="keep", max_bytes=1)
        found = {key: (row["new_item_state"], row["order_key"]) for key, row in table_of(path).items()}
        assert found == {
            "a": ('{"v": 1}', "000005"),
            "b": ('{"v": 2}', "000002"),
            "c": (None, "000006"),
            "d": ('{"v": 7}', "000007"),
        }
        assert stale(path) == {"a", "c"}
        merge_into_delta(rows(("a", 4, {"v": 4})), None, path, None)
        assert table_of(path)["a"]["new_item_state"] == '{"v": 1}'
        assert stale(path) == {"a", "c"}

    def test_columns_made_from_the_document_are_kept_too(self, path):
        for document, order in (({"v": 1}, 1), (LOST, 2)):
            batch = rows(("a", order, document))
            batch = batch.append_column("v", pa.array([None if document == LOST else 1], pa.int64()))
            merge_into_delta(batch, None, path, None, missing_state="keep")
        assert live_rows(path, ["v", "order_key"]).read_all().to_pylist() == [{"v": 1, "order_key": "000002"}]

    def test_next_document_and_a_delete_end_it(self, path):
        merge_into_delta(rows(("a", 1, {"v": 1}), ("b", 1, {"v": 1})), None, path, None)
        keep(path, ("a", 2, LOST), ("b", 2, LOST))
        first = table_of(path)["a"]["_stale_since"]
        keep(path, ("a", 3, LOST))
        assert table_of(path)["a"]["_stale_since"] == first
        merge_into_delta(rows(("a", 4, {"v": 4}), ("b", 4, None)), None, path, None)
        assert stale(path) == set()
        assert documents(path) == {"a": {"v": 4}}
        keep(path, ("b", 5, LOST))
        assert stale(path) == {"b"}
        assert table_of(path)["b"]["_deleted_at"] is None

    def test_against_a_model_with_replays(self, path):
        dice, model, last, lost = random.Random(3), {}, {}, set()
        for number in range(6):
            batch = [
                (key, order, LOST if document and dice.random() < 0.3 else document)
                for key, order, document in random_changes(dice, number * 50, 50)
            ]
            for key, order, document in {change[0]: change for change in batch}.values():
                last[key] = f"{order:06d}"
                (lost.add if document == LOST else lost.discard)(key)
                if document != LOST:
                    apply(model, [(key, order, document)])
                else:
                    model.setdefault(key)
            for _ in range(dice.choice([1, 2])):
                keep(path, *batch)
            found = table_of(path)
            live = {key: row["new_item_state"] for key, row in found.items() if row["_deleted_at"] is None}
            assert {key: state and json.loads(state) for key, state in live.items()} == model
            assert stale(path) == lost
            assert {key: row["order_key"] for key, row in found.items()} == last


def test_the_condition_in_sql_and_in_arrow_say_the_same(spark):
    table = rows(("a", 1, LOST), ("b", 2, {"v": 1}), ("c", 3, None))
    assert lacks_state(table).to_pylist() == [True, False, False]
    assert [row.key for row in spark.createDataFrame(table).where(LACKS_STATE).collect()] == ['{"id": "a"}']
