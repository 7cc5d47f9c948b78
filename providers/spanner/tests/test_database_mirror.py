"""Mirrors the tables of a database, which share one reading of it."""

import contextlib
import json
import sqlite3
from contextlib import closing, contextmanager
from datetime import timedelta
from random import Random
from threading import Event, Lock
from unittest.mock import Mock

import pytest

from multiclouddb_api import (
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    MulticloudDbError,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_api.set_aside import SetAsideFolder
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_mirror import (
    MirrorJob,
    Mirrors,
    destination_of,
    mirror,
    mirroring,
    retry_set_aside,
    sharing,
)
from multiclouddb_spanner_emulator import Write
from multiclouddb_spi.continuation.token import decode_token, to_moment
from multiclouddb_spi.token_report import lineage_of
from multiclouddb_tables.sqlite import SqliteTable
from testing.read_alone import read_alone

from .feeds import HOUR
from .test_database import ALL, OTHERS, database

NAMES = ("t0", "t1", "t2")
STEPS = ("prepare", "set_feed_mark", "store", "outdate", "bury", "merge", "claim", "store_position")
"""The methods of a table that write, each in one transaction."""


class Shop:
    """A database with tables of one form, what they contain, and the tables that follow them."""

    def __init__(self, feed, folder, names):
        self.feed, self.folder, self.names = feed, folder, list(names)
        self.model = {name: {} for name in names}

    def put(self, name, key, number):
        self.feed.write(name, (key, number))
        self.model[name][key] = number

    def delete(self, name, key):
        self.feed.server.commit(self.feed.scripted.database, Write("delete", name, (), [[key]]))
        del self.model[name][key]

    def put_everywhere(self, key, number):
        """Write a row of each table in one transaction."""
        writes = [Write("insert_or_update", name, ("id", "n"), [[key, str(number)]]) for name in self.names]
        self.feed.server.commit(self.feed.scripted.database, *writes)
        for name in self.names:
            self.model[name][key] = number

    def change(self, number):
        """Change something in each table."""
        for name in self.names:
            self.put(name, f"{name}-0", number)
            self.put(name, f"gone-{number}", number)
        self.put_everywhere(f"all-{number}", number)
        for name in self.names:
            self.delete(name, f"gone-{number}")

    def target(self, name):
        return f"sqlite:{self.folder}/{name}.db#rows"

    def job(self, name):
        return MirrorJob(ResourceAddress(self.feed.scripted.name, name), self.target(name), is_listed=True)

    def run(self, *names, on_end=None, **settings):
        ended = {}

        def told(job, outcome):
            ended[job.address.collection] = outcome
            if on_end is not None:
                on_end(job, outcome)

        Mirrors(self.feed.client, list(map(self.job, names or self.names)), told, **settings).run()
        return ended

    def position(self, name):
        return destination_of(self.target(name)).stored()

    def queries(self):
        """Return the number of queries of the stream since the last time."""
        calls, journal = 0, self.feed.server.journal
        calls = len([call for call in journal.calls if "READ_everything" in call.sql])
        journal.clear()
        return calls

    def check(self):
        assert {name: self.rows(name) for name in self.names} == self.model

    def rows(self, name):
        with closing(sqlite3.connect(self.folder / f"{name}.db")) as found:
            rows = found.execute("SELECT key, new_item_state FROM rows WHERE _deleted_at IS NULL").fetchall()
        return {json.loads(key)["id"]: json.loads(state)["n"] for key, state in rows}


def table(name):
    return OTHERS.replace("others", name)


@contextmanager
def opened(folder, names=NAMES, streams=(ALL,), **habits):
    with database(*map(table, names), *streams, **habits) as feed:
        made = Shop(feed, folder, names)
        for name in names:
            for number in range(3):
                made.put(name, f"{name}-{number}", number)
        yield made


@pytest.fixture
def shop(tmp_path):
    """A shop whose tables are filled."""
    with opened(tmp_path) as made:
        made.run()
        made.check()
        yield made


@pytest.fixture
def alone(monkeypatch):
    """Return the collections that were read alone, each as often as it was."""
    return read_alone(monkeypatch)


class TestOneReading:
    def test_the_tables_are_read_together_from_the_second_run_on(self, tmp_path, alone):
        names = [f"t{number}" for number in range(20)]
        with opened(tmp_path, names) as shop:
            shop.run()
            assert alone == dict.fromkeys(names, 1)
            for number in (100, 200):
                shop.change(number)
                shop.queries()
                reports = shop.run()
                shop.check()
                many = shop.queries()
                assert all(report.caught_up and report.began == "position" for report in reports.values())
                assert {report.events for report in reports.values()} == {4}
            assert alone == dict.fromkeys(names, 1)
            # The same changes, read once for one table; the start at a time takes one query more.
            shop.change(300)
            shop.queries()
            mirror(shop.feed.client, shop.job("t0").address, shop.target("t0"))
            assert many <= shop.queries() + 3

    def test_each_position_is_one_of_the_table_alone(self, shop, alone):
        shop.change(100)
        shop.run()
        assert not alone
        for name in shop.names:
            envelope = decode_token(shop.position(name))
            assert (envelope.scope, envelope.address.collection) == ("collection", name)
            report = shop.feed.client.inspect(shop.position(name))
            assert report.resumes
            assert report.changes_waiting is False
        shop.change(200)
        for name in shop.names:
            report = mirror(shop.feed.client, shop.job(name).address, shop.target(name))
            assert (report.began, report.events) == ("position", 4)
        shop.check()

    def test_it_goes_on_after_runs_of_one_table(self, shop, alone):
        shop.change(100)
        mirror(shop.feed.client, shop.job("t1").address, shop.target("t1"))
        shop.change(200)
        reports = shop.run()
        assert not alone
        assert {name: report.events for name, report in reports.items()} == {"t0": 8, "t1": 4, "t2": 8}
        shop.check()

    def test_every_table_is_proved(self, shop, alone):
        shop.change(100)
        reports = shop.run(prove=True)
        assert all(report.proof.equal for report in reports.values())
        assert not alone

    def test_a_table_that_is_far_behind_catches_up_alone_and_then_joins(self, shop, alone):
        shop.feed.server.advance(2 * HOUR)
        shop.change(100)
        shop.run("t0", "t1")
        assert not alone
        shop.change(200)
        reports = shop.run()
        assert alone == {"t2": 1}
        assert reports["t2"].events == 8
        shop.check()
        shop.change(300)
        shop.run()
        assert alone == {"t2": 1}
        shop.check()

    def test_without_a_stream_of_every_table_each_is_read_alone(self, tmp_path, alone):
        streams = [f"CREATE CHANGE STREAM {name}_stream FOR {name}" for name in NAMES]
        options = " OPTIONS (value_capture_type = 'NEW_ROW')"
        with opened(tmp_path, streams=[each + options for each in streams]) as shop:
            shop.run()
            shop.change(100)
            reports = shop.run()
            assert alone == dict.fromkeys(NAMES, 2)
            assert all(report.caught_up for report in reports.values())
            shop.check()


class TestOneOfThem:
    """What happens to one table does not happen to the others."""

    @pytest.fixture
    def refuses(self, monkeypatch):
        """Let the table t1 refuse the rows with a number."""
        merge, bad = SqliteTable.merge, set()

        def merging(into, rows, notes, **named):
            texts = [text for text in rows["new_item_state"].to_pylist() if text is not None]
            if "t1.db" in into.where and any(json.loads(text)["n"] in bad for text in texts):
                raise invalid_request("row", "does not fit", "change it", ErrorReason.MISFIT)
            return merge(into, rows, notes, **named)

        monkeypatch.setattr(SqliteTable, "merge", merging)
        return bad

    def test_one_that_fails_keeps_its_position_and_the_others_go_on(self, shop, refuses, alone):
        refuses.add(100)
        before = shop.position("t1")
        for number in (100, 200):
            shop.change(number)
            reports = shop.run()
            assert isinstance(reports["t1"], MulticloudDbError)
            assert shop.position("t1") == before
            assert all(reports[name].caught_up for name in ("t0", "t2"))
            for name in ("t0", "t2"):
                assert shop.rows(name) == shop.model[name]
        refuses.clear()
        shop.run()
        shop.check()
        assert not alone

    def test_what_one_refuses_is_set_aside(self, shop, refuses, tmp_path, alone):
        refuses.add(100)
        shop.change(100)
        reports = shop.run(set_aside=tmp_path / "aside")
        assert {name: report.set_aside for name, report in reports.items()} == {"t0": 0, "t1": 3, "t2": 0}
        refuses.clear()
        shop.change(200)
        shop.run(set_aside=tmp_path / "aside")
        where, folder = destination_of(shop.target("t1")), SetAsideFolder(tmp_path / "aside")
        retry_set_aside(shop.feed.client, shop.job("t1").address, where, folder)
        shop.check()
        assert not alone

    def test_a_record_that_cannot_be_decoded_is_one_of_its_table(self, shop, tmp_path, alone):
        shop.put("t0", "before", 1)
        shop.feed.server.poison(shop.feed.scripted.database, "everything", "t1", "poison")
        shop.put("t2", "after", 2)
        reports = shop.run()
        assert reports["t1"].category is ErrorCategory.PROVIDER_ERROR
        assert all(reports[name].caught_up for name in ("t0", "t2"))
        reports = shop.run(set_aside=tmp_path / "aside")
        assert reports["t1"].set_aside == 1
        shop.check()

    def test_one_that_is_made_again_with_another_key_is_refused(self, shop, alone):
        again = "CREATE TABLE t1 (id STRING(9) NOT NULL, n INT64 NOT NULL) PRIMARY KEY (n)"
        shop.feed.run("DROP TABLE t1", again)
        before = shop.rows("t1")
        for name in ("t0", "t2"):
            shop.put(name, "later", 100)
        shop.put("t1", "new", 1)
        reports = shop.run()
        assert reports["t1"].reason is ErrorReason.RECREATED
        assert alone == {"t1": 1}
        assert shop.rows("t1") == before
        for name in ("t0", "t2"):
            assert shop.rows(name) == shop.model[name]

    def test_positions_that_are_gone_are_those_of_each_table(self, shop, alone):
        shop.feed.server.advance(8 * 24 * HOUR)
        shop.change(100)
        reports = shop.run()
        assert {report.began for report in reports.values()} == {"expired"}
        shop.check()

    def test_one_that_is_slow_does_not_hold_up_the_others(self, shop, monkeypatch, alone):
        monkeypatch.setattr(sharing, "_SLOW_SECONDS", 5.0)
        monkeypatch.setattr(mirroring, "_PAGE_EVENTS", 2)
        merge, others, ended = SqliteTable.merge, Event(), []

        def merging(into, rows, notes, **named):
            if "t1.db" in into.where:
                assert others.wait(60)
            return merge(into, rows, notes, **named)

        def told(job, outcome):
            ended.append(job.address.collection)
            if len(ended) == 2:
                others.set()

        monkeypatch.setattr(SqliteTable, "merge", merging)
        shop.change(100)
        reports = shop.run(on_end=told)
        assert ended[2] == "t1"
        assert alone == {"t1": 1}
        assert reports["t1"].events >= 4
        shop.check()

    def test_a_quiet_one_moves_on(self, shop, monkeypatch, alone):
        monkeypatch.setattr(mirroring, "_PAGE_EVENTS", 1)
        before = decode_token(shop.position("t2")).watermark
        for number in range(3):
            shop.put("t0", f"new-{number}", 1)
        reports = shop.run()
        assert (reports["t2"].events, reports["t2"].caught_up) == (0, True)
        assert decode_token(shop.position("t2")).watermark > before
        states = [decode_token(shop.position(name)).state for name in NAMES]
        assert states[0] == states[1] == states[2]
        assert not alone

    def test_an_error_of_the_shared_reading_alone_stops_no_table(self, shop, monkeypatch, alone):
        """Reading all may take longer than the time limit, or be throttled, where each alone is not."""
        error = MulticloudDbError(
            "unavailable; wait", ErrorDetail(ErrorCategory.TRANSIENT_FAILURE, retryable=True)
        )
        monkeypatch.setattr(sharing, "parts_at", Mock(side_effect=error))
        shop.change(1)
        assert all(report.caught_up for report in shop.run().values())
        assert alone == dict.fromkeys(NAMES, 1)
        shop.check()


class Death(BaseException):
    """The process is killed."""


class Kills:
    """Counts the steps of all tables; from one of them on, every step is the death of its thread.

    Attributes:
        steps: The number of moments so far: one before each step and one after it.
        dies_at: The moment of the death; None to live.
    """

    def __init__(self, monkeypatch):
        self.steps, self.dies_at, self._lock = 0, None, Lock()
        for name in STEPS:
            monkeypatch.setattr(SqliteTable, name, self._mortal(getattr(SqliteTable, name)))

    def _step(self):
        with self._lock:
            self.steps += 1
            if self.dies_at is not None and self.steps > self.dies_at:
                raise Death

    def _mortal(self, action):
        def run(*arguments, **named):
            self._step()
            found = action(*arguments, **named)
            self._step()
            return found

        return run

    @contextmanager
    def at(self, moment):
        """Kill what the block runs, at a moment."""
        self.steps, self.dies_at = 0, moment
        with contextlib.suppress(Death):
            yield
        self.dies_at = None


class TestKills:
    """A run is killed at each step of the tables; the next ones have every change, and no other."""

    @pytest.mark.parametrize("is_ahead", [False, True], ids=["together", "one was ahead"])
    def test_at_every_step(self, tmp_path, monkeypatch, alone, is_ahead):
        with opened(tmp_path, ("t0", "t1")) as shop:
            shop.run()
            alone.clear()
            kills = Kills(monkeypatch)
            monkeypatch.setattr(mirroring, "_PAGE_EVENTS", 2)
            moment, number, lives = 0, 100, True
            while lives:
                shop.put_everywhere(f"all-{number}", number)
                shop.put("t1", f"gone-{number}", number)
                if is_ahead:
                    shop.delete("t1", f"gone-{number}")
                    mirror(
                        shop.feed.client, shop.job("t1").address, shop.target("t1"), tombstones=timedelta(0)
                    )
                shop.delete("t1", f"all-{number}")
                with kills.at(moment):
                    shop.run(tombstones=timedelta(0))
                lives = kills.steps > moment
                shop.put("t0", "t0-0", number)
                shop.run(tombstones=timedelta(0))
                shop.check()
                moment, number = moment + 1, number + 10
            assert moment > 10
            assert not alone

    def test_no_position_goes_back(self, shop, monkeypatch):
        """What is before a position may be a change of an earlier table, or of a row without tombstone."""
        monkeypatch.setattr(mirroring, "_PAGE_EVENTS", 1)
        store, stored = SqliteTable.store_position, {name: [shop.position(name)] for name in NAMES}

        def storing(into, token, before):
            stored[decode_token(token).address.collection].append(token)
            return store(into, token, before)

        monkeypatch.setattr(SqliteTable, "store_position", storing)
        for number in (100, 200):
            shop.change(number)
            mirror(shop.feed.client, shop.job("t1").address, shop.target("t1"))
            shop.change(number + 1)
            shop.run()
        shop.check()
        for tokens in stored.values():
            moments = [min(each.said[0][0] for each in lineage_of(decode_token(token))) for token in tokens]
            assert moments == sorted(moments)
            assert len(moments) > 4


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 4))])
def test_lives(tmp_path, monkeypatch, seed):
    """Runs of all tables and of one, kills and copies, while partitions are split and merged.

    Every small history of a service without splits is followed in `tables/mirror/tests`.
    """
    chance, kills = Random(seed), Kills(monkeypatch)
    monkeypatch.setattr(mirroring, "_PAGE_EVENTS", chance.choice([1, 3, 50]))
    with opened(tmp_path, initial_partitions=2) as shop:
        server, stream = shop.feed.server, (shop.feed.scripted.database, "everything")
        for _ in range(10):
            for _ in range(chance.randrange(8)):
                name, key = chance.choice(NAMES), f"k{chance.randrange(6)}"
                match chance.choice(["put", "put", "delete", "everywhere", "split", "merge", "advance"]):
                    case "put":
                        shop.put(name, key, chance.randrange(1000))
                    case "delete" if key in shop.model[name]:
                        shop.delete(name, key)
                    case "everywhere":
                        shop.put_everywhere(key, chance.randrange(1000))
                    case "split":
                        server.split(chance.choice(server.open_partitions(*stream)))
                    case "merge" if len(found := server.open_partitions(*stream)) > 1:
                        server.merge(*found[:2])
                    case "advance":
                        server.advance(chance.choice([1, 600]))
            settings = {"tombstones": timedelta(0)} if chance.random() < 0.5 else {}
            one = chance.choice(NAMES)
            match chance.choice(["one", "copy", "kill", "kill", "all", "all"]):
                case "one":
                    mirror(shop.feed.client, shop.job(one).address, shop.target(one), **settings)
                case "copy":
                    mirror(shop.feed.client, shop.job(one).address, shop.target(one), resync=True)
                case "kill":
                    with kills.at(chance.randrange(25)):
                        shop.run(**settings)
                case "all":
                    assert all(report.caught_up for report in shop.run(**settings).values())
                    shop.check()
        shop.run()
        shop.check()


