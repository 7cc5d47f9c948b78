"""Tests the mirrors of one file."""

import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import attrs
import psycopg
import pytest
from psycopg import sql

from multiclouddb_api import (
    ErrorCategory,
    ErrorDetail,
    FeedEnded,
    MulticloudDbError,
    Observer,
    ResourceAddress,
    connect,
    pacing,
)
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_mirror import Mirror, MirrorFile, MirrorJob, MirrorReport, Mirrors, mirroring, several
from testing.postgres_server import PostgresServer


@pytest.fixture
def store(tmp_path):
    with EmbeddedStore(tmp_path / "shop.db") as made:
        for name in ("orders", "customers", "bills"):
            made.create_collection(name)
            for number in range(3):
                made.put(name, f"{name}-{number}", {"total": number})
        yield made


@pytest.fixture
def written(tmp_path, store, monkeypatch):
    """Return a function that writes a file with some entries, and reads it."""
    monkeypatch.setenv("SHOP", str(tmp_path / "shop.db"))

    def write(*entries):
        head = 'provider = "embedded"\n[connection]\npath = { env = "SHOP" }\n'
        (tmp_path / "mirror.toml").write_text(head + "".join(f"[[table]]\n{each}\n" for each in entries))
        return MirrorFile.read(tmp_path / "mirror.toml")

    return write


def run(file, **settings):
    """Run the mirrors of a file; return the addresses and outcomes in the order in which they ended."""
    ended = []
    with connect(file.config) as client:
        Mirrors(
            client,
            file.jobs(client),
            lambda job, outcome: ended.append((str(job.address), outcome)),
            **settings,
        ).run()
    return ended


def tables(path):
    with closing(sqlite3.connect(path)) as database:
        names = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        return {
            name: database.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for (name,) in names
            if not name.startswith("multiclouddb")
        }


def test_every_collection_has_its_table(tmp_path, store, written):
    file = written(f'collection = "main/*"\ntarget = "sqlite:{tmp_path}/copy.db#{{collection}}"')
    assert [address for address, _ in run(file)] == ["main/bills", "main/customers", "main/orders"]
    assert tables(tmp_path / "copy.db") == {"bills": 3, "customers": 3, "orders": 3}
    store.create_collection("later")
    store.put("later", "l-1", {})
    assert all(outcome.caught_up for _, outcome in run(file, prove=True))
    assert tables(tmp_path / "copy.db")["later"] == 1


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (
            'collection = "main/*"\ntarget = "delta:lake/{collectio}"',
            "has a target with {collectio}, which is not known; known are {database} and {collection}",
        ),
        (
            'collection = "*"\ntarget = "delta:lake/{collection}"\nposition = "file:///p/{Collection}"',
            "has a position with {Collection}, which is not known",
        ),
        (
            'collection = "main/orders"\ntarget = "delta:lake/{collection}"',
            "has a target with {collection}, but the entry names one collection; write the name itself",
        ),
        (
            'collection = "*"\ntarget = "postgres:postgresql://u:a#{b}/@host/d#{collectio}"',
            "has a target with {collectio}, which",
        ),
    ],
)
def test_a_name_in_braces_that_stands_for_nothing_is_refused(written, entry, told):
    with pytest.raises(MulticloudDbError) as caught:
        written(entry)
    assert told in caught.value.message
    assert caught.value.category is ErrorCategory.INVALID_REQUEST


@pytest.mark.parametrize(
    "target",
    [
        "postgres:postgresql://u:a{b}@host/shop#{collection}",
        "postgres:host=h password='a {b}' dbname=d#{collection}",
        "delta:lake/{3f25}/{collection}",
    ],
)
def test_braces_in_a_password_or_around_no_name_stay(written, target):
    assert written(f'collection = "*"\ntarget = "{target}"').entries[0]["target"] == target


def test_only_collections_that_are_listed_may_share_a_reading(tmp_path, written):
    file = written(
        f'collection = "main/*"\ntarget = "sqlite:{tmp_path}/copy.db#{{collection}}"',
        f'collection = "main/orders"\ntarget = "sqlite:{tmp_path}/other.db#orders"',
    )
    with connect(file.config) as client:
        assert [job.is_listed for job in file.jobs(client)] == [True, True, True, False]


def test_one_that_fails_stops_no_other_and_is_told(tmp_path, written):
    file = written(
        f'collection = "main/orders"\ntarget = "sqlite:{tmp_path}/copy.db#orders"',
        f'collection = "main/gone"\ntarget = "sqlite:{tmp_path}/copy.db#gone"',
        f'collection = "main/bills"\ntarget = "sqlite:{tmp_path}/copy.db#bills"\n'
        f'position = "file://{tmp_path}/positions/bills"',
    )
    ended = dict(run(file))
    assert isinstance(ended["main/orders"], MirrorReport)
    assert isinstance(ended["main/bills"], MirrorReport)
    assert ended["main/gone"].category is ErrorCategory.NOT_FOUND
    assert tables(tmp_path / "copy.db") == {"orders": 3, "bills": 3}
    assert (tmp_path / "positions").is_dir()


