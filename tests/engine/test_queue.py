"""Tests the places of a stream in one call: to be asked, being read, with an answer in hand, or done."""

from concurrent.futures import Future

import pytest

from multiclouddb_conformance.simulation import SimulationProvider
from multiclouddb_spi import Deadline, FeedSpec
from multiclouddb_spi.continuation.entry import Entry
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.fetching.consumer import Consumer
from multiclouddb_spi.fetching.page_content import PageContent
from multiclouddb_spi.fetching.queue import Queue
from multiclouddb_spi.fetching.stream import Pace

NEVER = float("inf")


@pytest.fixture
def made(make_bench):
    """Return a queue over three partitions with two records each; its fetches are answered at once."""
    bench = make_bench(3)
    for name in ("p0", "p1", "p2"):
        bench.fill_partition(name, 2)
    feed = SimulationProvider(bench.sim).open_feed(FeedSpec(bench.sim.address), Deadline.after(60))
    lineage = Lineage([Entry.read(name, 0) for name in bench.sim.partitions], feed)
    consumer = Consumer(feed, lineage, "", "")
    content, until = PageContent(100, 1 << 20), Deadline.after(60)
    queue = Queue(
        bench.engine._calls.kept.context, consumer, lineage.reading, lineage.took, content, 3, until
    )
    yield queue, consumer
    consumer.discard()


def test_a_partition_keeps_its_place_and_is_not_asked_twice(made):
    queue, _ = made
    queue.put(["p0", "p1"])
    queue.put(["p2", "p1", "p0"])
    assert list(queue.ask) == ["p0", "p1", "p2"]
    queue.launch()
    queue.put(["p0"])
    assert (list(queue.ask), list(queue.running)) == ([], ["p0", "p1", "p2"])


def test_an_answer_is_new_once(made):
    queue, _ = made
    queue.put(["p0"])
    queue.launch()
    stream = queue.next(0.0)
    assert (stream.partition_id, stream.is_new, len(stream.batch)) == ("p0", True, 2)
    queue.ready["p0"] = stream
    queue.put_ready()
    assert not queue.ready
    queue.launch()
    assert (queue.next(0.0), stream.is_new) == (stream, False)
    assert queue.next(0.0) is None


def test_one_that_is_not_due_waits_for_its_time(made):
    queue, consumer = made
    queue.put(["p0"])
    queue.launch()
    stream = queue.next(0.0)
    stream.used_up()
    stream.due_at = NEVER
    consumer.state.took("p0", stream.position)
    stream.cursor = stream.position
    queue.put(["p0"])
    queue.launch()
    assert (list(queue.later), queue.passed, queue.next_due()) == (["p0"], [stream], NEVER)
    queue.put_due()
    assert not queue.ask
    stream.due_at = 0.0
    queue.put_due()
    assert (list(queue.ask), queue.later) == (["p0"], {})
    assert consumer.open_streams == 1


def test_an_answer_that_was_left_is_not_returned(made):
    """A stream that was slow is left, and its answer belongs to the round that asks it again."""
    queue, _ = made
    queue.put(["p0", "p1"])
    queue.launch()
    assert queue.leave() == []
    assert queue.next(0.0) is None
    queue.put(["p1"])
    queue.launch()
    assert queue.next(0.0).partition_id == "p1"


def test_a_stream_at_another_position_is_replaced(made):
    queue, consumer = made
    queue.put(["p0"])
    queue.launch()
    before = queue.next(0.0)
    consumer.state.took("p0", before.position)
    queue.put(["p0"])
    queue.launch()
    after = queue.next(0.0)
    assert after is not before
    assert (before.cancelled, after.cursor) == (True, before.position)
    assert consumer.open_streams == 1


def test_an_answer_of_a_stream_that_was_replaced_is_not_returned(made):
    queue, consumer = made
    queue.put(["p0"])
    queue.launch()
    (before,) = queue.running.values()
    queue.leave()
    consumer.state.took("p0", before.future.result().end)
    queue.put(["p0"])
    queue.launch()
    assert next(iter(queue.landed)) is before
    assert queue.next(0.0) is consumer.streams["p0"] is not before


def test_a_stream_that_landed_twice_is_returned_when_its_next_fetch_has_ended(made):
    """After a stream was left and asked again, both have asked to be told of the end of the same fetch."""
    queue, _ = made
    queue.put(["p0"])
    queue.launch()
    stream = queue.next(0.0)
    stream.used_up()
    stream.future = Future()
    queue.running["p0"] = stream
    queue.landed.append(stream)
    assert queue.next(0.0) is None
    assert queue.running == {"p0": stream}


