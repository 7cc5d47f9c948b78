"""Tests a mirror on the embedded store, with each kind of table, and kills it before and after every step."""

import json
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from deltalake import DeltaTable, write_deltalake
from psycopg.conninfo import make_conninfo

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    ErrorDetail,
    FileCheckpointStore,
    FromContinuationToken,
    MulticloudDbError,
    ResourceAddress,
    connect,
    pacing,
)
from multiclouddb_api.set_aside import SetAsideFolder
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_mirror import (
    Mirror,
    destination_of,
    destinations,
    estimate_mirror,
    mirror,
    mirror_status,
    mirroring,
    retry_set_aside,
)
from multiclouddb_tables import Columns
from multiclouddb_verify import verify

from .kills import Death
from .worlds import CHANGED, FIRST, KILLED, OWN, World


def test_the_first_run_copies_every_row_and_the_next_goes_on(world):
    report = world.run()
    assert (report.began, report.events, report.deletes, report.caught_up) == ("snapshot", 7, 0, True)
    assert world.rows() == FIRST
    world.change()
    report = world.run(prove=True)
    assert (report.began, report.events, report.deletes) == ("position", 5, 1)
    assert report.proof.equal
    assert world.rows() == CHANGED
    table = destination_of(world.target)
    proved_at = mirror_status(table).proved_at
    assert datetime.now(UTC) - proved_at < timedelta(minutes=10)
    report = world.run()
    assert (report.began, report.events, report.pages) == ("position", 0, 0)
    assert mirror_status(table).proved_at == proved_at
    assert json.loads(json.dumps(report.to_dict()))["address"] == "main/orders"


def test_old_tombstones_are_removed_after_a_run(world):
    world.run()
    world.change()
    report = world.run(tombstones=timedelta(days=30))
    assert report.tombstones == 0
    report = world.run(tombstones=timedelta(0), prove=True)
    assert (report.tombstones, report.proof.equal) == (1, True)
    assert mirror_status(destination_of(world.target)).deleted == 0
    assert world.rows() == CHANGED
    world.put("o-2", 22)
    for key in CHANGED:
        world.store.delete("orders", key)
    assert world.run(tombstones=timedelta(0)).tombstones == 8
    world.store.delete("orders", "o-2")
    assert world.run(tombstones=timedelta(0)).tombstones == 1
    world.put("o-1", 1)
    assert world.run(prove=True).proof.equal  # a table that is empty by this is not taken for a damaged one
    assert world.rows() == {"o-1": 1}
    with pytest.raises(MulticloudDbError, match="tombstones: needs a run that ends"):
        world.run(tombstones=timedelta(0), follow=True)


def test_killed_while_it_tidies_it_loses_nothing(world, monkeypatch):
    kind = type(destination_of(world.target))
    for name in ("drop_tombstones", "compact"):
        monkeypatch.setattr(kind, name, world.mortal(getattr(kind, name)))
    settings = {"tombstones": timedelta(0), "compact": world.kind == "delta"}

    def begin():
        world.begin()
        world.run()
        world.change()

    begin()
    world.run(**settings)
    steps = world.steps
    for moment in range(steps - (4 if world.kind == "delta" else 2), steps):
        begin()
        with pytest.raises(Death):
            world.run(dies_at=moment, **settings)
        assert world.rows() == CHANGED
        assert world.run(prove=True, **settings).proof.equal
        assert mirror_status(destination_of(world.target)).deleted == 0
        world.put("o-2", 22)
        world.run()
        assert world.rows() == {**CHANGED, "o-2": 22}


def test_small_files_are_merged_after_a_run(world):
    world.run()
    world.change()
    if world.kind != "delta":
        with pytest.raises(MulticloudDbError, match="compact: is for Delta"):
            world.run(compact=True)
        assert world.rows() == FIRST
        return
    world.run()
    before = len(DeltaTable(world.folder / "table").file_uris())
    report = world.run(compact=True, prove=True)
    assert report.proof.equal
    assert len(DeltaTable(world.folder / "table").file_uris()) == 1 < before
    world.put("o-1", 1)
    assert world.run(prove=True).proof.equal


