"""Tests the command line with the embedded store, in real processes that are killed and started again."""

import pytest

from multiclouddb_embedded import EmbeddedStore
from testing.command_line import Tail, Writer, follow

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path):
    with EmbeddedStore(tmp_path / "shop.db", durable=False) as store:
        store.create_collection("orders", partitions=2)
        yield store


def open_partitions(store):
    return [each.partition_id for each in store.partitions("orders")]


def test_a_tail_that_is_killed_again_and_again_misses_nothing(store, tmp_path):
    """During writes, a split and a merge, the command is killed immediately or in the middle of a page."""
    tail = Tail(f"embedded://{store.path}", "orders", "--from", "now", "--checkpoint", tmp_path / "position")
    writer = Writer(lambda key: store.put("orders", key, {}), pause=0.003)

    def split():
        store.split("orders", open_partitions(store)[0])

    def merge():
        store.merge("orders", *open_partitions(store)[-2:])

    store.put("orders", "before", {})
    follow(tail, writer, [(None, 1), (split, 40), (None, 200), (merge, 1), (split, 40), (merge, 7)])
    assert sorted(tail.keys()) == writer.written
    assert len(writer.written) > 200
    assert len(open_partitions(store)) == 2
