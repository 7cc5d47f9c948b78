"""Tests how an iteration of asyncio ends: cancelled while it saves or closes, closed by another task."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
from contextlib import suppress
from types import coroutine

import pytest

import multiclouddb_api as api
from multiclouddb import aio
from multiclouddb_api.aio import worker
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_embedded import EmbeddedStore

from .event_loop import run
from .test_iterator import ADDRESS, MemoryStore, Service, ids


class Gate:
    """A place where calls wait while `go` is not set."""

    def __init__(self):
        self.go, self.began = threading.Event(), threading.Event()
        self.go.set()

    def wait(self):
        self.began.set()
        assert self.go.wait(30)


class Fake(Gate, Service):
    """A scripted service that is a client, too; a read or the opening waits while `go` is not set."""

    def __init__(self, pages=(2, 2, 2)):
        Gate.__init__(self)
        Service.__init__(self, list(pages))
        self.closed = 0
        self.documents = iter(range(6))
        self.config = api.ClientConfig("embedded", {"path": "none"})

    def read_changes(self, request, options=None):
        self.wait()
        return super().read_changes(request, options)

    def run_cursor_command(self, database, command):
        return self

    def __next__(self):
        self.wait()
        return next(self.documents)

    def close(self):
        self.closed += 1
        self.go.set()


class Gated(Gate, MemoryStore):
    """A blocking store whose saves wait while `go` is not set."""

    def __init__(self):
        Gate.__init__(self)
        MemoryStore.__init__(self)
        self.loads = 0

    def load(self, name):
        self.loads += 1
        return super().load(name)

    def save(self, name, token, expected):
        self.wait()
        return super().save(name, token, expected)


class Awaited(Gated):
    """The same store with coroutine methods."""

    async def load(self, name):
        return super().load(name)

    async def save(self, name, token, expected):
        self.began.set()
        async with asyncio.timeout(30):
            while not self.go.is_set():
                await asyncio.sleep(0)
        return MemoryStore.save(self, name, token, expected)


STORES = [Gated, Awaited]


def opened(fake, threads=4):
    return aio.AsyncMulticloudDbClient(lambda: fake, threads)


def wanted(start=None):
    return api.ChangeFeedRequest(ADDRESS, start or api.Beginning())


def iterate(client, store=None, **settings):
    named = {} if store is None else {"checkpoint_store": store, "checkpoint_name": "w"}
    return client.iterate_changes(wanted(), **named, **settings)


async def begun(gate, awaitable):
    """Return the task of an awaitable whose call has begun, and waits at the gate."""

    async def awaits():
        return await awaitable

    gate.go.clear()
    gate.began.clear()
    task = asyncio.create_task(awaits())
    async with asyncio.timeout(20):
        while not gate.began.is_set():
            await asyncio.sleep(0)
    return task


async def cancelled(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def cancelled_at(gate, awaitable):
    """Cancel an awaitable when a call of it has begun."""
    await cancelled(await begun(gate, awaitable))


async def a_while():
    for _ in range(20):
        await asyncio.sleep(0)


class TestCancelledSave:
    @pytest.mark.parametrize("make", STORES)
    @pytest.mark.parametrize("how", ["close", "the end of the page"])
    async def test_of_the_end_is_waited_for_by_the_next_close(self, make, how):
        store = make()
        async with opened(Fake([1, 0, 2])) as client:
            changes = iterate(client, store, checkpoint_interval_seconds=600)
            for _ in range(2):
                await anext(changes)
            if how == "close":
                await cancelled_at(store, changes.close())
            else:
                changes.stop()
                await cancelled_at(store, anext(changes))
            closing = asyncio.create_task(changes.close())
            await a_while()
            store.go.set()
            await closing
        assert store.saved == ["P@1", "P@2"]
        assert store.loads == 1  # nobody had to find out whether it was saved

    @pytest.mark.parametrize("make", STORES)
    def test_still_closes_the_connection_of_follow(self, make):
        store, fake = make(), Fake([1, 0, 2])

        async def main():
            client = await opened(fake)
            changes = iterate(client, store, checkpoint_interval_seconds=600)
            changes._feed.at_close = client.close
            for _ in range(2):
                await anext(changes)
            task = await begun(store, changes.close())
            threading.Timer(0.2, store.go.set).start()
            await cancelled(task)
            while len(asyncio.all_tasks()) > 2:
                await asyncio.sleep(0)

        run(main)
        assert fake.closed == 1
        assert store.saved == ["P@1", "P@2"]

    @pytest.mark.parametrize("left", [ZeroDivisionError, StopIteration])
    async def test_that_fails_does_not_keep_the_connection_open(self, left):
        store, fake = Gated(), Fake()
        save = store.save

        def failing(name, token, expected):
            store.wait()
            store.save = save
            raise left

        client = await opened(fake)
        changes = iterate(client, store)
        changes._feed.at_close = client.close
        pages = changes.pages()
        await anext(pages)
        store.save = failing
        await cancelled_at(store, anext(pages))
        store.go.set()
        await changes.close()
        assert fake.closed == 1
        assert store.saved == ["P@1"]


class TestCancelledRead:
    async def test_of_now_is_not_made_again_by_another_iteration(self):
        """A later read at `Now` would start after its events."""
        fake = Fake([2, 2])
        async with opened(fake) as client:
            changes = client.iterate_changes(wanted(api.Now()), until_idle=True)
            await cancelled_at(fake, anext(changes.pages()))
            fake.go.set()
            assert [ids(page.events) async for page in changes.pages()] == [["P0", "P1"], ["P2", "P3"], []]
        assert [read.start_position for read in fake.reads].count(api.Now()) == 1

    async def test_callers_that_give_up_do_not_prolong_a_pause(self):
        fake = Fake([])
        async with opened(fake) as client:
            changes = iterate(client, idle_backoff_seconds=0.3, max_idle_backoff_seconds=0.3)
            while len(fake.reads) < 3:
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await anext(changes)
            await changes.close()


def unretrieved(caplog):
    gc.collect()
    return [each.message for each in caplog.records if "never retrieved" in each.message]


class TestErrors:
    def test_of_an_awaited_store_that_nobody_awaits_is_never_logged(self, caplog):
        store = Awaited()

        async def main():
            async with opened(Fake()) as client:
                pages = iterate(client, store).pages()
                await anext(pages)
                await cancelled_at(store, anext(pages))
                store.failures = ["lost"]
                store.go.set()
                while len(asyncio.all_tasks()) > 2:
                    await asyncio.sleep(0)

        run(main)
        assert unretrieved(caplog) == []

    @pytest.mark.parametrize("make", STORES)
    async def test_a_stop_iteration_of_the_store_is_an_error(self, make):
        """An asyncio future refuses it, and nobody would get an answer."""
        store = make()

        def stops(name):
            raise StopIteration

        async def stops_awaited(name):
            raise StopIteration

        store.load = stops if make is Gated else stops_awaited
        async with opened(Fake()) as client:
            with pytest.raises(RuntimeError):
                await anext(iterate(client, store))

    async def test_a_store_whose_call_is_cancelled_inside_does_not_end_the_iteration(self):
        store = Awaited()
        save = store.save

        async def cancelled(name, token, expected):
            store.save = save
            raise asyncio.CancelledError

        async with opened(Fake()) as client:
            changes = iterate(client, store, until_idle=True)
            await anext(changes)
            await anext(changes)
            store.save = cancelled
            with pytest.raises(api.MulticloudDbError, match="checkpoint_store"):
                await anext(changes)
            assert ids([event async for event in changes]) == ["P2", "P3", "P4", "P5"]
        assert store.saved[-1] == "P@4"


class TestClose:
    async def test_by_another_task_ends_the_iteration(self):
        store, events = Gated(), []
        async with opened(Fake([1, 0, 2])) as client:
            changes = iterate(client, store, checkpoint_interval_seconds=600)
            async for event in changes:
                events.append(event.event_id)
                if len(events) == 2:
                    closing = await begun(store, changes.close())
                    threading.Timer(0.05, store.go.set).start()
            await closing
        assert events == ["P0", "P1"]
        assert store.saved == ["P@1", "P@2"]

    @pytest.mark.parametrize("pages", [True, False])
    async def test_after_the_last_event_of_a_page_ends_the_iteration(self, pages):
        async with opened(Fake([1, 1])) as client:
            changes = iterate(client)
            async for _ in changes.pages() if pages else changes:
                await changes.close()

    async def test_of_one_iteration_gives_its_page_to_the_next(self):
        async with opened(Fake()) as client:
            changes = iterate(client)
            for each in (changes.pages(), aiter(changes)):
                await anext(each)
                await each.aclose()
                assert await anext(each, None) is None
            assert ids((await anext(changes.pages())).events) == ["P0", "P1"]

    async def test_while_another_task_saves_waits_for_it(self):
        store = Gated()
        async with opened(Fake([1, 1])) as client:
            changes = iterate(client, store)
            pages = changes.pages()
            await anext(pages)
            iterating = await begun(store, anext(pages, None))
            closing = asyncio.create_task(changes.close())
            again = asyncio.create_task(changes.close())
            await asyncio.sleep(0)
            store.go.set()
            await asyncio.gather(closing, again)
            assert await iterating is None
        assert store.saved == ["P@1"]

    async def test_of_the_client_ends_the_calls_that_wait_for_a_thread(self):
        fake = Fake()
        client = await opened(fake, threads=1)
        calls = [await begun(fake, client.read_changes(wanted()))]
        calls += [asyncio.create_task(client.read_changes(wanted())) for _ in range(4)]
        await client.close()
        await asyncio.gather(*calls, return_exceptions=True)

    def test_of_the_client_while_it_opens_leaves_nothing(self):
        fake, gate = Fake(), Gate()

        def make():
            gate.wait()
            return fake

        async def main():
            client = aio.AsyncMulticloudDbClient(make)
            opening = await begun(gate, client._open())
            await client.close()
            gate.go.set()
            with pytest.raises(api.MulticloudDbError, match="closed"):
                await opening

        run(main)
        assert fake.closed == 1

    def test_of_a_client_whose_opening_is_cancelled_twice(self):
        fake, gate = Fake(), Gate()

        def make():
            gate.wait()
            return fake

        async def main():
            opening = await begun(gate, aio.AsyncMulticloudDbClient(make)._open())
            threading.Timer(0.2, gate.go.set).start()
            for _ in range(2):
                opening.cancel()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await opening

        run(main)
        wait_until(lambda: fake.closed == 1)


class Cuts:
    """Counts how often coroutines are suspended, and cancels them at given suspensions.

    A cut is a number and True if the result has already arrived when the task is cancelled.
    """

    def __init__(self, *cuts):
        self.cuts, self.suspended = dict(cuts), 0

    @coroutine
    def run(self, wrapped):
        value, error = None, None
        while True:
            try:
                future = wrapped.send(value) if error is None else wrapped.throw(error)
            except StopIteration as end:
                return end.value
            late, error = self.cuts.get(self.suspended), None
            self.suspended += 1
            if late is not False:
                try:
                    yield future
                except BaseException as raised:  # noqa: BLE001 - the coroutine gets it
                    error = raised
            elif future is not None:
                future._asyncio_future_blocking = False
            if late is not None:
                error = asyncio.CancelledError()

    async def until_done(self, make, when_cancelled=None):
        """Run a new coroutine until one is not cancelled."""
        while True:
            try:
                return await self.run(make())
            except asyncio.CancelledError:
                if when_cancelled is not None:
                    await when_cancelled()


async def delivered(client, store, each, then):
    """Read a feed to its end; after a cancelled wait, go on as `then` says."""
    changes = iterate(client, store, until_idle=True)
    pages, seen = changes.pages(), []

    async def go_on():
        nonlocal changes, pages
        if then == "the next iterator":
            await each.until_done(changes.close)
            changes = iterate(client, store, until_idle=True)
        if then != "the same iteration":
            pages = changes.pages()

    while (page := await each.until_done(lambda: anext(pages, None), go_on)) is not None:
        seen += ids(page.events)
    await each.until_done(changes.close)
    return seen


@pytest.mark.parametrize("then", ["the same iteration", "the next iteration", "the next iterator"])
@pytest.mark.parametrize("store", STORES)
def test_cancelled_at_each_two_awaits_delivers_the_same(store, then):
    """All pairs of awaits of one iteration and its end, each cancelled before or after its result."""

    def history(*cuts):
        kept, fake, each = store(), Fake([2, 0, 1]), Cuts(*cuts)

        async def main():
            async with opened(fake) as client:
                return await delivered(client, kept, each, then)

        seen = asyncio.run(main())
        assert kept.saved == sorted(kept.saved)
        if then == "the next iterator":  # a read whose iterator was closed is made again
            return (seen, kept.saved[-1] >= "P@4"), each.suspended
        return (seen, kept.saved[-1], len(fake.reads)), each.suspended

    expected = history()[0]
    assert expected[0] == ["P0", "P1", "P2"]
    explored, first = 0, 0
    while True:
        for late in (False, True):
            reached, second = history((first, late))[1], first + 1
            while second < reached:
                for later in (False, True):
                    cuts = (first, late), (second, later)
                    assert history(*cuts)[0] == expected, cuts
                explored, second = explored + 2, second + 1
        first += 1
        if first >= reached:
            break
    assert explored > 100


def test_a_block_whose_beginning_was_cancelled_at_any_await_is_read_from_there():
    def history(*cuts):
        fake, each = Fake([0, 2, 1]), Cuts(*cuts)

        async def main():
            async with opened(fake) as client:
                changes = client.iterate_changes(wanted(api.Now()), until_idle=True)
                with suppress(asyncio.CancelledError):
                    await each.run(changes.__aenter__())
                seen = [event.event_id async for event in changes]
                await changes.close()
                return seen

        return asyncio.run(main()), each.suspended

    expected, reached = history()
    assert expected == ["P0", "P1", "P2"]
    for number in range(reached):
        for late in (False, True):
            assert history((number, late))[0] == expected
    assert reached


async def test_a_cancelled_close_does_not_keep_the_event_loop():
    gate, fake, ended = Gate(), Fake(), threading.Event()

    def close():
        try:
            gate.wait()
        finally:
            ended.set()

    fake.close = close
    client = await opened(fake)
    await cancelled(await begun(gate, client.close()))
    assert not ended.is_set()
    gate.go.set()
    wait_until(ended.is_set)


UNCLOSED = """
import asyncio, threading
from tests.test_aio_ends import Fake, begun, cancelled, opened, wanted

