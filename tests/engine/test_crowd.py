"""A consumer that goes on in another process leaves a reader behind with each page: how many are kept."""

from multiclouddb_api import Now


def test_a_few_readers_of_one_partition_are_kept(make_bench):
    bench = make_bench(partitions=2)
    here, there = bench.connect(), bench.connect()
    token = bench.page(Now()).continuation_token
    for _ in range(60):
        for engine in (here, there):
            bench.fill(4)
            token = bench.page(token, engine=engine).continuation_token
    for engine in (here, there):
        assert 2 <= engine.provider.calls.open_readers <= 2 * 16


def test_consumers_side_by_side_keep_theirs(make_bench):
    bench = make_bench(partitions=1)
    bench.connect()
    tokens = []
    for _ in range(16):
        bench.fill(4)
        tokens.append(bench.page(Now()).continuation_token)
    bench.fill(16)
    tokens = [bench.page(token, 1).continuation_token for token in tokens]
    opened = sum(bench.calls.opens.values())
    for _ in range(3):
        tokens = [bench.page(token, 1).continuation_token for token in tokens]
    assert sum(bench.calls.opens.values()) == opened
