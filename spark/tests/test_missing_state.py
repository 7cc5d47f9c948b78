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
from multiclouddb_spi.arrow import LACKS_STATE, lacks_state
from pyspark_multiclouddb import live_rows, merge_into_delta
from pyspark_multiclouddb.rows import ROW_SCHEMA

from .conftest import COLLECTION
from .test_sinks import apply, documents, random_changes, rows

LOST = "lost"


def changes(*wanted):
    """Make changes as `rows` does; the document of a change is `LOST` if the service does not send it."""
    table = rows(*((key, order, {} if document == LOST else document) for key, order, document in wanted))
    states = [None if document in (LOST, None) else json.dumps(document) for _, _, document in wanted]
    place = table.column_names.index("new_item_state")
    return table.set_column(place, ROW_SCHEMA.field("new_item_state"), pa.array(states, pa.string()))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table"


def table_of(path):
    found = DeltaTable(path).to_pyarrow_dataset().scanner(use_threads=False).to_table().to_pylist()
    return {json.loads(row["key"])["id"]: row for row in found}


def stale(path):
    return {key for key, row in table_of(path).items() if row["_stale_since"] is not None}


class TestRefuse:
    @pytest.mark.parametrize("is_frame", [False, True], ids=["table", "frame"])
    def test_nothing_of_the_batch_is_written(self, spark, path, is_frame):
        merge_into_delta(rows(("a", 1, {"v": 1})), None, path, None)
        version = DeltaTable(path).version()
        batch = changes(("b", 3, {"v": 3}), ("a", 2, LOST), ("c", 4, LOST))
        batch = spark.createDataFrame(batch) if is_frame else batch
        with pytest.raises(
            MulticloudDbError, match=r'batch: .* 2 changes .*\{"id": "a"\}.*REQUIRE'
        ) as caught:
            merge_into_delta(batch, 0, path, "app", max_bytes=1)
        assert caught.value.category == ErrorCategory.INVALID_REQUEST
        assert DeltaTable(path).version() == version
        assert documents(path) == {"a": {"v": 1}}

    def test_page(self, source, path):
        source.store.put(COLLECTION, "a", {"v": 1})
        address = ResourceAddress(collection=COLLECTION)
        request = ChangeFeedRequest(address, Beginning(), new_item_state_mode=NewItemStateMode.OMIT)
        with connect(f"embedded://{source.store.path}") as client:
            page = client.read_changes(request)
        with pytest.raises(MulticloudDbError, match="batch: contains 1 changes without"):
            merge_into_delta(page, None, path, None)
        assert not path.exists()

    def test_only_the_last_change_of_a_key_counts(self, path):
        batch = changes(("a", 1, LOST), ("a", 2, {"v": 2}), ("b", 3, LOST), ("b", 4, None))
        merge_into_delta(batch, None, path, None)
        assert documents(path) == {"a": {"v": 2}}

    def test_batch_without_documents(self, path):
        batch = changes(("a", 1, LOST)).drop_columns("new_item_state")
        assert merge_into_delta(batch, None, path, None)

    def test_wrong_argument(self, path):
        with pytest.raises(MulticloudDbError, match="missing_state: is 'drop'"):
            merge_into_delta(rows(), None, path, None, missing_state="drop")