async def main():
    fake = Fake()
    client = await opened(fake)
    await cancelled(await begun(fake, client.read_changes(wanted())))

asyncio.run(main())
"""


def test_a_process_ends_although_a_call_waits_in_its_thread():
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", UNCLOSED], check=True, timeout=100)
    assert time.monotonic() - began < 25  # the call waits for 30 seconds


async def test_follow_whose_opening_was_cancelled_opens_again(tmp_path, monkeypatch):
    followed, gate = worker.followed, Gate()

    def waits(*arguments):
        gate.wait()
        return followed(*arguments)

    monkeypatch.setattr(worker, "followed", waits)
    with EmbeddedStore(tmp_path / "store.db") as store:
        store.create_collection("orders")
        store.put("orders", "one", {})
        path = f"embedded://{store.path}"
        events = aiter(aio.follow(path, "orders", start=api.Beginning(), until_idle=True))
        opening = await begun(gate, anext(events))
        threading.Timer(0.05, gate.go.set).start()
        await cancelled(opening)
        assert [event.key["id"] async for event in events] == ["one"]


class TestCursor:
    async def test_a_cancelled_wait_loses_no_document(self):
        fake = Fake()
        async with opened(fake) as client:
            cursor = await client.run_cursor_command("shop", {})
            found = [await anext(cursor)]
            await cancelled_at(fake, anext(cursor))
            fake.go.set()
            found += [await anext(cursor) for _ in range(3)]
            await cursor.close()
            assert found == [0, 1, 2, 3]

    async def test_several_tasks_get_each_document_once(self):
        async with opened(Fake()) as client:
            cursor = await client.run_cursor_command("shop", {})
            assert sorted(await asyncio.gather(*(anext(cursor) for _ in range(5)))) == list(range(5))