def test_an_estimate_says_what_a_run_will_read_and_writes_nothing(world):
    table = destination_of(world.target)
    found = estimate_mirror(world.client, "main/orders", table, max_scan_rate=1.0)
    assert (found.begins, found.may_write, found.problems) == ("snapshot", True, ())
    assert (found.scan.rows, found.scan.seconds) == (7, 7.0)
    assert table.found() is None
    assert json.loads(json.dumps(found.to_dict()))["scan"]["rows"] == 7
    world.run()
    assert estimate_mirror(world.client, "main/orders", table).begins == "position"


def test_an_estimate_names_everything_that_is_missing(world, monkeypatch):
    monkeypatch.setattr(destinations.os, "access", lambda path, mode: False)
    target = world.target
    if world.kind == "postgres":
        with psycopg.connect(world.server.dsn) as database:
            database.execute("DROP ROLE IF EXISTS reader")
            database.execute("CREATE ROLE reader LOGIN")
        target = f"postgres:{make_conninfo(world.server.dsn, user='reader')}#orders"
    found = estimate_mirror(world.client, "main/nothing", destination_of(target))
    assert [each.category for each in found.problems] == [
        ErrorCategory.NOT_FOUND,
        ErrorCategory.AUTHORIZATION_FAILED,
    ]
    assert found.may_write is False
    assert {"postgres": "CREATE on", "delta": "right to write", "sqlite": "right to write"}[
        world.kind
    ] in str(found.problems[1])


@pytest.mark.parametrize("world", KILLED, indirect=True)
def test_killed_before_and_after_each_step_it_goes_on(world):
    world.run()
    first = range(world.steps)
    world.change()
    world.run()
    later = range(world.steps)
    assert min(len(first), len(later)) > 4
    goes_on(world, first, later)


@pytest.mark.parametrize("world", OWN, indirect=True)
def test_killed_after_a_step_of_each_kind_it_goes_on(world):
    world.run()
    first = world.of_each_kind
    world.change()
    world.run()
    goes_on(world, first, world.of_each_kind)


def goes_on(world, first, later):
    """Kill a first run, and a later one, at each of some moments; the next run goes on."""
    for moment in first:
        world.begin()
        with pytest.raises(Death):
            world.run(dies_at=moment)
        world.change()
        world.run()
        assert world.rows() == CHANGED, moment
    for moment in later:
        world.begin()
        world.run()
        world.change()
        with pytest.raises(Death):
            world.run(dies_at=moment)
        report = world.run()
        assert world.rows() == CHANGED, moment
        assert report.began == "position"  # nothing is copied twice
    assert verify(world.client, "main/orders", destination_of(world.target).target).equal