class TestKeep:
    @pytest.mark.parametrize("is_frame", [False, True], ids=["table", "frame"])
    def test_row_keeps_its_document_and_its_order_key_moves(self, spark, path, is_frame):
        merge_into_delta(rows(("a", 1, {"v": 1}), ("b", 2, {"v": 2})), None, path, None)
        batch = changes(("a", 5, LOST), ("c", 6, LOST), ("d", 7, {"v": 7}))
        batch = spark.createDataFrame(batch) if is_frame else batch
        assert merge_into_delta(batch, None, path, None, missing_state="keep", max_bytes=1)
        found = table_of(path)
        assert {key: row["new_item_state"] for key, row in found.items()} == {
            "a": '{"v": 1}', "b": '{"v": 2}', "c": None, "d": '{"v": 7}',
        }  # fmt: skip
        assert {key: row["order_key"] for key, row in found.items()} == {
            "a": "000005", "b": "000002", "c": "000006", "d": "000007",
        }  # fmt: skip
        assert stale(path) == {"a", "c"}
        merge_into_delta(rows(("a", 4, {"v": 4})), None, path, None)
        assert table_of(path)["a"]["new_item_state"] == '{"v": 1}'
        assert stale(path) == {"a", "c"}

    def test_columns_made_from_the_document_are_kept_too(self, path):
        def with_v(batch):
            values = [text and json.loads(text)["v"] for text in batch["new_item_state"].to_pylist()]
            return batch.append_column("v", pa.array(values, pa.int64()))

        merge_into_delta(with_v(rows(("a", 1, {"v": 1}))), None, path, None)
        merge_into_delta(with_v(changes(("a", 2, LOST))), None, path, None, missing_state="keep")
        assert live_rows(path, ["v", "order_key"]).read_all().to_pylist() == [{"v": 1, "order_key": "000002"}]

    def test_next_document_and_a_delete_end_it(self, path):
        merge_into_delta(rows(("a", 1, {"v": 1}), ("b", 1, {"v": 1})), None, path, None)
        merge_into_delta(changes(("a", 2, LOST), ("b", 2, LOST)), None, path, None, missing_state="keep")
        first = table_of(path)["a"]["_stale_since"]
        merge_into_delta(changes(("a", 3, LOST)), None, path, None, missing_state="keep")
        assert table_of(path)["a"]["_stale_since"] == first
        merge_into_delta(rows(("a", 4, {"v": 4}), ("b", 4, None)), None, path, None)
        assert stale(path) == set()
        assert documents(path) == {"a": {"v": 4}}
        merge_into_delta(changes(("b", 5, LOST)), None, path, None, missing_state="keep")
        assert stale(path) == {"b"}
        assert table_of(path)["b"]["_deleted_at"] is None

    def test_column_of_the_user_with_this_name(self, path):
        batch = rows(("a", 1, {})).append_column("_stale_since", pa.array([1]))
        with pytest.raises(MulticloudDbError, match="has a column _stale_since"):
            merge_into_delta(batch, None, path, None)

    def test_against_a_model_with_replays(self, path):
        dice, model, last, lost = random.Random(3), {}, {}, set()
        for number in range(8):
            batch = [
                (key, order, LOST if document and dice.random() < 0.3 else document)
                for key, order, document in random_changes(dice, number * 50, 50)
            ]
            final = {key: (key, order, document) for key, order, document in batch}
            for key, order, document in final.values():
                last[key] = f"{order:06d}"
                (lost.add if document == LOST else lost.discard)(key)
                if document != LOST:
                    apply(model, [(key, order, document)])
                elif key not in model:
                    model[key] = None
            for _ in range(dice.choice([1, 2])):
                merge_into_delta(changes(*batch), None, path, None, missing_state="keep")
            found = table_of(path)
            live = {key: row for key, row in found.items() if row["_deleted_at"] is None}
            states = {key: row["new_item_state"] for key, row in live.items()}
            assert {key: state and json.loads(state) for key, state in states.items()} == model
            assert stale(path) == lost if "_stale_since" in next(iter(found.values())) else not lost
            assert {key: row["order_key"] for key, row in found.items()} == last


def test_the_condition_in_sql_and_in_arrow_say_the_same(spark):
    table = changes(("a", 1, LOST), ("b", 2, {"v": 1}), ("c", 3, None))
    assert lacks_state(table).to_pylist() == [True, False, False]
    assert [row.key for row in spark.createDataFrame(table).where(LACKS_STATE).collect()] == ['{"id": "a"}']
