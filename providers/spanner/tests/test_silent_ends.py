"""Tests queries that end at the end of their partition without naming its children.

Reported for the service in apache/beam 37326, 40209 and 40232, and in debezium-connector-spanner 172. The
data is there: the same query, repeated from the last record, names the children.
"""

import asyncio

import attrs
import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    FromContinuationToken,
    OperationOptions,
    Resnapshot,
    SkipToOldest,
)
from multiclouddb_api.aio import connect as aio_connect
from multiclouddb_spi.continuation.token import decode_token, encode_token
from multiclouddb_spi.planning.planner import Planner
from multiclouddb_spi.planning.ranges import read_range

from .feeds import HOUR, MINUTE, Opened, feed, numbers, once


def split(items):
    """End the only partition; its children take over."""
    (token,) = items.open_partitions()
    items.server.split(token)


def drained(items, start, **settings):
    """Read up to the present, and repeat failures that may pass; at most 40 pages."""
    events, errors = [], []
    for _ in range(40):
        page = items.tried(start, **settings)
        if page is None:
            errors.append("the page failed")
            continue
        events += page.events
        errors += page.diagnostics.partition_errors.values()
        start = page.continuation_token
        if page.idle:
            return events, errors, start
    pytest.fail(f"never idle: {errors[-3:]}")


@pytest.mark.parametrize("wait", [0.0, 0.3])
@pytest.mark.parametrize("silent", [1, 5])
@pytest.mark.parametrize("size", [0, 2])
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_nothing_is_lost_and_nothing_comes_twice(wait, silent, size, named):
    with feed(initial_partitions=1, silent_ends=silent, names_lifetime=named) as items:
        token = items.token()
        items.fill(3)
        split(items)
        items.fill(6, start=3)
        events, _, token = drained(items, token, size=size, wait=wait)
        assert {event.event_id for event in events} == {event.event_id for event in items.drain(Beginning())}
        assert sorted(numbers(events)) == list(range(9))
        items.fill(2, start=9)
        assert sorted(numbers(drained(items, token, wait=wait)[0])) == [9, 10]


def test_a_partition_that_ends_while_a_query_waits_for_it():
    """The clock shows that the query has ended before its window."""
    with feed(initial_partitions=1, silent_ends=2) as items:
        token = items.page(Beginning()).continuation_token
        items.server.troubles.act(lambda: split(items), 1)
        items.fill(3)
        events, _, _ = drained(items, token, wait=2.0)
        items.fill(3, start=3)
        more, _, _ = drained(items, token, wait=0.1)
        once(events, 3)
        once(more, 6)


def test_an_end_that_is_never_named_is_told_and_is_never_idle():
    with feed(initial_partitions=2, silent_ends=None) as items:
        token = items.token()
        items.fill(8)
        items.server.split(items.open_partitions()[0])
        items.fill(8, start=8)
        events, errors, lags = [], 0, []
        for _ in range(4):
            items.server.advance(5 * MINUTE)
            began = len(items.server.journal.calls)
            page = items.page(token)
            events += page.events
            token = page.continuation_token
            if page.diagnostics.partition_errors:
                (told,) = page.diagnostics.partition_errors.values()
                assert "without naming the partitions that follow" in told
                assert not page.idle
                errors += 1
                lags.append(page.diagnostics.lag_seconds)
            assert len(items.server.journal.calls) - began < 40  # a few repeats, then it is told
        assert errors >= 2
        assert lags == sorted(set(lags))
        items.server.habits.silent_ends = 0
        rest, _, _ = drained(items, token)
        assert sorted({*numbers(events), *numbers(rest)}) == list(range(16))


def moved(items, token, at):
    """Return the token with another position in its only partition."""
    envelope = decode_token(token)
    ((name, _),) = envelope.state["p"]
    return encode_token(attrs.evolve(envelope, state={**envelope.state, "p": [[name, [at]]]}))


def stuck(items):
    """Return a token whose position lies after the end of its partition, as an earlier version stored it."""
    token = items.token()
    items.fill(3)
    split(items)
    end = items.server.now()
    items.fill(3, start=3)
    items.server.advance(30)
    return moved(items, token, round(end.timestamp() * 1e6) + 2_000_000)


@pytest.mark.parametrize("on_expired", [None, SkipToOldest(), Resnapshot()])
def test_a_stored_position_after_the_end_goes_back(on_expired):
    """The window before it can have begun a day earlier, so all changes of the partition come again."""
    with feed(initial_partitions=1) as items:
        token = stuck(items)
        settings = {} if on_expired is None else {"on_expired": on_expired}
        events, errors, _ = drained(items, token, **settings)
        once(events, 6)
        assert errors == []


def test_a_stored_position_after_the_end_has_expired_with_its_records():
    with feed(initial_partitions=1) as items:
        token = stuck(items)
        items.server.advance(24 * HOUR - 29)  # the position itself is still kept
        items.refused(ErrorCategory.CHECKPOINT_EXPIRED, token)


def test_a_refusal_that_names_no_end_is_no_ground_for_a_guess():
    with feed(initial_partitions=1, names_lifetime=False) as items:
        message = items.refused(ErrorCategory.INVALID_REQUEST, stuck(items))
        assert "did not exist at" in message


@pytest.mark.parametrize("silent", [1, 3])
def test_the_ranges_of_a_planned_read_hold_every_change(silent):
    with feed(initial_partitions=1, silent_ends=silent) as items, Opened(items) as opened:
        planner = Planner(opened.provider, opened.feed)
        lineage = planner.start(Beginning(), opened.soon())
        items.fill(4)
        split(items)
        items.fill(4, start=4)
        found = []
        for number in (8, 9):
            items.put(("last", number))
            target = planner.target(lineage, opened.soon())
            while (step := planner.advance(lineage, 3, opened.soon(), target, allow_empty=True)).moved:
                lineage = planner.restore(step.after.to_json())
                for part in step.ranges():
                    for batch in read_range(opened.provider, opened.feed, part):
                        found += numbers(batch.events(0, len(batch)))
            assert sorted(found) == list(range(number + 1))


def test_asyncio_reads_on_too():
    with feed(initial_partitions=1, silent_ends=2) as items:
        token = items.token()
        items.fill(3)
        split(items)
        items.fill(3, start=3)

        async def read():
            events, position = [], FromContinuationToken(token)
            async with aio_connect(ClientConfig("spanner", {"url": items.scripted.url})) as client:
                while True:
                    request = ChangeFeedRequest(items.address, position)
                    page = await client.read_changes(request, OperationOptions(30.0))
                    events += page.events
                    position = FromContinuationToken(page.continuation_token)
                    if page.idle:
                        return events

        once(asyncio.run(read()), 6)


def test_the_watermark_never_moves_back():
    """Reported for another reader in apache/beam 36470."""
    with feed(initial_partitions=2, silent_ends=6) as items:
        token, last = items.token(), None
        for number in range(10):
            items.fill(5, start=5 * number)
            if number % 4 == 1:
                items.server.split(items.open_partitions()[0])
            page = items.page(token, 3)
            token, watermark = page.continuation_token, page.diagnostics.watermark
            assert last is None or watermark >= last
            last = watermark


def test_a_new_client_for_each_page_loses_nothing():
    with feed(initial_partitions=1, silent_ends=4) as items:
        token = items.token()
        items.fill(3)
        split(items)
        items.fill(6, start=3)
        found = []
        for _ in range(20):
            items.restart()
            page = items.tried(token, 2)
            if page is not None:
                found += numbers(page.events)
                token = page.continuation_token
                if page.idle:
                    break
        assert sorted(set(found)) == list(range(9))
