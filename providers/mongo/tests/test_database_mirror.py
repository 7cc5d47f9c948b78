"""Mirrors the collections of a database, which share one reading of it."""

import json
import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import pytest

from multiclouddb_api import ErrorReason, MulticloudDbError, ResourceAddress, connect
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_mirror import (
    MirrorJob,
    Mirrors,
    destination_of,
    mirror,
    mirroring,
    several,
    sharing,
)
from multiclouddb_spi.continuation.token import decode_token
from multiclouddb_tables.sqlite import SqliteTable
from testing.read_alone import read_alone

from .monitor import ids, walk

NAMES = ("a", "b", "c")


class Shop:
    """A database with three collections, and the tables that follow them."""

    def __init__(self, native, url, folder):
        self.native, self.url, self.folder = native, url, folder
        for name in NAMES:
            native[name].insert_many({"_id": number, "n": number} for number in range(3))

    def change(self, number):
        for name in NAMES:
            self.native[name].insert_many([{"_id": f"{number}-{each}", "n": each} for each in range(3)])
            self.native[name].update_one({"_id": 1}, {"$set": {"n": number}})
            self.native[name].delete_one({"_id": f"{number}-1"})

    def target(self, name):
        return f"sqlite:{self.folder}/{name}.db#rows"

    def address(self, name):
        return ResourceAddress(self.native.name, name)

    def job(self, name):
        return MirrorJob(self.address(name), self.target(name), is_listed=True)

    def run(self, *names, **settings):
        ended = {}
        with connect(self.url) as client:
            Mirrors(
                client,
                list(map(self.job, names or NAMES)),
                lambda job, outcome: ended.update({job.address.collection: outcome}),
                **settings,
            ).run()
        return ended

    def run_one(self, name, **settings):
        with connect(self.url) as client:
            return mirror(client, self.address(name), self.target(name), **settings)

    def rows(self, name):
        if not (self.folder / f"{name}.db").exists():
            return None
        with closing(sqlite3.connect(self.folder / f"{name}.db")) as found:
            rows = found.execute("SELECT key, new_item_state FROM rows WHERE _deleted_at IS NULL").fetchall()
        return {json.loads(key)["_id"]: json.loads(state)["n"] for key, state in rows}

    def documents(self, name):
        return {each["_id"]: each["n"] for each in self.native[name].find()}

    def is_equal(self, *names):
        return all(self.rows(name) == self.documents(name) for name in names or NAMES)

    def check(self, *names):
        for name in names or NAMES:
            assert self.rows(name) == self.documents(name)


