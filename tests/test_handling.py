"""Tests what happens to an event whose handling fails: nothing is lost, overtaken or handled without need."""

import asyncio
import logging
import os
import stat
from functools import partial
from threading import Event, Thread

import pytest

from multiclouddb_api import (
    Beginning,
    ChangeEvent,
    ChangeFeedIterator,
    ChangeFeedPage,
    ChangeFeedRequest,
    ChangeType,
    ErrorCategory,
    MulticloudDbError,
    RecordSkipped,
    ResourceAddress,
    aio,
    connect,
    follow,
)
from multiclouddb_api.checkpoint import CheckpointFile
from multiclouddb_api.handling import Handling
from multiclouddb_api.set_aside import BEHIND, HANDLER, SetAside, SetAsideFolder
from multiclouddb_conformance.through_asyncio import AsyncioClient
from multiclouddb_embedded import EmbeddedStore

ORDERS = ResourceAddress("main", "orders")


class Death(BaseException):
    """A SIGKILL: nothing after it runs."""


class RefusedError(Exception):
    pass


class Service:
    """A client that returns one page."""

    def __init__(self, page):
        self.page = page

    def read_changes(self, request, options=None):
        return self.page


class World:
    """A collection, and a handler that refuses some documents."""

    def __init__(self, folder):
        self.store = EmbeddedStore(folder / "shop.db", durable=False)
        self.store.create_collection("orders")
        self.url, self.aside = f"embedded://{self.store.path}", folder / "aside"
        self.checkpoint = folder / "orders.checkpoint"
        self.handled, self.bad = [], {3}

    def put(self, key, number):
        self.store.put("orders", key, {"number": number})

    def handle(self, event):
        number = event.new_item_state and event.new_item_state["number"]
        if number in self.bad:
            raise RefusedError(f"a secret {number}")
        self.handled.append((event.key["id"], number))

    def changes(self, **settings):
        settings = {"start": Beginning(), "until_idle": True, "set_aside": self.aside, **settings}
        return follow(self.url, "orders", checkpoint=self.checkpoint, **settings)

    def run(self, *errors, **settings):
        with self.changes(**settings) as changes:
            for event in changes:
                with changes.handling(event, *errors):
                    self.handle(event)

    def run_aio(self, *errors, **settings):
        async def run():
            settings_ = {"start": Beginning(), "until_idle": True, "set_aside": self.aside, **settings}
            async with aio.follow(self.url, "orders", checkpoint=self.checkpoint, **settings_) as changes:
                async for event in changes:
                    async with changes.handling(event, *errors):
                        await asyncio.sleep(0)
                        self.handle(event)

        asyncio.run(run())

    def records(self):
        return SetAsideFolder(self.aside).records(ORDERS, HANDLER)

    def retry(self):
        with connect(self.url) as client:
            return SetAsideFolder(self.aside).retry(self.handle, client)


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    for key, number in [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 5), ("a", 6), ("b", 7)]:
        world.put(key, number)
    yield world
    world.store.close()


@pytest.fixture(params=["run", "run_aio"])
def run(request, world):
    return getattr(world, request.param)


