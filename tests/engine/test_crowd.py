"""Tests how many unused readers are kept. A consumer that keeps moving between processes leaves one unused
reader behind for each page.
"""

import pytest

from multiclouddb_api import Beginning, Now, PhysicalPartition


def test_a_few_readers_of_one_partition_are_kept(make_bench):
    bench = make_bench(partitions=2)
    here, there = bench.connect(), bench.connect()
    token = bench.page(Now()).continuation_token
    for _ in range(60):
        for engine in (here, there):
            bench.fill(4)
            token = bench.page(token, engine=engine).continuation_token
    for engine in (here, there):
        assert 2 <= engine.provider.calls.open_readers <= 2 * 64


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


def opened(bench, engine=None):
    """Return the number of readers opened so far."""
    return sum((engine or bench.engine).provider.calls.opens.values())


def consumers(bench, count):
    """Return the positions of the given number of consumers of one feed.

    Each consumer reads pages of five events, so no two consumers have the same position.
    """
    bench.fill(count * 60)
    return [bench.page(size=7 * number + 1).continuation_token for number in range(count)]


def turns(bench, tokens, rounds=1):
    """Let each consumer read a page in turn; return how many readers were opened."""
    before = opened(bench)
    for _ in range(rounds):
        for number, token in enumerate(tokens):
            page = bench.page(token, 5)
            assert page.events
            tokens[number] = page.continuation_token
    return opened(bench) - before


@pytest.fixture
def crowd(make_bench):
    def make(**config):
        bench = make_bench(partitions=1)
        bench.connect(**config)
        return bench

    return make


@pytest.mark.parametrize("count", [17, 64])
def test_so_many_consumers_open_no_reader_a_page(crowd, count):
    bench = crowd()
    assert turns(bench, consumers(bench, count), rounds=5) == 0


def test_the_bound_is_an_option(crowd):
    bench = crowd(max_readers_per_partition=3)
    tokens = consumers(bench, 3)
    assert turns(bench, tokens, rounds=5) == 0
    bench = crowd(max_readers_per_partition=1)
    turns(bench, consumers(bench, 3), rounds=5)
    assert bench.calls.open_readers == 1


@pytest.mark.parametrize(("count", "bound"), [(17, 16), (65, 64), (80, 64)])
def test_one_consumer_too_many_does_not_cost_the_others_theirs(crowd, count, bound):
    bench = crowd(max_readers_per_partition=bound)
    tokens = consumers(bench, count)
    turns(bench, tokens, rounds=10)
    assert turns(bench, tokens, rounds=10) <= 10 * 0.4 * count
    assert bench.calls.open_readers <= bound


def test_consumers_at_one_position_get_a_reader_each(crowd):
    bench = crowd()
    bench.fill(2000)
    tokens = [bench.page(size=1).continuation_token] * 20
    turns(bench, tokens, rounds=20)
    assert turns(bench, tokens, rounds=5) == 0


def test_a_page_that_is_read_again_and_again_leaves_one_reader(crowd):
    bench = crowd()
    bench.fill(50)
    for _ in range(30):
        bench.page(Beginning(), 5)
    assert bench.calls.open_readers == 1


def test_a_consumer_that_comes_back_keeps_its_reader_beside_abandoned_ones(crowd):
    """A consumer's reader is kept, even if many abandoned readers are added between two of its pages."""
    bench = crowd(max_readers_per_partition=8)
    there = bench.connect()
    here = bench.connect(max_readers_per_partition=8)
    (mine,), token = consumers(bench, 1), bench.page(Now()).continuation_token
    turns(bench, [mine])
    mine = bench.page(mine, 5, engine=here).continuation_token
    before = opened(bench, here)
    for number in range(400):
        for engine in (here, there):
            bench.fill(1)
            token = bench.page(token, engine=engine).continuation_token
        if number % 20 == 19:
            mine = bench.page(mine, 1, engine=here).continuation_token
    assert opened(bench, here) - before <= 400 + 1


def test_new_consumers_replace_those_that_have_stopped(crowd):
    bench = crowd(max_readers_per_partition=16)
    stopped = consumers(bench, 16)
    turns(bench, stopped, rounds=5)
    fresh = consumers(bench, 12)
    turns(bench, fresh, rounds=15)
    assert turns(bench, fresh, rounds=5) <= 5