@pytest.fixture
def shop(one, database, tmp_path):
    made = Shop(one.client()[database], one.uri(), tmp_path)
    made.run()
    made.check()
    return made


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Return the collections that were read alone by one of several tables, each as often as it was."""
    return read_alone(monkeypatch)


@pytest.mark.parametrize("size", [1, 50_000])
def test_they_are_read_together_and_each_can_go_on_alone(shop, alone, monkeypatch, size):
    monkeypatch.setattr(mirroring, "_PAGE_EVENTS", size)
    assert alone == dict.fromkeys(NAMES, 1)
    for number in (100, 200):
        shop.change(number)
        reports = shop.run()
        shop.check()
        assert all(report.caught_up and report.began == "position" for report in reports.values())
    assert alone == dict.fromkeys(NAMES, 1)
    shop.change(300)
    for name in NAMES:
        position = decode_token(destination_of(shop.target(name)).stored())
        assert (position.scope, position.address) == ("collection", shop.address(name))
        assert shop.run_one(name).began == "position"
    shop.check()


@pytest.mark.parametrize("size", [1, 50_000])
def test_after_a_run_no_change_waits_and_none_is_merged_again(shop, monkeypatch, size):
    monkeypatch.setattr(mirroring, "_PAGE_EVENTS", size)
    for last in NAMES:
        shop.change(100)
        shop.native[last].update_one({"_id": 2}, {"$inc": {"n": 1}})
        shop.run()
        with connect(shop.url) as client:
            for name in NAMES:
                token = destination_of(shop.target(name)).stored()
                *_, page = pages = list(walk(client, shop.address(name), token))
                assert (ids(*pages), page.idle) == ([], True)
        for name in NAMES:
            shop.native[name].delete_many({"_id": {"$nin": [0, 1, 2]}})
        shop.run_one(last)
        shop.check(last)


def test_a_transaction_of_several_collections_may_be_cut_anywhere(shop, one, alone, monkeypatch):
    monkeypatch.setattr(mirroring, "_PAGE_EVENTS", 1)
    with shop.native.client.start_session() as session, session.start_transaction():
        for name in NAMES:
            shop.native[name].insert_one({"_id": "together", "n": 1}, session=session)
            shop.native[name].delete_one({"_id": 0}, session=session)
    shop.run()
    shop.check()
    for name in NAMES:
        shop.native[name].insert_one({"_id": "later", "n": 1})
        shop.run_one(name)
    shop.check()
    assert alone == dict.fromkeys(NAMES, 1)


class Death(BaseException):
    """The process is killed."""


@pytest.mark.parametrize("merges", [0, 1, 4, 6])
def test_after_a_kill_each_goes_on_alone(shop, monkeypatch, merges):
    """In the middle of a transaction too: the position of a collection is at its beginning then."""
    monkeypatch.setattr(mirroring, "_PAGE_EVENTS", 1)
    merge, left = SqliteTable.merge, iter(range(merges))

    def merging(into, rows, notes, **named):
        if next(left, None) is None:
            raise Death
        return merge(into, rows, notes, **named)

    with shop.native.client.start_session() as session, session.start_transaction():
        for name in NAMES:
            shop.native[name].insert_one({"_id": "together", "n": 1}, session=session)
            shop.native[name].delete_one({"_id": 0}, session=session)
        shop.native["a"].update_one({"_id": "together"}, {"$set": {"n": 2}}, session=session)
    monkeypatch.setattr(SqliteTable, "merge", merging)
    with pytest.raises(Death):
        shop.run()
    monkeypatch.setattr(SqliteTable, "merge", merge)
    for name in NAMES:
        assert shop.run_one(name).began == "position"
    shop.check()


class TestAnotherCollection:
    """A collection is dropped, made again or renamed; the others go on."""

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch):
        monkeypatch.setattr(mirroring, "_PAGE_EVENTS", 1)

    def by_drop(self, shop):
        shop.native["b"].drop()

    def by_drop_and_creation(self, shop):
        shop.native["b"].drop()
        shop.native["b"].insert_one({"_id": "other", "n": 1})

    def by_out(self, shop):
        shop.native["other"].insert_one({"_id": "other", "n": 1})
        shop.native["other"].aggregate([{"$out": "b"}])

    def by_rename(self, shop):
        shop.native["b"].rename("away")

    def by_rename_and_back(self, shop):
        shop.native["b"].rename("away")
        shop.native["away"].insert_one({"_id": "away", "n": 1})
        shop.native["away"].rename("b")

    @pytest.mark.parametrize("how", [by_drop, by_drop_and_creation, by_out, by_rename, by_rename_and_back])
    @pytest.mark.parametrize("is_during", [False, True], ids=["between two runs", "during a run"])
    def test_it_is_refused_as_if_it_were_read_alone(self, shop, how, is_during, monkeypatch):
        shop.change(100)
        if is_during:
            given, done = sharing.SharedReading._begun, []

            def begun(reading):
                found = given(reading)
                if not done:
                    done.append(how(self, shop))
                return found

            monkeypatch.setattr(sharing.SharedReading, "_begun", begun)
        else:
            how(self, shop)
        reports = shop.run()
        assert isinstance(reports["b"], MulticloudDbError)
        assert "resync=True" in reports["b"].message
        kept = shop.rows("b")
        assert "other" not in kept
        assert "away" not in kept
        shop.check("a", "c")
        shop.change(200)
        shop.native["b"].insert_one({"_id": "last", "n": 1})
        assert isinstance(shop.run()["b"], MulticloudDbError)
        shop.check("a", "c")
        shop.run_one("b", resync=True)
        shop.change(300)
        shop.run()
        shop.check()

    def test_changes_of_an_earlier_one_do_not_come_back(self, shop, alone):
        """The reading begins before the position of each table, so also before the copy of this one."""
        shop.native["b"].insert_many([{"_id": f"old-{number}", "n": 1} for number in range(5)])
        shop.native["b"].drop()
        shop.native["b"].insert_one({"_id": "new", "n": 1})
        shop.run_one("b", resync=True)
        assert shop.rows("b") == {"new": 1}
        shop.change(100)
        shop.run()
        shop.check()

    def test_those_that_no_table_follows_disturb_nobody(self, shop, alone):
        shop.change(100)
        shop.native["other"].insert_one({"_id": "other", "n": 1})
        shop.native["other"].rename("another")
        shop.native["another"].drop()
        shop.change(200)
        shop.run()
        shop.check()
        assert alone == dict.fromkeys(NAMES, 1)


def test_one_with_images_is_read_alone(shop, alone):
    shop.native.command({"collMod": "b", "changeStreamPreAndPostImages": {"enabled": True}})
    shop.change(100)
    shop.run()
    shop.check()
    assert alone == {"a": 1, "b": 2, "c": 1}


def test_tombstones_that_are_gone_bring_nothing_back(shop, alone):
    for number in (100, 200):
        shop.change(number)
        shop.run_one("b", tombstones=timedelta(0))
        for name in NAMES:
            shop.native[name].delete_many({"n": 2})
        shop.run(tombstones=timedelta(0))
        shop.check()


class TestFollow:
    """Tables that follow join one reading as soon as they have caught up."""

    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch):
        for name, seconds in (("_GATHER", 0.5), ("_JOIN", 0.5), ("_TOLD", 0.2)):
            monkeypatch.setattr(sharing, f"{name}_SECONDS", seconds)
        monkeypatch.setattr(mirroring, "_WAIT_SECONDS", 0.2)
        monkeypatch.setattr(several, "_AGAIN_SECONDS", 0.2)

    def test_also_after_the_copy_and_new_ones(self, one, database, tmp_path, monkeypatch):
        shop = Shop(one.client()[database], one.uri(), tmp_path)
        shop.native.create_collection("images", changeStreamPreAndPostImages={"enabled": True})
        shop.native["images"].insert_one({"_id": 1, "n": 1})
        readings, came, refused = [], Counter(), {}
        made, come, part = several.SharedReading, sharing.SharedReading.come, sharing.Parts.part

        def parted(parts, token):
            name, found = decode_token(token).address.collection, part(parts, token)
            if found is None:
                refused[name] = came[name]
            return found

        monkeypatch.setattr(sharing.Parts, "part", parted)

        def coming(reading, token, **named):
            came[decode_token(token).address.collection] += 1
            return come(reading, token, **named)

        monkeypatch.setattr(sharing.SharedReading, "come", coming)

        def noted(*arguments, **named):
            readings.append(made(*arguments, **named))
            return readings[-1]

        monkeypatch.setattr(several, "SharedReading", noted)

        def together():
            return {seat.part.address.collection for seat in readings[0]._seats if seat.part is not None}

        ended = []
        with connect(shop.url) as client, ThreadPoolExecutor(1) as aside:

            def listed():
                return [shop.job(each.collection) for each in client.collections(database)]

            mirrors = Mirrors(
                client, listed(), lambda job, outcome: ended.append(outcome), find=listed, follow=True
            )
            running = aside.submit(mirrors.run)
            try:
                wait_until(lambda: together() == set(NAMES))
                shop.change(100)
                wait_until(shop.is_equal)
                shop.native["d"].insert_one({"_id": 1, "n": 1})
                wait_until(lambda: together() == {*NAMES, "d"})
                shop.change(200)
                shop.native["d"].insert_one({"_id": 2, "n": 1})
                wait_until(lambda: shop.is_equal(*NAMES, "d"))
                shop.native["b"].drop()
                wait_until(lambda: len(ended) == 1)
                assert ended[0].reason is ErrorReason.REPLACED
                shop.native["a"].insert_one({"_id": "last", "n": 1})
                wait_until(lambda: shop.is_equal("a", "c", "d"))
                assert together() == {"a", "c", "d"}
                wait_until(lambda: "images" in refused)
                shop.native.drop_collection("images")
                wait_until(lambda: len(ended) == 2)
                assert came["images"] == refused["images"]  # it has not tried again
            finally:
                mirrors.stop()
                running.result()
        shop.native["c"].insert_one({"_id": "last", "n": 1})
        for name in ("a", "c", "d"):
            assert shop.run_one(name).began == "position"
        shop.check("a", "c", "d")