class TestASetAsideEvent:
    def test_the_position_moves_on_and_later_events_of_the_key_wait(self, world, run):
        run()
        assert world.handled == [("a", 1), ("b", 2), ("b", 4), ("b", 7)]
        first, *others = world.records()
        assert (first.key["id"], first.type) == ("a", ChangeType.UPDATE)
        assert first.position == first.order_key
        assert [each.reason for each in others] == [BEHIND, BEHIND]
        run()
        assert len(world.handled) == 4

    def test_events_that_come_in_a_later_run_wait_too(self, world, run):
        run()
        world.put("a", 8)
        world.put("b", 9)
        run()
        assert world.handled[4:] == [("b", 9)]
        assert len(world.records()) == 4

    def test_the_file_is_for_its_owner_and_has_no_document(self, world, run):
        run()
        for file in world.aside.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert b"secret" not in file.read_bytes()
            assert b"number" not in file.read_bytes()
        assert "RefusedError in handle (test_handling.py:" in world.records()[0].reason

    def test_documents_and_messages_are_kept_if_asked_for(self, world, run):
        run(set_aside_documents=True)
        assert [each.document["number"] for each in world.records()] == [3, 5, 6]
        assert world.records()[0].reason.endswith(": a secret 3")

    def test_another_exception_ends_the_loop_and_the_page_comes_again(self, world, run):
        with pytest.raises(RefusedError):
            run(ValueError)
        assert world.records() == []
        world.bad = set()
        run(ValueError)
        assert [each for each in world.handled if each[0] == "a"] == [("a", 1)] + [
            ("a", n) for n in (1, 3, 5, 6)
        ]

    def test_more_than_max_set_aside_ends_the_loop_before_the_position_moves(self, world, run):
        with pytest.raises(MulticloudDbError) as caught:
            run(max_set_aside=2)
        assert caught.value.category == ErrorCategory.PERMANENT_FAILURE
        assert "more than 2 records of main/orders" in str(caught.value)
        world.handled.clear()
        run()
        assert world.handled[-3:] == [("b", 2), ("b", 4), ("b", 7)]
        assert len(world.records()) == 3

    def test_a_folder_that_cannot_be_written_ends_the_loop(self, world, run):
        world.aside.write_text("a file")
        with pytest.raises(MulticloudDbError) as caught:
            run()
        assert caught.value.category == ErrorCategory.PERMANENT_FAILURE
        assert "set_aside: cannot write" in str(caught.value)

    def test_a_page_that_comes_again_leaves_out_what_is_set_aside(self, world, run, monkeypatch):
        save = CheckpointFile.save
        monkeypatch.setattr(CheckpointFile, "save", lambda *_: (_ for _ in ()).throw(Death()))
        with pytest.raises(Death):
            run()
        monkeypatch.setattr(CheckpointFile, "save", save)
        world.handled.clear()
        world.bad = set()
        run()
        assert world.handled == [("a", 1), ("b", 2), ("b", 4), ("b", 7)]
        assert [each.reason == BEHIND for each in world.records()] == [False, True, True]

    def test_it_is_logged_without_key_and_message(self, world, run, caplog):
        with caplog.at_level(logging.WARNING, "multiclouddb.iterator"):
            run()
        (line,) = [each.getMessage() for each in caplog.records if "set aside" in each.getMessage()]
        assert line.startswith("set aside a change of main/orders: RefusedError in handle")
        assert "secret" not in line

    @pytest.mark.parametrize("form", [None, "asyncio"])
    def test_a_record_that_cannot_be_decoded_is_set_aside_with_its_position(self, world, form):
        page = ChangeFeedPage((), "token", idle=True, notices=(RecordSkipped("p0", "17"),))
        service = Service(page)
        request = ChangeFeedRequest(ORDERS, Beginning())
        settings = {"until_idle": True, "set_aside": world.aside}
        if form == "asyncio":
            changes = AsyncioClient(lambda: service).iterate_changes(request, **settings)
        else:
            changes = ChangeFeedIterator(service, request, **settings)
        assert list(changes) == []
        (record,) = world.records()
        assert (record.key, record.position, record.partition_id) == (None, "17", "p0")
        assert world.retry().left == 1


class TestACancelledTask:
    def test_in_the_block_nothing_is_set_aside(self, world):
        async def run():
            async with aio.follow(world.url, "orders", start=Beginning(), set_aside=world.aside) as changes:
                event = await anext(changes)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01), changes.handling(event):
                        await asyncio.Event().wait()

        asyncio.run(run())
        assert world.records() == []

    def test_while_the_folder_is_looked_into_the_event_comes_to_the_next_call(self, world, monkeypatch):
        holds, began, may_end = Handling.holds, Event(), Event()

        def slow(handling, event):
            began.set()
            may_end.wait(30)
            return holds(handling, event)

        monkeypatch.setattr(Handling, "holds", slow)

        async def run():
            async with aio.follow(world.url, "orders", start=Beginning(), set_aside=world.aside) as changes:
                task = asyncio.ensure_future(anext(changes))
                await asyncio.to_thread(began.wait, 30)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                may_end.set()
                return await anext(changes)

        assert asyncio.run(run()).new_item_state == {"number": 1}


