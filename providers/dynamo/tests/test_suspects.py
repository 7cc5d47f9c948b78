import pytest
from multiclouddb_api import (
    Beginning,
    Now,
    SkipToOldest,
    ErrorCategory,
    MulticloudDbError,
    FromContinuationToken,
)
from multiclouddb_conformance.scripted.dynamo import ChildFilter, Order, Remains
from multiclouddb_spi import *
from .world import World, markers, soon, seconds, ADDRESS, TABLE


def test_pace():
    with World(shards=1) as w:
        w.script.grow(TABLE, 2500, 5)
        c = w.client()
        c.list_physical_partitions(ADDRESS)
        print("most describes", w.journal.most_describes, w.journal.count("DescribeStream"))
        assert w.journal.most_describes <= 10


def test_drained_unlisted():
    with World() as w:
        c = w.consumer()
        w.put("a", "b")
        c.until_idle()
        parent = w.chain()
        w.habits.late_children = 10**9
        w.roll_over()
        for _ in range(3):
            c.read()
        w.habits.late_children = 0
        child = w.chain()
        lost = w.put("c")
        w.script.roll_over_all(TABLE)
        for s in w.script.shards(TABLE):
            w.script.hide(s.shard_id, 0)
        w.script.advance(23 * 3600)
        new = w.put("d")
        w.roll_over()
        w.script.advance(2 * 3600)
        print(
            [(s.shard_id[-8:], (s.parent or "")[-8:], s.is_open, s.records) for s in w.script.shards(TABLE)]
        )
        c.restart()
        try:
            for _ in range(5):
                p = c.read()
                print(p.idle, markers(p.events), p.notices)
        except MulticloudDbError as e:
            print("ERR", e)
            return
        assert False, "silent"


def test_iterators_shared():
    with World(shards=70) as w:
        client = w.client()
        a = w.consumer(Now(), client)
        a.read()
        missing = w.put_everywhere()[:5] if False else None
        shard = w.open()[3]
        # a's readers are closed: more than the cache keeps, or a minute has passed
        client._backend._lives.forget() if hasattr(client, "_backend") else print(dir(client))
        m = w.put_in(shard)
        w.script.advance(2)
        b = w.consumer(Now(), client)
        b.read()
        client._backend._lives.forget()
        got = a.until_idle()
        print(got, m)
        assert set(m) <= set(a.markers)


def test_iterators_same_second():
    with World(shards=70) as w:
        client = w.client()
        a = w.consumer(Now(), client)
        import time

        while time.time() % 1 > 0.2:
            pass
        a.read()
        shard = w.open()[3]
        m = w.put_in(shard)
        b = w.consumer(Now(), client)
        b.read()
        got = a.until_idle()
        got2 = b.until_idle()
        print(got, got2, m, a.start == b.start)
        assert set(m) <= set(a.markers)


def test_start_none():
    with World() as w:
        w.put("a")
        w.habits.late_children = 2
        w.roll_over()
        c = w.consumer(Now())
        c.read()
        # the child is found
        import base64
        from multiclouddb_spi.token import decode_token

        print(decode_token(c.token).state)
        for _ in range(6):
            w.troubles.fail("GetRecords", "InternalServerError", None, shard=w.chain())
            try:
                c.read(seconds(1))
            except Exception as e:
                print(repr(e)[:100])
            print(decode_token(c.token).state)
        w.troubles.end()
        lost = w.put("x")
        w.script.advance(25 * 3600)
        new = w.put("y")
        c.restart()
        try:
            got = c.until_idle()
        except MulticloudDbError as e:
            print(e)
            return
        print(got, lost, new)
        assert set(lost) <= set(got)


def test_half_split():
    with World() as w:
        w.put("a")
        c = w.consumer()
        c.until_idle()
        root = w.chain()
        one, two = w.script.split(root)
        w.script.hide(two, 1)
        m = w.put_everywhere()
        got = c.until_idle()
        print(got, m)
        assert sorted(got) == sorted(m)


