"""What an interrupted comparison leaves decides nothing about the table that a later one finds."""

import contextlib
import copy
import errno
import os
import shutil
import sqlite3
import stat
import tracemalloc
from contextlib import suppress

import attrs
import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError, decode_json
from multiclouddb_embedded import EmbeddedOptions
from multiclouddb_verify import DifferenceKind, VerifySettings
from multiclouddb_verify.sides import Sides
from multiclouddb_verify.source import Source
from multiclouddb_verify.state import State
from multiclouddb_verify.verification import SETTINGS

from .tables import NAME, Shop, key_of, plant
from .test_lives import smooth
from .worlds import Killed, World, found


class Steps:
    """Counts the steps of a comparison: each statement of its state, each call of the table and the client.

    Args:
        last: The step before which the process dies; None for never.
    """

    def __init__(self, monkeypatch, world, last=None):
        self.count, self.last = 0, last
        for name in ("_sql", "_sql_many"):
            original = getattr(State, name)

            def counted(state, *arguments, original=original):
                self.take()
                return original(state, *arguments)

            monkeypatch.setattr(State, name, counted)
        world.tick = world.target.tick = self.take

    def take(self):
        self.count += 1
        if self.count == self.last:
            raise Killed


def quiet(seed=3, kinds=(DifferenceKind.MISSING, DifferenceKind.STALE, DifferenceKind.GHOST), **settings):
    world = World(seed, behaviour=smooth(seed), kinds=list(kinds), **settings)
    world.left = 0
    return world


def nothing(world):
    """Leave both sides as they are."""


def damage(world):
    """Damage other rows than before."""
    live = [row for row in world.target.table if not row.deleted and row.key not in world.faults]
    world.target.table.remove(live[0])
    live[1].text = '{"v":"other"}'
    world.target.table.append(attrs.evolve(live[2], key=key_of("nobody's")))
    world.target.table.append(attrs.evolve(live[3]))


def heal(world):
    """Let the sink make the table again."""
    world.target.table.clear()
    world.token = None
    world.drain()


def empty(world):
    """Create the table again without rows."""
    world.target.table.clear()


def recreate(world):
    """Make the table again, with other faults."""
    heal(world)
    damage(world)


def follow(world):
    """Change the source, some keys twice, and let the sink follow."""
    for name in ("k3", "k4", "k4", "r2", "new"):
        world.put(name)
    for name in ("k5", "r3"):
        world.write(name, None)
    world.drain()


def restore(world):
    """Let the sink follow in two steps, and restore the table from between them, but not the position."""
    follow(world)
    before = copy.deepcopy(world.target.table)
    follow(world)
    world.target.table[:] = before


CHANGES = [nothing, damage, heal, empty, recreate, follow, restore]


def differing(world):
    """Return the keys whose rows differ, as somebody sees it who knows both sides."""
    truth, rows = world.truth(), dict[str, list]()
    for row in world.target.table:
        rows.setdefault(row.key, []).append(row)
    wrong = {key for key, mine in rows.items() if len(mine) > 1 or mine[0].order_key == "~"}
    for key in {*truth, *rows} - wrong:
        row = rows[key][0] if key in rows else None
        if said(None if row is None or row.deleted else decode_json(row.text)) != said(truth.get(key)):
            wrong.add(key)
    return wrong


def said(document):
    """Return the values of a document with their types; the order of the names does not count."""
    return None if document is None else repr(sorted(document.items()))


def lives(folder, change, defect=None, *, every, **settings):
    """Interrupt a comparison at each step, change both sides, compare again; yield how that went.

    Args:
        folder: An empty folder.
        change: What happens meanwhile.
        defect: Called before the second comparison.
        every: One of so many steps is the last one.
        settings: Those of the second comparison.
    """
    last, is_complete = 1 + CHANGES.index(change) * 5 % every, False
    while not is_complete:
        with pytest.MonkeyPatch.context() as patch:
            world = quiet()
            state = folder / f"{change.__name__} {last}"
            steps = Steps(patch, world, last)
            try:
                first_settings = {"repair": settings.get("repair", False)}
                world.compare(state, **first_settings)
            except Killed:
                pass
            else:
                is_complete = True
            steps.last = None
            change(world)
            expected = differing(world)
            rows = world.rows
            if defect is not None:
                defect(patch)
            try:
                yield world, expected, rows, world.compare(state, **settings)
            finally:
                world.close()
            assert not state.exists()
        last += every
    assert last > 100