@pytest.mark.parametrize(
    ("other", "values"),
    [
        ("(id STRING(9) NOT NULL, n INT64 NOT NULL) PRIMARY KEY (n)", ("new", "7")),
        ("(id INT64 NOT NULL, n INT64) PRIMARY KEY (id)", ("5", "7")),
    ],
)
def test_changes_of_a_table_with_another_key_that_had_the_name_are_refused_as_alone(shop, other, values):
    """The table of before is there again, so its incarnation is that of the position."""
    write = Write("insert_or_update", "t1", ("id", "n"), [list(values)])
    shop.feed.run("DROP TABLE t1", f"CREATE TABLE t1 {other}")
    shop.feed.server.commit(shop.feed.scripted.database, write)
    shop.feed.run("DROP TABLE t1", table("t1"))
    shop.put("t0", "later", 1)
    ended, before = shop.run(), shop.position("t1")
    assert "earlier table 't1', which had another primary key" in ended["t1"].message
    with pytest.raises(MulticloudDbError, match="earlier table 't1', which had another primary key"):
        mirror(shop.feed.client, shop.job("t1").address, shop.target("t1"))
    assert shop.position("t1") == before
    shop.check()


def test_a_tombstone_that_a_shared_reading_may_need_stays(shop, monkeypatch):
    """The reading begins before the position of every partition, and repeats what some have had since."""
    limits, drop = [], SqliteTable.drop_tombstones

    def dropped(into, before):
        limits.append(before)
        return drop(into, before)

    monkeypatch.setattr(SqliteTable, "drop_tombstones", dropped)
    shop.change(1)
    shop.run(tombstones=timedelta(0))
    marks = [to_moment(decode_token(shop.position(name)).watermark) for name in shop.names]
    assert len(limits) == len(shop.names)
    assert max(limits) <= max(marks)
    shop.check()


