"""Tests how often empty shards are polled."""

from datetime import UTC, datetime

import pytest

from multiclouddb_api import ResourceAddress
from multiclouddb_dynamo.mapping import View
from multiclouddb_dynamo.position import Start
from multiclouddb_dynamo.reader import DynamoReader
from multiclouddb_dynamo.source import EMPTY_ANSWERS, Source
from multiclouddb_spi import Deadline


class NoShards:
    """A listing without shards."""

    def find(self, shard_id):
        return None

    def age(self):
        return 0.0


class Empty:
    """A service without records."""

    def iterator(self, arn, shard_id, kind, seq=None):
        return "here"

    def records(self, iterator, limit, *, native):
        return {"Records": [], "NextShardIterator": iterator}

    def now(self):
        return datetime(2026, 1, 1, tzinfo=UTC)


def readers(count):
    source = Source(Empty(), None, None, "arn", NoShards())
    views = (
        View(ResourceAddress(collection="t"), f"p{number}", f"s{number}", ("id",)) for number in range(count)
    )
    return [DynamoReader(source, view, Start(None), None) for view in views]


def pauses(reader, count=EMPTY_ANSWERS + 12):
    return [reader.fetch(10, 1 << 20, 0.0, Deadline.after(1)).poll_after for _ in range(count)]


def test_a_new_reader_looks_a_little_further_and_then_less_and_less_often():
    (reader,) = readers(1)
    assert pauses(reader) == pytest.approx([*[0] * (EMPTY_ANSWERS - 1), 0.1, 0.2, 0.4, 0.8, *[1.0] * 9])


@pytest.mark.parametrize(("count", "most"), [(100, 1.0), (250, 1.0), (1000, 4.0)])
def test_many_empty_shards_cost_no_more_calls_a_second(count, most):
    made = readers(count)
    assert max(pauses(made[0])) == pytest.approx(most)


def test_a_closed_reader_does_not_count():
    made = readers(1000)
    for reader in made[500:]:
        reader.close()
    assert max(pauses(made[0])) == pytest.approx(2.0)