def test_following_they_run_at_the_same_time_until_they_are_stopped(tmp_path, store, written):
    file = written(f'collection = "*"\ntarget = "sqlite:{tmp_path}/{{collection}}.db#rows"')
    ended, late = [], set()

    with connect(file.config) as client:
        jobs = file.jobs(client)

        def progress(told):
            if told.events == 3:
                late.add(len(late))
                if len(late) == len(jobs):
                    for each in jobs:
                        store.put(each.address.collection, "late", {})
            if told.events == 4:
                late.add(-len(late))
                if sum(number < 0 for number in late) >= 1 and len(late) >= 2 * len(jobs) - 1:
                    mirrors.stop()

        mirrors = Mirrors(
            client, jobs, lambda job, outcome: ended.append(outcome), follow=True, on_progress=progress
        )
        mirrors.run()
    assert len(ended) == 3
    assert not any(outcome.caught_up for outcome in ended)


def test_more_tables_than_the_server_has_connections(tmp_path, store, written):
    """Thirty tables of PostgreSQL follow at the same time, and the server has twenty connections."""
    for number in range(27):
        store.create_collection(f"more{number}", 1)
        for row in range(3):
            store.put(f"more{number}", str(row), {})
    with PostgresServer("max_connections=20") as server:
        file = written(f'collection = "main/*"\ntarget = "postgres:{server.dsn}#{{collection}}"')
        with connect(file.config) as client:
            jobs = file.jobs(client)
            ended = []
            mirrors = Mirrors(client, jobs, lambda job, outcome: ended.append(outcome), follow=True)
            with ThreadPoolExecutor(1) as aside:
                running = aside.submit(mirrors.run)
                with closing(psycopg.connect(server.dsn, autocommit=True)) as connection:
                    wait_until(lambda: _are_filled(connection, jobs), seconds=120)
                mirrors.stop()
                running.result()
    assert [type(each) for each in ended] == [MirrorReport] * 30


def _are_filled(connection, jobs):
    names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    tables = {name for (name,) in names if not name.startswith("multiclouddb")}
    return len(tables) == len(jobs) and all(
        connection.execute(sql.SQL("SELECT count(*) = 3 FROM {}").format(sql.Identifier(name))).fetchone()[0]
        for name in tables
    )


def broken(monkeypatch, error, times):
    """Let the first merges into the table of orders fail."""
    merge, left = Mirror._merge, [error] * times

    def merging(self, page, how):
        if self._address.collection == "orders" and left:
            raise left.pop()
        return merge(self, page, how)

    monkeypatch.setattr(Mirror, "_merge", merging)


def test_a_table_that_is_away_for_long_is_followed_again_when_it_is_back(tmp_path, written, monkeypatch):
    monkeypatch.setattr("multiclouddb_mirror.mirroring._OUTAGE_SECONDS", 0.0)
    monkeypatch.setattr("multiclouddb_mirror.several._AGAIN_SECONDS", 0.01)
    away = MulticloudDbError("table: is away", ErrorDetail(ErrorCategory.TRANSIENT_FAILURE, retryable=True))
    broken(monkeypatch, away, 3)
    file = written(f'collection = "main/orders"\ntarget = "sqlite:{tmp_path}/copy.db#orders"')
    ended, paused = [], []
    with connect(file.config) as client:
        mirrors = Mirrors(
            client,
            file.jobs(client),
            lambda job, outcome: ended.append(outcome),
            on_page=lambda job, progress: progress.events == 3 and mirrors.stop(),
            on_pause=lambda job, error: paused.append((str(job.address), error.message)),
            follow=True,
        )
        mirrors.run()
    assert paused == [("main/orders", "table: is away")] * 3
    assert [each.events for each in ended] == [3]
    # Without `follow` it ends, and whoever has started it starts it again.
    broken(monkeypatch, away, 1)
    [(_, outcome)] = run(file, resync=True)
    assert outcome.category is ErrorCategory.TRANSIENT_FAILURE


def test_a_table_that_is_still_away_at_the_end_is_told(tmp_path, written, monkeypatch):
    monkeypatch.setattr("multiclouddb_mirror.mirroring._OUTAGE_SECONDS", 0.0)
    away = MulticloudDbError("table: is away", ErrorDetail(ErrorCategory.TRANSIENT_FAILURE, retryable=True))
    broken(monkeypatch, away, 100)
    file = written(f'collection = "main/orders"\ntarget = "sqlite:{tmp_path}/copy.db#orders"')
    ended = []
    with connect(file.config) as client:
        mirrors = Mirrors(
            client,
            file.jobs(client),
            lambda job, outcome: ended.append(outcome),
            on_pause=lambda job, error: mirrors.stop(),
            follow=True,
        )
        mirrors.run()
    assert [each.message for each in ended] == ["table: is away"]