@pytest.mark.parametrize("world", KILLED, indirect=True)
def test_a_snapshot_goes_on_where_it_was_killed(world, monkeypatch):
    """A position in the middle of the copy is stored too, so a copy of days is not begun again."""
    monkeypatch.setattr("multiclouddb_mirror.destinations._DELTA_SECONDS", 0.0)
    world.run()
    whole = world.steps
    assert copies_on(world, range(whole), whole // 2) > 4


@pytest.mark.parametrize("world", OWN, indirect=True)
def test_a_snapshot_goes_on_where_it_was_killed_after_a_step_of_each_kind(world, monkeypatch):
    monkeypatch.setattr("multiclouddb_mirror.destinations._DELTA_SECONDS", 0.0)
    world.run()
    # The second step that stores a position comes after rows.
    stores = [
        at for at, kind in enumerate(world.kinds) if kind in ("store_position", "multiclouddb_postgres.sink")
    ]
    moments = sorted({*world.of_each_kind, 2 * stores[1] + 1})
    assert copies_on(world, moments, 2 * stores[1]) > 1


def copies_on(world, moments, with_rows):
    """Kill a copy at each of some moments; return how many of them have left a position.

    After the moment `with_rows` a position comes after rows, which are not read again.
    """
    with_position = 0
    for moment in moments:
        world.begin()
        with pytest.raises(Death):
            world.run(dies_at=moment)
        stored = destination_of(world.target).load()
        status = mirror_status(destination_of(world.target))
        is_copied = status.exists and world.rows() == FIRST
        assert is_copied or (status.watermark, status.lag_seconds) == (None, None)
        assert status.is_copying or stored is None or is_copied
        report = world.run()
        assert world.rows() == FIRST
        assert report.began == ("snapshot" if stored is None else "position")
        with_position += stored is not None
        if stored is not None and moment > with_rows:
            assert report.events < 7
    return with_position


def test_of_two_that_begin_at_the_same_time_one_writes_nothing(world):
    """Neither a row nor a position, also if there was no table when it began."""
    for is_first in (True, False):
        late = destination_of(world.target)
        if world.kind != "postgres":  # where a second one cannot begin
            late.begin()
        stored = late.load()
        world.change()
        world.run()
        before, token = world.rows(), destination_of(world.target).stored()
        page = page_of(world, f"late-{is_first}", stored)
        with pytest.raises(MulticloudDbError) as caught:
            late.merge(page)
        assert caught.value.category is ErrorCategory.CONFLICT
        with pytest.raises(MulticloudDbError):
            late.save(page.continuation_token, now=True)
        assert (world.rows(), destination_of(world.target).stored()) == (before, token)
        world.run()
        late.end()


def page_of(world, key, stored):
    """Return a page with a new row."""
    start = FromContinuationToken(stored) if stored else Beginning()
    world.put(key, 9)
    page = world.client.read_changes(ChangeFeedRequest("main/orders", start))
    assert page.events
    return page


def test_a_copy_beside_a_running_mirror_stops_it_before_its_next_row(world):
    """And where the server knows that one is running, the second is refused before it has read a row."""
    world.run()
    seen = []

    def progress(told):
        if not seen:
            seen.append(told)
            try:
                seen.append(world.run(resync=True))
            except MulticloudDbError as error:
                seen.append(error)
            world.put("o-10", 10)
        elif "o-10" in world.rows():
            job.stop()

    job = Mirror(world.client, "main/orders", world.target, follow=True, on_progress=progress)
    world.change()
    if world.kind == "postgres":
        job.run()
        assert seen[1].category is ErrorCategory.CONFLICT
        assert "process " in seen[1].message
    else:
        with pytest.raises(MulticloudDbError, match="another process has begun") as caught:
            job.run()
        assert caught.value.category is ErrorCategory.CONFLICT
        assert seen[1].began == "snapshot"
    assert world.run(prove=True).proof.equal
    assert world.rows() == {**CHANGED, "o-10": 10}


def test_it_stops_after_the_page_and_keeps_its_position(world):
    job = Mirror(
        world.client, "main/orders", world.target, follow=True, on_progress=lambda progress: job.stop()
    )
    report = job.run()
    assert not report.caught_up
    assert destination_of(world.target).load() is not None
    assert world.run().began == "position"
    assert world.rows() == FIRST


def test_following_it_merges_what_is_written_meanwhile(world):
    seen = []

    def progress(told):
        seen.append(told.events)
        if told.events == 7:
            world.change()
        if told.events >= 12:
            job.stop()

    job = Mirror(world.client, "main/orders", world.target, follow=True, on_progress=progress)
    assert job.run().events == 12
    assert world.rows() == CHANGED
    assert seen == sorted(seen)


def test_a_position_in_a_store_of_its_own(world):
    store = FileCheckpointStore(world.folder / "positions")
    position = f"file://{world.folder}/positions/orders"
    world.run(position=position)
    assert destination_of(world.target).load() is None
    assert destination_of(world.target, position).load() == store.load("orders").token
    world.change()
    assert world.run(position=position, prove=True).proof.equal
    assert world.rows() == CHANGED


def test_a_damaged_table_is_repaired_by_another_copy(world):
    world.run()
    world.change()
    if world.kind == "delta":
        DeltaTable(world.folder / "table").delete('key = \'{"id":"o-3"}\'')
    else:
        opened = (
            sqlite3.connect(world.folder / "table.db")
            if world.kind == "sqlite"
            else psycopg.connect(world.server.dsn)
        )
        with closing(opened) as database:
            database.execute('DELETE FROM orders WHERE key = \'{"id":"o-3"}\'')
            database.commit()
    assert "o-3" not in world.rows()
    report = world.run(resync=True, prove=True)
    assert report.began == "snapshot"
    assert report.proof.equal
    assert world.rows() == CHANGED


def test_a_collection_that_is_made_again_is_refused_until_it_is_copied_again(world):
    world.run()
    world.store.drop_collection("orders")
    with pytest.raises(MulticloudDbError, match=r"--resync") as caught:
        world.run()
    assert caught.value.category is ErrorCategory.NOT_FOUND
    assert world.rows() == FIRST
    world.store.create_collection("orders")
    world.put("o-3", 3)
    with pytest.raises(MulticloudDbError, match=r"--resync"):
        world.run()
    assert world.run(resync=True, prove=True).proof.equal
    assert world.rows() == {"o-3": 3}


def test_a_collection_that_is_made_again_during_its_first_run_names_the_way_out(world):
    made_again = []

    def make_again(progress):
        if not made_again and progress.snapshot is None:
            made_again.append(progress)
            world.store.drop_collection("orders")
            world.store.create_collection("orders")

    with pytest.raises(MulticloudDbError, match=r"run once with resync=True \(--resync\)"):
        world.run(follow=True, on_progress=make_again)
    assert made_again


def test_a_table_that_something_else_has_filled_is_not_taken(world):
    world.run()
    forget_marks(world)
    before = world.rows()
    world.store.delete("orders", "o-6")
    with pytest.raises(MulticloudDbError, match="--adopt") as caught:
        world.run()
    assert caught.value.category is ErrorCategory.INVALID_REQUEST
    assert world.rows() == before
    assert world.run(adopt=True, prove=True).proof.equal
    assert "o-6" not in world.rows()


def forget_marks(world):
    """Make the table one that something else has filled."""
    if world.kind == "delta":
        rows = DeltaTable(world.folder / "table").to_pyarrow_table()
        shutil.rmtree(world.folder / "table")
        write_deltalake(world.folder / "table", rows)
    elif world.kind == "sqlite":
        with closing(sqlite3.connect(world.folder / "table.db")) as database:
            database.execute("DELETE FROM multiclouddb_marks")
            database.commit()
    else:
        with psycopg.connect(world.server.dsn) as database:
            database.execute("DELETE FROM multiclouddb_marks")
            database.execute("DELETE FROM multiclouddb_checkpoints")


def test_it_begins_where_it_is_told_to(world):
    report = world.run(start=Beginning())
    assert report.began == "start"
    assert world.rows() == FIRST


def lost(category=ErrorCategory.TRANSIENT_FAILURE):
    return MulticloudDbError("table: is not there", ErrorDetail(category, retryable=True))


@pytest.mark.parametrize("settings", [{}, {"resync": True}], ids=["first", "resync"])
def test_a_table_that_fails_at_any_step_is_tried_again(world, monkeypatch, settings):
    monkeypatch.setattr(pacing, "_RETRY_SECONDS", 0.01)
    if settings:
        world.run()
    world.run(**settings)
    for fails_at in range(0, world.steps, 5):
        if not settings:
            world.begin()
        report = world.run(fails_at, lost(), **settings)
        assert (report.caught_up, report.began) == (True, "snapshot")
        # At most the page of the failure is merged again. A position of Delta may be some pages behind.
        assert report.events <= 10 or world.kind == "delta"
        assert world.rows() == FIRST
    assert world.run(prove=True).proof.equal


def test_a_table_that_stays_away_is_an_error(world, monkeypatch):
    world.run()
    for limit, failure in ((0.0, lost()), (300.0, lost(ErrorCategory.CONFLICT))):
        monkeypatch.setattr(mirroring, "_OUTAGE_SECONDS", limit)
        world.put("o-9", 9)
        with pytest.raises(MulticloudDbError) as caught:
            world.run(0, failure)
        assert caught.value is failure


def test_an_expired_position_is_told_and_every_row_copied(world):
    world.run()
    world.change()
    world.store.trim("orders", max_count=0)
    with pytest.raises(MulticloudDbError, match=r"\(--on-expired resnapshot\)") as caught:
        world.run(on_expired="fail")
    assert caught.value.category is ErrorCategory.CHECKPOINT_EXPIRED
    report = world.run(prove=True)
    assert (report.began, report.proof.equal) == ("expired", True)
    assert world.rows() == CHANGED
    assert world.run().began == "position"


DECLARATIONS = [
    (None, {"total": "int64"}),
    ({"total": "int64"}, {"total": "string"}),
    ({"total": "int64"}, {"total": "int64", "more": "string"}),
    ({"total": "int64", "more": "string"}, {"total": "int64"}),
]


@pytest.mark.parametrize(("before", "after"), DECLARATIONS)
def test_another_declaration_is_refused_at_the_start_although_no_change_waits(world, before, after):
    world.run(columns=before and Columns(before))
    for settings in ({}, {"resync": True}):
        with pytest.raises(MulticloudDbError, match=r"run once with refill=True \(--refill\)") as caught:
            world.run(columns=Columns(after), on_progress=pytest.fail, **settings)
        assert caught.value.category is ErrorCategory.INVALID_REQUEST
    assert world.run(columns=Columns(after), refill=True, prove=True).proof.equal


def test_another_declaration_that_needs_no_copy_is_stored_although_no_change_waits(world):
    world.run(columns=Columns({"total": "int64"}))
    rescues = Columns({"total": "int64"}, misfits="rescue")
    assert world.run(columns=rescues).events == 0
    assert destination_of(world.target).found().mark.declared == rescues
    assert world.run(prove=True).proof.equal


def test_a_refill_of_nothing_copies_nothing(world):
    columns = Columns({"total": "int64"})
    world.run(columns=columns, refill=True)
    assert world.run(columns=columns, refill=True).began == "position"
    assert world.run(columns=Columns({"total": "int64"}, misfits="rescue"), refill=True).began == "position"
    world.begin()
    with pytest.raises(MulticloudDbError, match=r"declaration.*--columns"):
        world.run(refill=True)


def test_a_refill_that_was_killed_begins_again(world):
    world.run(columns=Columns({"total": "int64"}))
    changed = Columns({"total": "string"})
    for dies_at in range(0, 30, 4):
        try:
            world.run(dies_at=dies_at, columns=changed, refill=True)
        except Death:
            continue
        break
    report = world.run(columns=changed, refill=True, prove=True)
    assert report.proof.equal
    assert not report.proof.unfilled
    assert set(world.values("total").values()) == set(map(str, range(7)))


@pytest.mark.parametrize("world", KILLED, indirect=True)
def test_a_killed_refill_is_finished_by_a_run_that_does_not_ask_for_it(world):
    steps = refilled(world)
    assert steps > 4
    finishes(world, range(steps))


@pytest.mark.parametrize("world", OWN, indirect=True)
def test_a_refill_that_was_killed_after_a_step_of_each_kind_is_finished(world):
    refilled(world)
    finishes(world, world.of_each_kind)


def refilled(world):
    """Fill a column anew; return the number of moments."""
    world.run(columns=Columns({"total": "int64"}))
    world.run(columns=Columns({"total": "string"}), refill=True)
    return world.steps


def finishes(world, moments):
    """Kill a refill at each of some moments; the next run finishes it."""
    for moment in moments:
        world.begin()
        world.run(columns=Columns({"total": "int64"}))
        with pytest.raises(Death):
            world.run(dies_at=moment, columns=Columns({"total": "string"}), refill=True)
        world.run()  # the table has the old declaration, or the new one
        assert set(world.values("total").values()) in ({*range(7)}, {*map(str, range(7))}), moment
    assert world.run(prove=True).proof.equal


def test_verify_names_the_columns_of_an_unfinished_refill(world):
    world.run(columns=Columns({"total": "int64"}))
    job = Mirror(
        world.client, "main/orders", world.target, columns=Columns({"total": "string"}), refill=True,
        on_progress=lambda progress: job.stop(),
    )  # fmt: skip
    assert not job.run().caught_up
    to = destination_of(world.target)
    with pytest.raises(MulticloudDbError, match="a refill has not filled total yet"):
        verify(world.client, "main/orders", to.target, position=to.stored)
    assert world.run(prove=True).proof.equal


def test_declared_columns_are_filled_proved_and_changed(world, tmp_path):
    (tmp_path / "columns.toml").write_text('[columns]\ntotal = "int64"\n')
    world.run(columns=tmp_path / "columns.toml", prove=True)
    assert world.values("total") == FIRST
    world.change()
    report = world.run(prove=True)  # the table has its declaration
    assert report.proof.equal
    assert world.values("total") == CHANGED
    (tmp_path / "columns.toml").write_text('[columns]\ntotal = "string"\n')
    world.put("o-9", 9)
    with pytest.raises(MulticloudDbError, match="refill"):
        world.run(columns=tmp_path / "columns.toml")
    assert world.values("total") == CHANGED
    report = world.run(columns=tmp_path / "columns.toml", refill=True, prove=True)
    assert report.began == "snapshot"
    assert report.proof.equal
    assert world.values("total") == {key: str(value) for key, value in {**CHANGED, "o-9": 9}.items()}


class TestDelta:
    @pytest.fixture
    def world(self, tmp_path, monkeypatch):
        made = World(tmp_path, "delta", None, monkeypatch)
        made.begin()
        yield made
        made.client.close()
        made.store.close()

    def test_restore_takes_the_position_back_with_the_rows(self, world):
        world.run()
        version = DeltaTable(world.folder / "table").version()
        world.change()
        world.run()
        DeltaTable(world.folder / "table").restore(version)
        assert world.rows() == FIRST
        report = world.run(prove=True)
        assert (report.began, report.events) == ("position", 5)
        assert report.proof.equal
        assert world.rows() == CHANGED

    def test_a_dropped_table_is_copied_again(self, world):
        world.run()
        shutil.rmtree(world.folder / "table")
        assert world.run().began == "snapshot"
        assert world.rows() == FIRST


class TestRefused:
    @pytest.fixture
    def client(self, tmp_path):
        with EmbeddedStore(tmp_path / "shop.db") as store:
            store.create_collection("orders")
        with connect(f"embedded://{tmp_path}/shop.db") as made:
            yield made

    @pytest.mark.parametrize(
        ("target", "settings", "field"),
        [
            ("orders", {}, "target"),
            ("delta:", {}, "target"),
            ("postgres:host", {}, "target"),
            ("sqlite:shop.db", {}, "target"),
            ("delta:table", {"position": "orders"}, "position"),
            ("delta:table", {"position": "nowhere://a/orders"}, "checkpoint_store"),
            ("delta:table", {"on_expired": "skip"}, "on_expired"),
            ("delta:table", {"resnc": True}, "resync"),
        ],
    )
    def test_a_wrong_argument_is_named(self, client, target, settings, field):
        with pytest.raises(MulticloudDbError, match=field) as caught:
            mirror(client, "main/orders", target, **settings)
        assert caught.value.category is ErrorCategory.INVALID_REQUEST

    def test_no_message_has_the_password_of_a_target(self, client):
        with pytest.raises(MulticloudDbError) as caught:
            mirror(client, "main/orders", "postgre:postgresql://u:geheim@host/shop#orders")
        assert "geheim" not in str(caught.value)


class TestPostgres:
    @pytest.fixture
    def world(self, tmp_path, monkeypatch, server):
        made = World(tmp_path, "postgres", server, monkeypatch)
        made.begin()
        yield made
        made.client.close()
        made.store.close()

    def test_a_table_has_one_position_however_it_is_named(self, world):
        world.run()
        world.change()
        target = f"postgres:{world.server.dsn}#public.orders"
        assert destination_of(target).stored() == destination_of(world.target).stored()
        report = mirror(world.client, "main/orders", target, prove=True)
        assert (report.began, report.events, report.proof.equal) == ("position", 5, True)
        with psycopg.connect(world.server.dsn) as database:
            assert database.execute("SELECT count(*) FROM multiclouddb_checkpoints").fetchone() == (1,)

    def test_the_second_is_told_who_writes(self, world):
        writing = destination_of(world.target)
        writing.begin()
        with pytest.raises(MulticloudDbError, match=r"from the machine of the server, process \d+") as caught:
            mirror(world.client, "main/orders", f"postgres:{world.server.dsn}#public.orders")
        assert caught.value.category is ErrorCategory.CONFLICT
        assert writing.stored() is None
        writing.end()
        assert world.run().events == 7


def test_a_row_that_a_constraint_of_postgresql_refuses_is_set_aside(tmp_path, server, monkeypatch):
    world = World(tmp_path, "postgres", server, monkeypatch)
    with world.client, world.store:
        world.begin()
        world.run()
        with psycopg.connect(server.dsn) as database:
            database.execute(
                "ALTER TABLE orders ADD CONSTRAINT few CHECK (new_item_state::jsonb ->> 'total' <> '13')"
            )
        world.put("o-1", 13)
        world.put("o-2", 20)
        aside, address = tmp_path / "aside", ResourceAddress("main", "orders")
        assert world.run(set_aside=aside).set_aside == 1

        def retry():
            table, folder = destination_of(world.target), SetAsideFolder(aside)
            return retry_set_aside(world.client, address, table, folder)

        assert world.rows() == {**FIRST, "o-2": 20}
        retried = retry()
        assert (retried.written, retried.left) == (0, 1)
        with psycopg.connect(server.dsn) as database:
            database.execute("ALTER TABLE orders DROP CONSTRAINT few")
        retried = retry()
        assert (retried.written, retried.left) == (1, 0)
        report = world.run(set_aside=aside, prove=True)
        assert (report.set_aside, report.proof.equal) == (0, True)
