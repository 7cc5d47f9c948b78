"""Tests how often empty shards are polled, and up to which moment they were read."""

from datetime import UTC, datetime, timedelta

import pytest

from multiclouddb_api import Beginning, Now, ResourceAddress
from multiclouddb_dynamo.mapping import View
from multiclouddb_dynamo.position import Start
from multiclouddb_dynamo.reader import DynamoReader
from multiclouddb_dynamo.source import DELAY_SECONDS, EMPTY_ANSWERS, EmptyAnswers, Source
from multiclouddb_spi import Deadline

from .world import World

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DELAY = timedelta(seconds=DELAY_SECONDS)
SLACK = timedelta(seconds=20)  # a busy machine is slow


@pytest.fixture(autouse=True)
def few_answers():
    """Read as many answers as for the service."""


@pytest.mark.parametrize("start", [pytest.param(Beginning(), marks=pytest.mark.soak), Now()])
def test_one_busy_shard_of_eight_does_not_lag(start):
    with World(shards=8) as world:
        world.put_everywhere()
        consumer = world.consumer(start)
        consumer.until_idle()
        for _ in range(3):
            world.script.advance(600)
            world.put_in(world.open()[0], 3)
            consumer.restart().until_idle()
            told = consumer.pages[-1].diagnostics
            assert told.lag_seconds <= (DELAY + SLACK).total_seconds()
            assert told.read_until_estimated
            assert len(told.partitions_read_until) == 8
            assert min(told.partitions_read_until.values()) == told.read_until


def test_it_does_not_go_back_and_the_watermark_waits_for_proof():
    with World(shards=2) as world:
        world.put_everywhere()
        consumer = world.consumer()
        consumer.until_idle()
        before = consumer.pages[-1].diagnostics
        world.script.advance(600)
        world.put_in(world.open()[0])
        consumer.until_idle()
        after = consumer.pages[-1].diagnostics
        # The first changes of the two shards may lie in different seconds.
        assert after.watermark < before.watermark + timedelta(seconds=100)
        assert after.read_until > before.read_until + timedelta(seconds=500)
        known = [page.diagnostics.read_until for page in consumer.pages if page.diagnostics.read_until]
        assert known == sorted(known)


def test_no_change_before_it_comes_later():
    with World(empty_pages=EMPTY_ANSWERS - 1) as world:
        consumer = world.consumer()
        until = None
        for number in range(5):
            world.put(f"k{number}")
            world.script.advance(100)
            for _ in range(3):
                page = consumer.read()
                assert until is None or all(event.timestamp >= until for event in page.events)
                until = page.diagnostics.read_until


class TestAnswers:
    """Tests the answers of one shard, on a clock that the test moves."""

    @pytest.fixture
    def clock(self, monkeypatch):
        seconds = [1000.0]
        monkeypatch.setattr("multiclouddb_dynamo.source.time.monotonic", lambda: seconds[0])
        return seconds

    def answers(self, clock, count, pause):
        found = EmptyAnswers()
        for number in range(count):
            clock[0] += pause if number else 0
            found.add(clock[0])
        return found

    @pytest.mark.parametrize(
        ("count", "pause", "later", "now", "ago"),
        [
            (EMPTY_ANSWERS - 1, 0.1, 0, NOW, None),
            (EMPTY_ANSWERS, 0.1, 0, NOW, DELAY_SECONDS),
            (EMPTY_ANSWERS, 10.0, 0, NOW, 10 * (EMPTY_ANSWERS - 1)),
            (EMPTY_ANSWERS, 0.1, 100, NOW, DELAY_SECONDS + 100),
            (EMPTY_ANSWERS, 0.1, 0, None, None),
        ],
        ids=["too few", "enough", "far apart", "time passes", "no time of the service"],
    )
    def test_how_far_a_shard_was_read(self, clock, count, pause, later, now, ago):
        found = self.answers(clock, count, pause)
        clock[0] += later
        assert found.read_until(now) == (None if ago is None else NOW - timedelta(seconds=ago))

    # In a feed of many shards, the pauses between answers are long.
    @pytest.mark.parametrize(
        ("pause", "longest", "recent"),
        [(1.0, 0.1, True), (1.9, 0.1, True), (5.0, 0.1, False), (5.0, 4.0, True)],
    )
    def test_answers_of_long_ago_are_not_recent(self, clock, pause, longest, recent):
        assert self.answers(clock, EMPTY_ANSWERS, pause).are_recent(longest) is recent


class Empty:
    """A service without records, and its shards."""

    def find(self, shard_id):
        return None

    def age(self):
        return 0.0

    def iterator(self, arn, shard_id, kind, seq=None):
        return "here"

    def records(self, iterator, limit, *, native):
        return {"Records": [], "NextShardIterator": iterator}

    def now(self):
        return NOW


class TestPace:
    def readers(self, count):
        source = Source(Empty(), None, None, "arn", Empty())
        address = ResourceAddress(collection="t")
        views = [View(address, f"p{number}", f"s{number}", ("id",)) for number in range(count)]
        return [DynamoReader(source, view, Start(None), None) for view in views]

    def pauses(self, reader, count=EMPTY_ANSWERS + 12):
        return [reader.fetch(10, 1 << 20, 0.0, Deadline.after(1)).poll_after for _ in range(count)]

    def test_a_new_reader_looks_a_little_further_and_then_less_and_less_often(self):
        (reader,) = self.readers(1)
        expected = [*[0] * (EMPTY_ANSWERS - 1), 0.1, 0.2, 0.4, 0.8, *[1.0] * 9]
        assert self.pauses(reader) == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("count", "closed", "most"), [(100, 0, 1.0), (250, 0, 1.0), (1000, 0, 4.0), (1000, 500, 2.0)]
    )
    def test_many_empty_shards_cost_no_more_calls_a_second(self, count, closed, most):
        made = self.readers(count)
        for reader in made[count - closed :]:
            reader.close()
        assert max(self.pauses(made[0])) == pytest.approx(most)