class Told(Observer):
    """Keeps how long each outage had lasted when it was told."""

    def __init__(self):
        self.seconds = []

    def outage(self, address, seconds, reason):
        self.seconds.append(seconds)


def test_an_outage_of_a_table_begins_with_it_and_not_with_the_mirror(tmp_path, written, monkeypatch):
    later = [0.0]

    class Shifted(pacing.Timer):
        def now(self):
            return super().now() + later[0]

    monkeypatch.setattr(mirroring, "Timer", Shifted)
    monkeypatch.setattr(pacing, "_RETRY_SECONDS", 0.01)
    away = MulticloudDbError("table: is away", ErrorDetail(ErrorCategory.TRANSIENT_FAILURE, retryable=True))
    broken(monkeypatch, away, 1)
    file = written(f'collection = "main/orders"\ntarget = "sqlite:{tmp_path}/copy.db#orders"')
    told = Told()
    with connect(file.config, observer=told) as client:
        one = Mirror(client, "main/orders", f"sqlite:{tmp_path}/copy.db#orders")
        later[0] = 3600.0
        assert one.run().caught_up
    assert [each < 60 for each in told.seconds] == [True]


def test_a_feed_that_has_ended_is_no_table_that_is_caught_up(tmp_path, written, monkeypatch):
    file = written(f'collection = "main/orders"\ntarget = "sqlite:{tmp_path}/copy.db#orders"')
    assert run(file)[0][1].caught_up
    pages = Mirror._pages

    def ending(self, changes, begins):
        for page in pages(self, changes, begins):
            yield attrs.evolve(page, notices=(*page.notices, FeedEnded("its table was deleted")))

    monkeypatch.setattr(Mirror, "_pages", ending)
    for _ in range(2):
        [(_, outcome)] = run(file)
        assert outcome.category is ErrorCategory.INVALID_REQUEST
        assert "its table was deleted" in outcome.message
        assert "--resync" in outcome.message


def test_an_unexpected_error_is_told_when_it_happens(tmp_path, written, monkeypatch):
    broken(monkeypatch, KeyError("x"), 1)
    file = written(
        f'collection = "main/orders"\ntarget = "sqlite:{tmp_path}/copy.db#orders"',
        f'collection = "main/bills"\ntarget = "sqlite:{tmp_path}/copy.db#bills"',
    )
    ended = dict(run(file))
    assert ended["main/bills"].caught_up
    assert ended["main/orders"].category is ErrorCategory.PERMANENT_FAILURE
    assert "KeyError" in str(ended["main/orders"])


def test_a_star_that_names_nothing_is_no_green_night(tmp_path, written):
    file = written(f'collection = "shopp/*"\ntarget = "sqlite:{tmp_path}/copy.db#{{collection}}"')
    with (
        connect(file.config) as client,
        pytest.raises(MulticloudDbError, match=r"shopp/\* names no collection") as caught,
    ):
        file.jobs(client)
    assert caught.value.category is ErrorCategory.NOT_FOUND


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([], "has no table to mirror"),
        (['collection = "orders"'], "has no target"),
        (['target = "delta:x"'], "has no collection"),
        (['collection = "orders"\ntarget = "delta:x"\ncolumn = 1'], "column"),
        (['collection = "orders"\ntarget = 1'], "target that is no text"),
        (['collection = "orders"\ntarget = { env = "NOT_SET" }'], "NOT_SET"),
    ],
)
def test_a_wrong_file_is_told_with_its_entry(written, entries, told):
    with pytest.raises(MulticloudDbError, match=told) as caught:
        written(*entries)
    assert caught.value.category is ErrorCategory.INVALID_REQUEST
    assert "mirror.toml" in str(caught.value)


def test_two_collections_never_share_a_table(tmp_path, written):
    file = written(f'collection = "*"\ntarget = "sqlite:{tmp_path}/copy.db#rows"')
    with connect(file.config) as client, pytest.raises(MulticloudDbError, match=r"\{collection\}"):
        file.jobs(client)