class TestTaking:
    def test_what_there_is_no_room_for_waits_until_the_head_has_had_its_turn(self, made):
        queue, _ = made
        queue.front, queue.content.limit = "p0", 1
        queue.put(["p1", "p0"])
        queue.launch()
        other, head = queue.next(0.0), queue.next(0.0)
        assert queue.take(other, other.batch, 2) is None
        assert (list(queue.ready), list(queue.had_turn)) == (["p1"], [])
        assert queue.take(head, head.batch, 2) == 1
        assert (queue.front, list(queue.had_turn)) == (None, ["p0"])
        assert (list(queue.ready), list(queue.ask)) == ([], ["p1"]), "its place is free for the others"

    def test_the_rest_of_an_answer_waits(self, made):
        queue, consumer = made
        queue.content.limit = 1
        queue.put(["p0"])
        queue.launch()
        stream = queue.next(0.0)
        batch = stream.batch
        queue.took(stream, batch, queue.take(stream, batch, 2), 2)
        assert (list(queue.ready), stream.taken, stream.batch) == (["p0"], 1, batch)
        assert consumer.state.cursor("p0") == stream.cursor == batch.cursor_after(1)
        queue.took(stream, batch, 2, 2)
        assert (stream.batch, consumer.state.cursor("p0")) == (None, batch.end)

    def test_a_share_is_kept_from_the_request_to_the_answer(self, made):
        queue, _ = made
        queue.put(["p0"])
        queue.launch()
        queue.ready["p0"] = queue.next(0.0)
        queue.put_ready()
        queue.launch(reserve=lambda _: 1)
        stream = queue.next(0.0)
        queue.content.limit = 0  # a share is not of the page
        assert queue.take(stream, stream.batch, 2) == 1
        queue.took(stream, stream.batch, 1, 2)
        queue.put_ready()
        queue.launch(reserve=lambda _: 0)
        assert (list(queue.ask), list(queue.running)) == (["p0"], []), "nothing is kept for it"

    @pytest.mark.parametrize("broken", ["cursor_after", "moves"])
    def test_a_stream_that_could_not_be_moved_keeps_its_answer(self, made, broken, monkeypatch):
        """Without the answer, its reader would go on behind records that were not returned."""
        queue, consumer = made
        queue.put(["p0"])
        queue.launch()
        stream = queue.next(0.0)
        batch = stream.batch

        def fail(*_):
            raise ArithmeticError

        monkeypatch.setattr(type(batch) if broken == "cursor_after" else queue, broken, fail)
        with pytest.raises(ArithmeticError):
            queue.took(stream, batch, 2, 2)
        assert stream.batch is batch
        assert consumer.state.cursor("p0") == 0

    @pytest.mark.parametrize("loss", ["moved", "removed"])
    def test_what_a_loss_has_moved_or_removed_is_dropped(self, made, loss):
        queue, consumer = made
        queue.front = "p0"
        queue.put(["p0"])
        queue.launch()
        stream = queue.next(0.0)
        assert not queue.is_elsewhere(stream)
        assert stream.batch is not None
        if loss == "moved":
            consumer.state.took("p0", stream.position)
        else:
            consumer.state.ended("p0", (), complete=True)
        assert queue.is_elsewhere(stream)
        assert (stream.cancelled, stream.batch, queue.front) == (True, None, None)


def test_a_segment_keeps_the_pace_of_its_scan(made):
    """A stream that takes another one's place, or a consumer that takes over its streams, is not faster."""
    queue, consumer = made
    queue.put(["p0", "p1"])
    queue.launch()
    pace = consumer.pace = consumer.streams["p0"].pace = Pace(1.0)
    assert consumer.drop(consumer.streams["p0"]).pace is pace
    other = Consumer(consumer.feed, consumer.state, "", "")
    other.adopt(consumer)
    assert (other.pace, other.streams["p0"].pace, other.streams["p1"].pace) == (pace, pace, None)


def test_nothing_is_fetched_ahead_of_a_pace(made):
    queue, _ = made
    queue.put(["p0"])
    queue.launch()
    stream = queue.next(0.0)
    stream.pace, stream.at_once = Pace(1.0), False
    queue.prefetch(stream)
    assert stream.future is None
    stream.pace = None
    queue.prefetch(stream)
    assert stream.future is not None
