"""Tests the client of asyncio: what only it has, beside the tests that run through both faces."""

import asyncio
import gc
import inspect
import os
import random
import signal
import threading
import time
from contextvars import ContextVar

import pytest
import uvloop

import multiclouddb_api as api
from multiclouddb import aio
from multiclouddb_conformance.harness import CollectionKind, Write
from multiclouddb_conformance.open_client import open_client
from multiclouddb_conformance.simulated import SimulationHarness
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_embedded import EmbeddedStore
from testing.seeds import in_soak

from .event_loop import no_thread_left
from .refusals import refused

ROWS = 60


@pytest.fixture
def store(tmp_path):
    made = EmbeddedStore(tmp_path / "store.db", durable=False)
    made.create_collection("orders", partitions=2)
    for number in range(ROWS):
        made.put("orders", f"o-{number:03}", {"n": number})
    yield made
    made.close()


@pytest.fixture
def url(store):
    return f"embedded://{store.path}"


def request(start=None, **options):
    return api.ChangeFeedRequest("orders", start or api.Beginning(), **options)


class TestFace:
    def test_has_the_calls_of_the_blocking_client_with_the_same_parameters(self):
        pairs = {
            api.MulticloudDbClient: aio.AsyncMulticloudDbClient,
            api.ChangeFeedIterator: aio.AsyncChangeFeedIterator,
        }
        for blocking, awaited in pairs.items():
            for name, method in inspect.getmembers(blocking, callable):
                if not name.startswith("_"):
                    ours, theirs = inspect.signature(method), inspect.signature(getattr(awaited, name))
                    assert str(theirs).partition(" ->")[0] == str(ours).partition(" ->")[0], name
        for blocking, awaited, more in (
            (api.connect, aio.connect, {"threads"}),
            (api.follow, aio.follow, set()),
        ):
            theirs, ours = inspect.signature(awaited).parameters, inspect.signature(blocking).parameters
            assert theirs.keys() - ours.keys() == more
            assert ours.keys() <= theirs.keys()

    async def test_reads_pages_events_and_lists(self, store, url):
        async with aio.connect(url) as client:
            page = await client.read_changes(request(max_page_size=7))
            assert len(page.events) == 7
            assert len(await client.list_physical_partitions("orders")) == 2
            assert await client.collections() == (api.ResourceAddress("main", "orders"),)
            assert len(await client.plan_partitions(request())) == 2
            assert None not in (await client.lookup("orders", [page.events[0].key])).values()
            assert (await client.inspect(page.continuation_token)).partitions
            assert client.capabilities().is_supported(api.Capability.CHANGE_FEED)
            assert client.config.provider == "embedded"
            events = await _all(client.iterate_changes(request(), until_idle=True))
        assert sorted(event.key["id"] for event in events) == [f"o-{number:03}" for number in range(ROWS)]

    async def test_await_opens_a_client_too(self, url):
        client = await aio.connect(url)
        try:
            assert len((await client.read_changes(request())).events) == ROWS
        finally:
            await client.close()
            await client.close()

    async def test_follow_keeps_its_position_and_closes_its_connection(self, store, url, tmp_path):
        settings = {"checkpoint": tmp_path / "orders.checkpoint", "until_idle": True}
        async with aio.follow(url, "orders", start=api.Beginning(), **settings) as events:
            assert len(await _all(events)) == ROWS
        store.put("orders", "later", {})
        second = await _all(aio.follow(url, "orders", **settings))
        assert [event.key["id"] for event in second] == ["later"]

    async def test_now_is_when_the_block_is_entered(self, store, url):
        async with aio.follow(url, "orders", start=api.Now(), until_idle=True) as events:
            store.put("orders", "first", {})
            assert [event.key["id"] for event in await _all(events)] == ["first"]
        async with (
            aio.connect(url) as client,
            client.iterate_changes(request(api.Now()), until_idle=True) as events,
        ):
            store.put("orders", "second", {})
            pages = [page async for page in events.pages()]
        assert [event.key["id"] for page in pages for event in page.events] == ["second"]

    async def test_a_block_that_cannot_begin_closes_its_client(self, url):
        follower = aio.follow(url, "absent", start=api.Now())
        for _ in range(2):  # the second try opens another
            client = follower._client
            with pytest.raises(api.MulticloudDbError, match="absent"):
                await follower.__aenter__()
            with pytest.raises(api.MulticloudDbError, match="closed"):
                await client.read_changes(request())

    async def test_a_second_task_is_refused_and_the_first_goes_on(self, url):
        """anext(changes) shares the iteration of a loop."""
        seen = []
        async with (
            aio.connect(url) as client,
            client.iterate_changes(request(max_page_size=1), until_idle=True) as changes,
        ):
            async for event in changes:
                seen.append(event)
                if len(seen) == 2:
                    async with changes._lock:  # as while the first task waits for a page
                        with pytest.raises(api.MulticloudDbError, match="iterated twice"):
                            await anext(changes)
        assert len(seen) == ROWS

    async def test_anext_goes_on_within_a_loop(self, url):
        async with (
            aio.connect(url) as client,
            client.iterate_changes(request(), until_idle=True) as changes,
        ):
            first = await anext(changes)
            rest = await _all(changes)
        assert first not in rest
        assert len(rest) == ROWS - 1