def test_half_split_between_pages():
    with World(shards=250) as w:
        w.habits.order = Order.SHUFFLED
        lost = 0

        # split between pages all open shards
        def splits():
            for s in w.open()[:60]:
                w.script.split(s)

        w.troubles.act(splits, 1, operation="DescribeStream")
        c = w.consumer(Beginning())
        c.read()
        m = w.put_everywhere()
        got = c.until_idle()
        print(len(got), len(m))
        assert sorted(got) == sorted(m)


def test_half_split_between_pages_now():
    with World(shards=250) as w:
        w.habits.order = Order.SHUFFLED

        def splits():
            for s in w.open()[:60]:
                w.script.split(s)

        w.troubles.act(splits, 1, operation="DescribeStream")
        c = w.consumer(Now())
        c.read()
        m = w.put_everywhere()
        got = c.until_idle()
        print(len(got), len(m))
        assert sorted(got) == sorted(m)


def test_vanish_between_pages():
    with World(shards=1) as w:
        w.script.grow(TABLE, 250, 1)
        w.troubles.act(lambda: w.script.drop_oldest(TABLE, 120), 1, operation="DescribeStream")
        c = w.consumer(Now())
        c.read()


def test_disabled_late():
    with World() as w:
        a = w.put("a")
        c = w.consumer()
        c.until_idle()
        w.habits.late_children = 3
        w.roll_over()
        m = w.put("b")
        w.server.client().update_table(TableName=TABLE, StreamSpecification={"StreamEnabled": False})
        for _ in range(10):
            p = c.read()
            print(p.idle, markers(p.events), p.notices)
        assert set(m) <= set(c.markers)


def test_bounded_empties():
    with World() as w:
        m = w.put("a", "b", "c")
        provider, feed = w.feed()
        (seed,) = feed.start(Beginning(), None, soon())
        r = feed.open(seed.partition_id, seed.cursor)
        b = r.fetch(10, 10**6, 0, soon())
        end = b.cursor_after(3)
        r.close()
        w.troubles.empty_pages(10)
        got = [
            e
            for batch in read_range(provider, feed, Range(seed.partition_id, seed.cursor, end))
            for e in batch.events(0, len(batch))
        ]
        assert markers(got) == m


def test_walked_trimmed():
    with World() as w:
        w.put("old")
        w.script.advance(4 * 3600)
        c = w.consumer(Now())
        c.read()
        w.script.advance(20 * 60)
        c.restart()
        c.read()
        from multiclouddb_spi.token import decode_token

        print(decode_token(c.token).state)
        w.script.advance(20 * 3600)
        m = w.put("new")
        c.restart()
        assert c.until_idle() == m


def test_empty_pages_watermark():
    with World() as w:
        w.put("a")
        c = w.consumer()
        c.until_idle()
        w.roll_over()
        w.script.advance(600)
        m = w.put("b")
        w.script.advance(2 * 3600)
        w.troubles.empty_pages(8)
        for _ in range(4):
            p = c.read()
            print(p.idle, p.diagnostics.watermark, markers(p.events), [e.timestamp for e in p.events])
        p2 = c.pages
        assert all(
            e.timestamp >= before.diagnostics.watermark
            for before, p in zip(c.pages, c.pages[1:])
            for e in p.events
        )


def test_ignored_filter():
    with World(shards=150) as w:
        w.habits.child_filter = ChildFilter.IGNORED
        c = w.consumer(Now())
        c.read()
        w.journal.clear()
        for s in w.open()[:2]:
            w.script.roll_over(s)
        m = w.put_everywhere()
        got = c.until_idle()
        print(w.journal.count("DescribeStream"))
        assert sorted(got) == sorted(m)


def test_slow_beginning():
    with World(shards=3) as w:
        m = w.put_everywhere() * 1
        c = w.consumer(Beginning(), max_page_size=1)
        c.read()
        w.script.advance(3700)
        c.restart()
        c.until_idle()
        assert sorted(c.markers) == sorted(m)