class TestRefused:
    def test_pages(self, world):
        with world.changes() as changes, pytest.raises(MulticloudDbError, match="iterate over events"):
            changes.pages()

    def test_handling_without_a_folder(self, world):
        with (
            world.changes(set_aside=None) as changes,
            pytest.raises(MulticloudDbError, match='set_aside="FOLDER"'),
        ):
            changes.handling(next(changes))

    def test_the_wrong_with(self, world):
        async def wrong():
            async with aio.follow(world.url, "orders", start=Beginning(), set_aside=world.aside) as changes:
                with changes.handling(await anext(changes)):
                    pass

        with pytest.raises(MulticloudDbError, match="write async with"):
            asyncio.run(wrong())


def test_two_threads_may_set_the_same_record_aside(world, monkeypatch):
    """A cancelled task's thread still writes while the next iterator handles the event again."""
    world.run(set_aside_documents=True)
    folder, (record, *_) = SetAsideFolder(world.aside), world.records()
    fsync, others = os.fsync, [Thread(target=folder.add, args=([record],))]

    def interrupted(handle):
        for other in [others.pop()] if others else []:
            other.start()
            other.join(30)
        fsync(handle)

    monkeypatch.setattr("os.fsync", interrupted)
    folder.add([record])
    monkeypatch.undo()
    assert not others
    assert [each.name for each in world.records()].count(record.name) == 1
    assert not list(world.aside.glob("*.draft"))


class TestRetry:
    def test_the_events_of_a_key_are_handled_in_order(self, world):
        world.run(set_aside_documents=True)
        world.bad, world.handled = set(), []
        done = world.retry()
        assert (done.handled, done.left) == (3, 0)
        assert world.handled == [("a", 3), ("a", 5), ("a", 6)]
        assert list(world.aside.iterdir()) == []
        world.put("a", 10)
        world.run()
        assert world.handled[-1] == ("a", 10)

    def test_a_key_whose_event_fails_again_waits(self, world):
        world.run(set_aside_documents=True)
        world.bad, world.handled = {5}, []
        done = world.retry()
        assert (done.handled, done.left) == (1, 2)
        assert world.handled == [("a", 3)]
        assert BEHIND in done.reasons

    def test_without_documents_they_are_read_as_they_are_now(self, world):
        world.run()
        world.store.delete("orders", "a")
        world.run()
        world.bad, world.handled = set(), []
        assert world.retry().handled == 4
        assert world.handled == [("a", None)] * 4

    def test_without_documents_and_client_it_is_refused(self, world):
        world.run()
        with pytest.raises(MulticloudDbError, match="client: is missing"):
            SetAsideFolder(world.aside).retry(world.handle)
        assert len(world.records()) == 3

    def test_a_delete_needs_no_document(self, world):
        world.bad = {None}
        world.store.delete("orders", "b")
        world.run()
        world.bad = set()
        assert SetAsideFolder(world.aside).retry(world.handle).handled == 1
        assert world.handled[-1] == ("b", None)

    def test_what_comes_meanwhile_is_handled_after_it(self, world):
        world.run(set_aside_documents=True)
        world.bad, world.handled = set(), []
        handle = world.handle

        def handle_while_the_worker_runs(event):
            handle(event)
            if event.new_item_state["number"] == 6:
                world.put("a", 11)
                world.run(set_aside_documents=True)  # its file is still there, so the worker lets 11 wait

        world.handle = handle_while_the_worker_runs
        assert world.retry().handled == 4
        assert world.handled == [("a", 3), ("a", 5), ("a", 6), ("a", 11)]

    def test_a_second_retry_at_the_same_time_is_refused(self, world):
        world.run(set_aside_documents=True)
        world.bad = set()
        refused = []

        def handle(event):
            with pytest.raises(MulticloudDbError) as caught:
                SetAsideFolder(world.aside).retry(print)
            refused.append(caught.value.category)

        SetAsideFolder(world.aside).retry(handle)
        assert set(refused) == {ErrorCategory.CONFLICT}

    def test_a_worker_that_runs_sees_that_a_key_is_free(self, world):
        with world.changes(until_idle=False, set_aside_documents=True) as changes:
            for event in changes:
                with changes.handling(event):
                    world.handle(event)
                if event.new_item_state["number"] == 7:
                    world.bad = set()
                    world.retry()
                    world.put("a", 12)
                if world.handled[-1][1] == 12:
                    break
        assert world.handled[-4:] == [("a", 3), ("a", 5), ("a", 6), ("a", 12)]