class AsyncStore:
    """A checkpoint store with coroutine methods."""

    def __init__(self):
        self.saved = []

    async def load(self, name):
        await asyncio.sleep(0)
        return self.saved[-1] if self.saved else None

    async def save(self, name, token, expected):
        await asyncio.sleep(0)
        assert expected == (self.saved[-1].version if self.saved else None)
        self.saved.append(api.Checkpoint(token, str(len(self.saved))))
        return self.saved[-1]


def test_the_blocking_iterator_refuses_a_store_of_coroutines(url):
    with api.connect(url) as client:
        changes = client.iterate_changes(request(), checkpoint_store=AsyncStore(), checkpoint_name="w")
        assert "multiclouddb.aio" in refused(lambda: next(changes))


class Slow:
    """A blocking client whose reads end when the test lets them."""

    def __init__(self, client):
        self.client, self.go, self.began, self.reads = client, threading.Event(), threading.Event(), 0
        self.config, self.error = client.config, None

    def read_changes(self, request, options=None):
        self.reads += 1
        self.began.set()
        assert self.go.wait(30)
        if self.error is not None:
            raise self.error
        return self.client.read_changes(request, options)

    def close(self):
        self.go.set()
        self.client.close()


async def cancelled(task):
    began = time.perf_counter()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.perf_counter() - began < 5


TRACE = ContextVar("trace")


async def test_a_call_sees_the_context_of_its_task(url):
    seen = []

    class Reading(Slow):
        def read_changes(self, request, options=None):
            seen.append(TRACE.get(None))
            return self.client.read_changes(request, options)

    async with aio.AsyncMulticloudDbClient(lambda: Reading(api.connect(url))) as client:
        TRACE.set("span")
        await client.read_changes(request())
    assert seen == ["span"]


class TestCancel:
    @pytest.fixture
    def slow(self, url):
        return Slow(api.connect(url))

    def test_the_error_of_a_read_that_nobody_awaits_is_never_logged(self, slow, caplog):
        slow.error = RuntimeError("late")

        async def main():
            async with aio.AsyncMulticloudDbClient(lambda: slow) as client:
                task = asyncio.create_task(client.read_changes(request()))
                await asyncio.to_thread(slow.began.wait)
                await cancelled(task)
                changes = client.iterate_changes(request())
                task = asyncio.create_task(anext(changes))
                wait_until(lambda: slow.reads == 1)
                await asyncio.sleep(0)
                await cancelled(task)
            del changes
            gc.collect()

        asyncio.run(main(), debug=True)
        gc.collect()
        assert [
            record
            for record in caplog.records
            if record.name == "asyncio" and "never retrieved" in record.message
        ] == []

    @pytest.mark.parametrize("place", ["another thread", "a signal handler"])
    async def test_stop_in_any_place_ends_a_pause(self, url, place):
        async with aio.connect(url) as client:
            changes = client.iterate_changes(
                request(api.Now()), idle_backoff_seconds=600, max_idle_backoff_seconds=600
            )
            before = signal.signal(signal.SIGUSR1, lambda *_: changes.stop())
            try:
                task = asyncio.create_task(_all(changes))
                await _idle(changes)
                if place == "another thread":
                    threading.Thread(target=changes.stop).start()
                else:
                    os.kill(os.getpid(), signal.SIGUSR1)
                assert await asyncio.wait_for(task, 30) == []
            finally:
                signal.signal(signal.SIGUSR1, before)

    async def test_an_idle_follower_holds_no_thread(self, url):
        async with aio.connect(url, threads=1) as client:
            followers = [client.iterate_changes(request(api.Now())) for _ in range(20)]
            tasks = [asyncio.create_task(_all(each)) for each in followers]
            for each in followers:
                await _idle(each)
            assert len((await client.read_changes(request())).events) == ROWS
            for each in followers:
                each.stop()
            assert await asyncio.gather(*tasks) == [[]] * 20


async def _all(changes):
    return [event async for event in changes]


async def _idle(changes):
    async with asyncio.timeout(30):
        while changes.continuation_token is None:
            await asyncio.sleep(0.01)


