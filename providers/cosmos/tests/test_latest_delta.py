"""Tests that soft deletes end as tombstones in a Delta table, which takes the events of one mode only."""

import pytest

from multiclouddb_api import Beginning, ErrorCategory, MulticloudDbError, Now, decode_json
from multiclouddb_cosmos import CosmosOptions
from pyspark_multiclouddb import live_rows, merge_into_delta

pytestmark = pytest.mark.usefixtures("hasty")

MARKED = CosmosOptions(mode="latest", delete_marker="/deleted")


def keys(table):
    return {decode_json(key)["id"] for key in live_rows(table).read_all()["key"].to_pylist()}


def merge(consumer, table):
    """Merge every page up to the next idle one."""
    while True:
        page = consumer.read()
        merge_into_delta(page, None, table, None)
        if page.idle:
            return


def test_soft_deletes_are_tombstones(world, tmp_path):
    table = tmp_path / "orders"
    world.server.all_versions(False)
    world.put("a", "b", "c")
    consumer = world.consumer(Beginning(), provider_options=MARKED)
    merge(consumer, table)
    assert len(keys(table)) == 3
    world.put("b", deleted=True)
    world.put("c", deleted=False)
    world.put("d", deleted=True)
    merge(consumer.restart(), table)
    assert keys(table) == {"a", "c"}


@pytest.mark.parametrize("first", ["latest", "all_versions"])
def test_a_table_takes_the_events_of_one_mode(world, tmp_path, first):
    table = tmp_path / "orders"
    other = "all_versions" if first == "latest" else "latest"
    consumers = {
        mode: world.consumer(Now(), provider_options=CosmosOptions(mode=mode)) for mode in (first, other)
    }
    for consumer in consumers.values():
        consumer.read()
    world.put("a")
    merge(consumers[first], table)
    page = consumers[other].read()
    with pytest.raises(MulticloudDbError) as caught:
        merge_into_delta(page, None, table, None)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert "new table" in caught.value.message
    world.put("b")
    merge(consumers[first], table)
    assert len(keys(table)) == 2