@pytest.mark.parametrize("every", [97, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_whenever_it_is_interrupted_the_answer_is_of_the_table_that_the_next_one_finds(
    change, resume, every, tmp_path
):
    for _, expected, _, report in lives(tmp_path, change, every=every, resume=resume):
        assert set(found(report)) == expected
        assert (report.equal, report.counts.unsettled) == (not expected, 0)


@pytest.mark.parametrize("every", [97, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_whenever_a_repair_is_interrupted_the_next_one_ends_it(change, resume, every, tmp_path):
    for world, expected, _, report in lives(tmp_path, change, every=every, resume=resume, repair=True):
        assert (report.equal, {each.key for each in report.repaired}) == (True, expected)
        assert world.target.documents() == world.truth()


class TestDefect:
    """A defect in how a comparison is resumed is noticed."""

    @staticmethod
    def is_noticed(tmp_path, defect, every=61):
        return any(
            set(found(report)) != expected or report.counts.unsettled
            for change in CHANGES
            for _, expected, _, report in lives(tmp_path, change, defect, every=every, resume=True)
        )

    def test_none(self, tmp_path):
        assert not self.is_noticed(tmp_path, lambda patch: None)

    def test_the_old_table(self, tmp_path):
        original = State._take_up

        def take_up(state):
            state._sql("UPDATE run SET side = 'old' WHERE side = 'target'")
            original(state)

        def read_table(sides):
            read = sides.state
            if read.count("old"):
                read._sql("UPDATE run SET side = 'target' WHERE side = 'old'")
            else:
                original_read(sides)

        original_read = Sides.read_table

        def defect(patch):
            patch.setattr(State, "_take_up", take_up)
            patch.setattr(Sides, "read_table", read_table)

        assert self.is_noticed(tmp_path, defect)

    def test_old_judgements(self, tmp_path):
        original = State._sql

        def sql(state, statement, values=()):
            kept = statement in ("DELETE FROM pending", "DELETE FROM difference")
            return original(state, "SELECT 1" if kept else statement, values)

        assert self.is_noticed(tmp_path, lambda patch: patch.setattr(State, "_sql", sql), every=23)

    def test_the_old_position(self, tmp_path):
        def defect(patch):
            patch.setattr(State, "fold_changes", lambda state: None)

        assert self.is_noticed(tmp_path, defect)

    def test_no_changes_since_the_old_reading(self, tmp_path):
        def defect(patch):
            patch.setattr("multiclouddb_verify.source.Follower.catch_up", lambda follower: None)

        assert self.is_noticed(tmp_path, defect)


# -- On a Delta table: what is taken up, and what is not


class Stopped(BaseException):
    """Raised to interrupt a comparison in a phase."""


def stop_at(phase):
    def stop(progress):
        if progress.phase == phase:
            raise Stopped

    return stop


@pytest.fixture
def shop(tmp_path):
    with Shop(tmp_path) as shop:
        yield shop


def interrupt(shop, phase="compare", **settings):
    with suppress(Stopped):
        shop.verify(on_progress=stop_at(phase), **settings)
    assert (shop.folder / "state" / "state.db").exists()


@pytest.fixture
def scanned(monkeypatch):
    """Count the rows that a scan of the source delivers."""
    counts, original = [], Source.scan

    def scan(self, token, *size):
        for page in original(self, token, *size):
            if not size:  # otherwise only some documents are looked at
                counts.append(len(page.events))
            yield page

    monkeypatch.setattr(Source, "scan", scan)
    return counts


class TestTakenUp:
    def test_with_resume_no_row_of_the_source_is_read_again_and_that_is_said(self, shop, scanned, caplog):
        interrupt(shop)
        scanned.clear()
        plant(shop.table, key_of(shop.names[3]), DifferenceKind.STALE)
        report = shop.verify(resume=True)
        assert ({each.key for each in report.differences}, scanned) == ({key_of(shop.names[3])}, [])
        assert "60 rows of the source are not read again" in report.left_over
        assert report.to_dict()["left_over"] == report.left_over
        assert report.left_over in caplog.text

    def test_without_resume_it_is_removed_and_that_is_said(self, shop, scanned, caplog):
        interrupt(shop)
        scanned.clear()
        report = shop.verify()
        assert (report.equal, sum(scanned)) == (True, 60)
        assert "was removed" in report.left_over
        assert report.left_over in caplog.text

    def test_without_a_left_over_one_resume_begins(self, shop):
        report = shop.verify(resume=True)
        assert (report.equal, report.left_over) == (True, None)

    def test_the_report_is_of_the_position_of_today(self, shop):
        interrupt(shop)
        shop.store.put("orders", shop.names[5], {"n": -1})
        shop.follow()
        report = shop.verify(resume=True)
        assert report.verified_through == shop.checkpoints.load(NAME).token

    def test_not_if_the_stream_does_not_go_back_to_it(self, shop, scanned):
        interrupt(shop)
        scanned.clear()
        shop.store.delete("orders", shop.names[5])
        shop.follow()
        shop.pass_over()
        report = shop.verify(resume=True)
        assert (report.equal, sum(scanned)) == (True, 59)
        assert "CHECKPOINT_EXPIRED" in report.left_over

    def test_not_if_the_collection_was_created_again(self, shop, scanned):
        interrupt(shop)
        scanned.clear()
        shop.store.drop_collection("orders")
        shop.store.create_collection("orders", partitions=2)
        shop.store.put("orders", "new", {"n": 1})
        [checkpoint] = (shop.folder / "checkpoints").glob("*.json")
        checkpoint.unlink()
        shutil.rmtree(shop.table)
        shop.follow()
        report = shop.verify(resume=True)
        assert (report.equal, sum(scanned)) == (True, 1)
        assert "incarnation differ" in report.left_over

    def test_not_if_the_feed_contains_no_deletes(self, tmp_path):
        """Nothing says which of the rows that were read have been deleted since."""
        world = quiet(kinds=[], latest=True)
        with suppress(Stopped):
            world.compare(tmp_path / "state", on_progress=stop_at("compare"))
        before = world.rows
        report = world.compare(tmp_path / "state", resume=True)
        assert (report.equal, world.rows) == (True, 2 * before)
        assert "no deletes" in report.left_over
        world.close()

    @pytest.mark.parametrize(("name", "is_taken_up"), [(None, False), ("new", False), ("old", True)])
    def test_with_transform_only_by_its_name(self, name, is_taken_up, tmp_path, scanned):
        def columns(document):
            return {"n": document["n"], "kind": "a"}

        with Shop(tmp_path, transform=columns) as shop:
            interrupt(shop, transform=columns, transform_name="old")
            scanned.clear()
            report = shop.verify(transform=columns, transform_name=name, resume=True)
            assert (report.equal, scanned == []) == (True, is_taken_up)

    def test_a_name_without_transform_is_refused(self, shop):
        with pytest.raises(MulticloudDbError, match="transform_name"):
            shop.verify(transform_name="x")


OTHERS = {
    "position": lambda shop: shop.checkpoints.load(NAME).token,
    "repair": True,
    "sample": 2,
    "max_scan_rate": 1e9,
    "patience_seconds": 31.0,
    "max_repairs": 3,
    "force": True,
    "adopt": True,
    "transform": lambda shop: lambda document: document,
    "show_values": True,
    "record": True,
    "provider_options": EmbeddedOptions(),
    "on_progress": lambda shop: lambda progress: None,
}
"""A second value of each setting, except of those that are tested above, or refused with `resume`."""


def test_every_setting_says_whether_it_changes_the_verdict():
    assert list(SETTINGS) == list(VerifySettings.__annotations__)
    refused = {"keys", "partition_key"}
    assert OTHERS.keys() == SETTINGS.keys() - {"state", "resume", "transform_name"} - refused


@pytest.mark.parametrize("name", OTHERS)
def test_another_value_of_a_setting_that_changes_the_verdict_begins(name, shop, scanned):
    interrupt(shop)
    scanned.clear()
    other = OTHERS[name]
    with suppress(MulticloudDbError):
        shop.verify(resume=True, **{name: other(shop) if callable(other) else other})
    assert (sum(scanned) > 0) is SETTINGS[name].verdict or name == "transform"


@pytest.mark.parametrize("name", ["FORMAT", "version", "_version_of"])
def test_another_version_begins(name, shop, scanned, monkeypatch):
    interrupt(shop)
    scanned.clear()
    other = 1 if name == "FORMAT" else lambda of: "another"
    monkeypatch.setattr(f"multiclouddb_verify.verification.{name}", other)
    report = shop.verify(resume=True)
    assert (report.equal, sum(scanned)) == (True, 60)
    assert "differ" in report.left_over


def test_a_collection_has_one_folder_however_it_is_named(shop, scanned):
    interrupt(shop)
    scanned.clear()
    shop.address = "orders"
    assert shop.verify(resume=True).equal
    assert scanned == []


def _damaged_text(path):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE fact SET value = CAST(x'7b22ff' AS TEXT) WHERE name = 'identity'")


DAMAGES = {
    "no database": lambda folder: (folder / "state.db").write_bytes(b"x" * 5000),
    "half of the database": lambda folder: os.truncate(folder / "state.db", 5000),
    "no file": lambda folder: (folder / "000001.run").unlink(),
    "an empty file": lambda folder: os.truncate(folder / "000001.run", 0),
    "half of a file": lambda folder: os.truncate(folder / "000001.run", 500),
    "a text that is not UTF-8": lambda folder: _damaged_text(folder / "state.db"),
    "zeros": lambda folder: (folder / "000001.run").write_bytes(
        b"\0" * (folder / "000001.run").stat().st_size
    ),
}


class TestFolder:
    def refused(self, shop, text, **settings):
        with pytest.raises(MulticloudDbError, match=text) as caught:
            shop.verify(**settings)
        assert caught.value.category == ErrorCategory.INVALID_REQUEST
        assert str(settings.get("state", shop.folder / "state")) in str(caught.value)

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_that_is_broken_says_so_and_without_resume_it_is_removed(self, damage, shop):
        interrupt(shop)
        for path in (shop.folder / "state").glob("state.db-*"):
            path.unlink()
        DAMAGES[damage](shop.folder / "state")
        self.refused(shop, "is broken.*remove it", resume=True)
        report = shop.verify()
        assert (report.equal, "was removed" in report.left_over) == (True, True)

    @pytest.mark.parametrize("error", [errno.ENOSPC, errno.EACCES, errno.EIO])
    @pytest.mark.parametrize("step", ["add_run", "keys_of"])
    def test_that_cannot_be_used_any_more_says_so(self, step, error, shop, monkeypatch):
        import multiclouddb_verify.state as module

        plant(shop.table, key_of(shop.names[3]), DifferenceKind.STALE)
        original = open

        def refuse(path, *arguments, **more):
            writes = arguments[:1] == ("wb",)
            if str(path).endswith(".run") and writes is (step == "add_run"):
                raise OSError(error, os.strerror(error), str(path))
            return original(path, *arguments, **more)

        monkeypatch.setattr(module, "open", refuse, raising=False)
        monkeypatch.setattr(module.Path, "open", refuse)
        self.refused(shop, "no space left|cannot be read or written")

    def test_whose_disk_is_full_says_so(self, shop, monkeypatch):
        original = State._open

        def small(state):
            original(state)
            state._database.execute("PRAGMA max_page_count = 4")

        monkeypatch.setattr(State, "_open", small)
        self.refused(shop, "no space left on its disk; make space")

    def test_that_is_a_file_says_so(self, shop):
        (shop.folder / "file").write_text("")
        self.refused(shop, "is a file", state=shop.folder / "file")
        self.refused(shop, "is a file", state=shop.folder / "file" / "below")

    def test_with_other_files_is_refused_and_nothing_is_removed(self, shop):
        mine = shop.folder / "mine"
        mine.mkdir()
        (mine / "letter.txt").write_text("dear")
        self.refused(shop, "letter.txt", state=mine)
        assert (mine / "letter.txt").read_text() == "dear"

    def test_is_read_by_its_owner_alone(self, shop):
        modes = {}

        def look(progress):
            for path in (shop.folder / "state", *(shop.folder / "state").iterdir()):
                modes[path.name] = stat.S_IMODE(path.stat().st_mode)

        before = os.umask(0)
        try:
            shop.verify(on_progress=look)
        finally:
            os.umask(before)
        assert modes.pop("state") == 0o700
        assert {"lock", "state.db", "state.db-wal", "000001.run"} <= modes.keys()
        assert set(modes.values()) == {0o600}

    def test_is_not_used_by_two(self, shop):
        state = State(shop.folder / "state", {})
        with pytest.raises(MulticloudDbError, match="another verify") as caught:
            shop.verify(resume=True)
        assert caught.value.category == ErrorCategory.CONFLICT
        state.close()

    def test_that_another_has_removed_meanwhile_is_created_again(self, tmp_path, monkeypatch):
        import multiclouddb_verify.state_folder as module

        others, original = [], module.fcntl.flock

        def flock(*arguments):
            if not others:
                others.append((tmp_path / "state" / "lock").unlink())
            return original(*arguments)

        monkeypatch.setattr(module.fcntl, "flock", flock)
        State(tmp_path / "state", {}).close()
        assert (tmp_path / "state" / "lock").exists()

    def test_keeps_nothing_in_memory_of_a_statement_that_has_ended(self, tmp_path):
        state = State(tmp_path / "state", {})
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for number in range(5000):
                state.versions(number, "a")
            assert tracemalloc.get_traced_memory()[0] - before < 5000 * 20
        finally:
            tracemalloc.stop()
            state.close()