class TestBadInput:
    async def test_the_words_of_the_other_face_are_refused(self, url):
        client = aio.connect(url)
        said = [refused(client.__enter__), refused(aio.follow(url, "orders").__iter__)]
        said.append(refused(lambda: client.capabilities()))
        async with client:
            changes = client.iterate_changes(request())
            said += [refused(changes.__iter__), refused(changes.__enter__)]
        assert all("async with" in text or "async for" in text for text in said)
        with api.connect(url) as client:
            assert "write for" in refused(client.iterate_changes(request()).__aiter__)
            assert "write with" in refused(lambda: client.__aenter__().send(None))

    def test_a_second_loop_and_no_loop_are_refused(self, url):
        async def opened():
            return await aio.connect(url)

        client = asyncio.run(opened())

        async def main():
            await client.read_changes(request())

        assert "another event loop" in refused(lambda: asyncio.run(main()))
        assert "no asyncio event loop" in refused(lambda: client.iterate_changes(request()))
        client.blocking.close()

    async def test_two_iterations_at_once_are_refused(self, url):
        async with aio.connect(url) as client:
            changes = client.iterate_changes(request(api.Now()), wait_seconds=10)
            first = asyncio.create_task(anext(changes))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            with pytest.raises(api.MulticloudDbError, match="iterated twice"):
                await anext(changes.pages())
            changes.stop()
            with pytest.raises(StopAsyncIteration):
                await first

    async def test_values_are_refused_by_name(self, url):
        class Awaited:
            async def __aenter__(self): ...

        assert "threads" in refused(lambda: aio.connect(url, threads=0))
        assert "blocking client" in refused(lambda: aio.connect(url, native_client=Awaited()))
        assert "source" in refused(lambda: aio.connect("orders"))
        async with aio.connect(url) as client:
            assert "wait_seconds" in refused(
                lambda: client.iterate_changes(request(), wait_seconds=5, timeout_seconds=1)
            )
        assert "closed" in refused(lambda: client.iterate_changes(request()))
        with pytest.raises(api.MulticloudDbError, match="opened before"):
            await client

    async def test_a_client_that_cannot_be_opened_leaves_no_thread(self):
        with pytest.raises(api.MulticloudDbError):
            await aio.connect("embedded:///no/such/folder/store.db?profile=none")

    async def test_a_forked_process_is_told_to_open_its_own(self, url, monkeypatch):
        async with aio.connect(url) as client:
            process = os.getpid()
            with monkeypatch.context() as patched:
                patched.setattr("multiclouddb_api.process.os.getpid", lambda: process + 1)
                assert "another process" in refused(lambda: client.iterate_changes(request()))


_SEEDS = [pytest.param(range(first, first + 50), id=str(first)) for first in range(0, 300, 50)]
_MORE = pytest.param(in_soak(300, 3000), id="more", marks=pytest.mark.soak)


@pytest.mark.parametrize("seeds", [*_SEEDS, _MORE])
def test_cancelled_at_any_await_delivers_the_same(seeds, tmp_path):
    """The events are those of the blocking face, in their order, and no task and no thread is left."""
    for seed in seeds:
        chance = random.Random(seed)
        harness = SimulationHarness(tmp_path)
        harness.open()
        try:
            address = harness.create("items", CollectionKind.PLAIN, 2)
            _write(harness, address, chance)
            wanted = api.ChangeFeedRequest(address, api.Beginning(), max_page_size=chance.randint(1, 7))
            with harness.connect() as client:
                expected = _by_key(client.iterate_changes(wanted, until_idle=True))
            loop = uvloop.new_event_loop if seed % 2 else None
            with no_thread_left(), asyncio.Runner(debug=seed % 4 < 2, loop_factory=loop) as runner:
                assert runner.run(_interrupted(harness, wanted, chance)) == expected, f"seed {seed}"
        finally:
            harness.close()


def _write(harness, address, chance):
    for _ in range(chance.randint(1, 30)):
        harness.write(address, [Write(f"k{chance.randint(0, 5)}", {"n": chance.random()})])


async def _interrupted(harness, wanted, chance):
    client = await aio.AsyncMulticloudDbClient(
        lambda: open_client(harness.plugin, harness.config()), threads=2
    )
    kept = AsyncStore() if chance.random() < 0.5 else None
    stored = {} if kept is None else {"checkpoint_store": kept, "checkpoint_name": "w"}
    changes = client.iterate_changes(wanted, until_idle=True, idle_backoff_seconds=0.001, **stored)
    events = []
    while True:
        task = asyncio.create_task(anext(changes, None))
        for _ in range(chance.randint(0, 4)):
            await asyncio.sleep(chance.choice([0, 0, 0.0005]))
        if chance.random() < 0.7:
            task.cancel()
        try:
            event = await task
        except asyncio.CancelledError:
            continue
        if event is None:
            break
        events.append(event)
    await changes.close()
    await client.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return _by_key(events)


def _by_key(events):
    """Return the ids of each key, in order; nothing orders the changes of different partitions."""
    found = {}
    for event in events:
        found.setdefault(event.key, []).append(event.event_id)
    return found
