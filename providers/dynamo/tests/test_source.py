"""Tests what the readers of a stream share for as long as the stream is read."""

import tracemalloc

from multiclouddb_dynamo import source as source_module
from multiclouddb_dynamo.source import ReaderContext


def test_shards_that_ended_long_ago_take_no_memory(monkeypatch):
    """A stream of 1,000 shards has 6,000 new ones a day."""
    now = [0.0]
    monkeypatch.setattr("multiclouddb_dynamo.source.time.monotonic", lambda: now[0])
    source = ReaderContext(None, None, None, "", None)
    tracemalloc.start()
    try:
        for number in range(20_000):
            now[0] += 10
            assert source.may_look_far(f"shard-{number}")
            assert not source.may_look_far(f"shard-{number}")
        # Threads of other tests may take memory too.
        ours = tracemalloc.Filter(True, source_module.__file__)
        kept = tracemalloc.take_snapshot().filter_traces([ours]).statistics("filename")
        assert sum(each.size for each in kept) < 100_000
    finally:
        tracemalloc.stop()