def test_new_consumers_find_places_although_those_that_have_stopped_fill_all(crowd):
    """Each consumer has a different position, so no consumer can use the reader of another consumer."""
    bench = crowd(max_readers_per_partition=16)
    turns(bench, consumers(bench, 16), rounds=5)
    fresh = [bench.page(size=300 + 250 * number).continuation_token for number in range(2)]
    turns(bench, fresh, rounds=30)
    assert turns(bench, fresh, rounds=5) == 0


ROOM = 64


@pytest.fixture
def many(make_bench, monkeypatch):
    """Make a collection with more partitions than the cache can keep readers for."""
    from multiclouddb_spi import engine

    monkeypatch.setattr(engine, "_MOST_READERS", ROOM)

    def make(partitions, **config):
        bench = make_bench(partitions)
        bench.connect(**config)
        return bench

    return make


def used_again(bench, token, rounds, size=0):
    """Read all partitions in several rounds; return how many readers each round reuses."""
    found = []
    for _ in range(rounds):
        for number in range(len(bench.sim.open_partitions) if size else 0):
            bench.sim.write(f"key-{number}", {"n": number})
        fetches, before = bench.calls.total_fetches, opened(bench)
        token = bench.drain(token, size)[1]
        found.append((bench.calls.total_fetches - fetches) - (opened(bench) - before))
    return found


class TestMorePartitionsThanReaders:
    """A round reads each partition once, so the reader that has been unused for the longest time is always
    needed next.
    """

    LEAST = ROOM * 15_000 // 16_384

    @pytest.mark.parametrize("threads", [False, True], ids=["inline", "threads"])
    def test_a_full_cache_is_used_in_each_round(self, many, threads):
        bench = many(400, threads=threads, max_concurrency=2)
        token = bench.drain(Now())[1]
        assert min(used_again(bench, token, 4)) >= self.LEAST
        assert bench.calls.open_readers <= ROOM

    def test_a_full_cache_is_used_while_there_is_news(self, many):
        bench = many(400)
        token = bench.drain(Now())[1]
        assert min(used_again(bench, token, 4, size=10)) >= self.LEAST

    def test_a_round_may_take_longer_than_unused_readers_are_kept(self, many, monkeypatch):
        from multiclouddb_spi.fetching import readers

        bench = many(400)
        monkeypatch.setattr(readers, "_IDLE_SECONDS", 0.0)
        token = bench.drain(Now())[1]
        assert min(used_again(bench, token, 4)) >= self.LEAST

    def test_a_consumer_of_few_finds_a_place(self, many):
        """A consumer that reads few partitions reuses its readers sooner than the consumer that fills the
        cache.
        """
        bench = many(400, max_concurrency=1)
        token = bench.drain(bench.drain(Now())[1])[1]
        one = PhysicalPartition(bench.partitions()[300])
        place = bench.page(Now(), scope=one).continuation_token
        for number in range(800):
            bench.sim.write(f"key-{number}", {"n": number})
        reopened = []
        for _ in bench.walk(token, 1):
            before = opened(bench)
            place = bench.page(place, scope=one).continuation_token
            reopened.append(opened(bench) - before)
        assert len(reopened) > 500
        assert sum(reopened) <= 3

    def test_consumers_that_come_to_a_full_cache_side_by_side_keep_theirs(self, many):
        bench = many(400)
        bench.drain(bench.drain(Now())[1])
        scopes = [PhysicalPartition(name) for name in bench.partitions()[300 : 300 + ROOM // 32]]
        places = {scope: bench.page(Now(), scope=scope).continuation_token for scope in scopes}
        before = opened(bench)
        for _ in range(3):
            for scope, place in places.items():
                places[scope] = bench.page(place, scope=scope).continuation_token
        assert opened(bench) == before

    def test_what_is_fetched_stays_in_a_full_cache_before_what_is_not(self, many):
        bench = many(2)
        for _ in range(ROOM // 2):
            bench.fill(10)
            bench.page(Now())
        assert bench.calls.open_readers == ROOM
        token = bench.page(size=1).continuation_token
        before = opened(bench)
        assert len(bench.page(token, size=1).events) == 1
        assert opened(bench) == before