def test_a_run_ends_although_another_table_is_written_all_the_time(tmp_path, monkeypatch):
    """No page is idle then, but everything that was there when the run began is read."""
    writes, give = [], sharing.SharedReading._give
    with opened(tmp_path) as shop:
        shop.run()

        def given(reading, divided, page):
            give(reading, divided, page)
            if len(writes) < 30:
                shop.feed.server.advance(2)
                shop.put("t2", f"busy-{len(writes)}", 1)
                writes.append(page.idle)

        monkeypatch.setattr(sharing.SharedReading, "_give", given)
        shop.change(1)
        ended = shop.run("t0", "t1")
        assert all(report.caught_up for report in ended.values())
        assert len(writes) < 30
        monkeypatch.undo()
        shop.run()
        shop.check()


class Turn:
    """Lets one work at a time, and tells how many have asked for it."""

    def __init__(self):
        self.asked, self._lock = 0, Lock()

    def __enter__(self):
        self.asked += 1
        self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()


def test_tables_that_wait_for_their_turn_when_all_are_stopped_are_not_tidied(shop, monkeypatch):
    drop, tidied, turn = SqliteTable.drop_tombstones, [], Turn()

    def dropped(into, before):
        tidied.append(into)
        wait_until(lambda: turn.asked == len(shop.names))
        mirrors.stop()
        return drop(into, before)

    monkeypatch.setattr(SqliteTable, "drop_tombstones", dropped)
    shop.change(1)
    jobs = list(map(shop.job, shop.names))
    mirrors = Mirrors(shop.feed.client, jobs, lambda *_: None, tombstones=timedelta(0))
    mirrors._turn = turn
    mirrors.run()
    assert len(tidied) == 1