def test_tables_that_fail_at_the_start_have_labels_of_their_own_without_secrets(monkeypatch):
    """Two samples with the same labels would make Prometheus refuse all of them."""

    def refuse(text):
        raise MulticloudDbError("psycopg is missing", ErrorDetail(ErrorCategory.INVALID_REQUEST))

    monkeypatch.setattr(several, "destination_of", refuse)

    def label(target):
        return MirrorJob(ResourceAddress("shop", "orders"), target).table

    server = "postgresql://user:secret@host/shop"
    assert label(f"postgres:{server}#orders") == "postgres:…#orders"
    assert label(f"postgres:{server}#other.orders") == "postgres:…#other.orders"
    assert label("postgres:postgresql://user:sec#ret@host/shop") == "postgres:…"
    assert label(f"mysql:{server}#orders") == "mysql:…"
    assert label("sqlite:table.db#orders") == "sqlite:table.db#orders"


def delta(tmp_path, **folders):
    return [
        f'collection = "main/{name}"\ntarget = "delta:{tmp_path}/{folder}"'
        for name, folder in folders.items()
    ]


def refused(file):
    """Return the collections whose tables are refused, each with the one whose folder is the outer one."""
    with connect(file.config) as client:
        found = {job.address.collection: job.refusal for job in file.jobs(client)}
    for error in filter(None, found.values()):
        assert error.category is ErrorCategory.INVALID_REQUEST
        assert "VACUUM" in error.message
    return {
        name: re.search(r"folder of the table of main/(\S+),", error.message)[1]
        for name, error in found.items()
        if error is not None
    }


@pytest.mark.parametrize(
    ("folders", "outer"),
    [
        ({"orders": "lake/orders/", "bills": "lake"}, {"orders": "bills", "bills": "bills"}),
        (
            {"customers": "lake/a/b", "orders": "lake", "bills": "lake/c"},
            {"customers": "orders", "orders": "orders", "bills": "orders"},
        ),
        ({"orders": "a", "bills": "a-b", "customers": "a/b"}, {"orders": "orders", "customers": "orders"}),
        ({"orders": "a", "bills": "a-b", "customers": "b"}, {}),
        ({"orders": "a", "bills": "a/"}, {"orders": "orders", "bills": "orders"}),
    ],
)
def test_a_delta_table_in_the_folder_of_another_one_is_refused_with_that_one(
    tmp_path, written, folders, outer
):
    """VACUUM removes all files in the folder of a table that are not its own, as Spark runs it."""
    assert refused(written(*delta(tmp_path, **folders))) == outer


@pytest.mark.parametrize("follow", [False, True])
def test_the_others_run_beside_two_tables_of_which_one_is_in_the_folder_of_the_other(
    tmp_path, store, written, follow
):
    store.create_collection("bills/old")
    file = written(f'collection = "*"\ntarget = "delta:{tmp_path}/lake/{{collection}}"')
    ended, merged = {}, set()
    with connect(file.config) as client:

        def page(job, progress):
            if progress.events == 3:
                merged.add(job.address.collection)
            if follow and merged == {"orders", "customers"}:
                mirrors.stop()

        def told(job, outcome):
            ended[job.address.collection] = outcome

        mirrors = Mirrors(client, file.jobs(client), told, on_page=page, follow=follow)
        mirrors.run()
    for name in ("bills", "bills/old"):
        assert (
            "the table of main/bills/old into the folder of the table of main/bills," in ended[name].message
        )
    assert not (tmp_path / "lake" / "bills").exists()
    assert {name for name, each in ended.items() if isinstance(each, MirrorReport)} == {"orders", "customers"}
    assert merged == {"orders", "customers"}


def test_a_new_collection_in_the_folder_of_another_one_is_refused_alone(
    tmp_path, store, written, monkeypatch
):
    """The table that is followed already loses nothing as long as no other one is made inside of it."""
    monkeypatch.setattr("multiclouddb_mirror.several._AGAIN_SECONDS", 0.01)
    file = written(f'collection = "*"\ntarget = "delta:{tmp_path}/lake/{{collection}}"')
    ended, merged = {}, {}
    with connect(file.config) as client:

        def page(job, progress):
            merged[job.address.collection] = progress.events
            if len(merged) == 3 and set(merged.values()) == {3}:
                for name in ("bills/old", "notes"):
                    store.create_collection(name)
                    store.put(name, "first", {})

        def told(job, outcome):
            ended[job.address.collection] = outcome
            if isinstance(outcome, MulticloudDbError):
                store.put("bills", "late", {})

        def over():
            return merged.get("notes") == 1 and merged["bills"] == 4

        mirrors = Mirrors(
            client, file.jobs(client), told, on_page=page, find=lambda: file.jobs(client), follow=True
        )
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(mirrors.run)
            try:
                wait_until(lambda: over() or running.done())
            finally:
                mirrors.stop()
            running.result()
    assert [name for name, each in ended.items() if isinstance(each, MulticloudDbError)] == ["bills/old"]
    assert over()
    assert not (tmp_path / "lake" / "bills" / "old").exists()