def mortal(function, death):
    """Return a function that may die before or after its work."""

    def step(*arguments, **named):
        death()
        result = function(*arguments, **named)
        death()
        return result

    return step


def test_killed_at_every_step_each_event_is_handled_or_set_aside_and_none_is_overtaken(tmp_path, monkeypatch):
    left = [0]

    def death():
        left[0] -= 1
        if left[0] == 0:
            raise Death

    for name in ("add", "_write", "remove"):
        monkeypatch.setattr(SetAsideFolder, name, mortal(getattr(SetAsideFolder, name), death))
    monkeypatch.setattr(CheckpointFile, "save", mortal(CheckpointFile.save, death))
    number = 0
    while True:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        world = World(folder)
        for key, value in [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 5)]:
            world.put(key, value)
        left[0], deaths = number, 0
        for step in (partial(world.run, set_aside_documents=True), world.retry):
            try:
                step()
            except Death:
                deaths += 1
                step()
            world.bad = set()
        for key, numbers in (("a", [1, 3, 5]), ("b", [2, 4])):
            seen = [value for name, value in world.handled if name == key]
            assert list(dict.fromkeys(seen)) == numbers, number
            assert len(seen) <= len(numbers) + deaths * 2
        assert world.records() == []
        world.store.close()
        if not deaths:
            break
    assert number > 10


def test_a_split_does_not_let_an_event_overtake(world):
    world.run()
    world.store.split("orders", "p0")
    world.put("a", 20)
    world.run()
    assert ("a", 20) not in world.handled


def test_a_record_keeps_every_field(world):
    event = ChangeEvent.of(
        {"id": 1.0, "at": b"\0"},
        {"n": 1},
        old_item_state={"n": 0},
        by_expiry=False,
        backfilled=True,
        address=ORDERS,
    )
    record = SetAside.of_event(event, ORDERS, HANDLER, "it failed", documents=True)
    read = SetAside.from_json(record.to_json(), "it")
    assert read.event(read.document) == event


class TestAnEventForATest:
    def test_an_update_and_a_delete(self):
        update, delete = ChangeEvent.of({"id": "o-1"}, {"id": "o-1"}), ChangeEvent.of({"id": "o-1"})
        assert (update.type, delete.type) == (ChangeType.UPDATE, ChangeType.DELETE)
        assert update.order_key < delete.order_key
        assert update.timestamp < delete.timestamp
        assert update.event_id != delete.event_id

    def test_each_field_may_be_given(self):
        event = ChangeEvent.of({"id": "o-1"}, None, event_id="e", type=ChangeType.CREATE, address=ORDERS)
        assert (event.event_id, event.type, event.address) == ("e", ChangeType.CREATE, ORDERS)

    def test_an_unknown_field_is_refused(self):
        with pytest.raises(MulticloudDbError, match="did you mean 'event_id'"):
            ChangeEvent.of({"id": "o-1"}, eventid="e")
