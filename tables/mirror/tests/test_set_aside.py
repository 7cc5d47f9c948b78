"""Tests what is set aside: no run is stuck, and nothing is lost, however often the process is killed."""

import json
import shutil
import sqlite3
import stat
from contextlib import closing
from decimal import Decimal

import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError, ResourceAddress, connect, invalid_request
from multiclouddb_api.set_aside import SetAsideFolder
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_mirror import destination_of, mirror, mirroring, retry_set_aside
from multiclouddb_tables.columns import Columns
from multiclouddb_tables.sqlite import SqliteTable
from multiclouddb_verify import verify

from .kills import Death, Steps

STEPS = ("prepare", "set_feed_mark", "store", "outdate", "bury", "merge", "claim", "store_position", "fix")
ORDERS = ResourceAddress("main", "orders")


class World(Steps):
    """A collection, and a table of SQLite that may refuse a batch with a row that has `"bad": true`."""

    def __init__(self, folder, monkeypatch):
        super().__init__()
        self.folder = folder
        self.store = EmbeddedStore(folder / "shop.db")
        self.client = connect(f"embedded://{folder}/shop.db")
        monkeypatch.setattr(mirroring, "_PAGE_EVENTS", 3)
        self.refuses = lambda text: False
        merge, fix = SqliteTable.merge, SqliteTable.fix

        def merging(table, rows, notes, *, is_last):
            self.check(rows["new_item_state"].to_pylist())
            return merge(table, rows, notes, is_last=is_last)

        def fixing(table, fixes, expected):
            self.check([each.text for each in fixes])
            return fix(table, fixes, expected)

        monkeypatch.setattr(SqliteTable, "merge", merging)
        monkeypatch.setattr(SqliteTable, "fix", fixing)
        for name in STEPS:
            monkeypatch.setattr(SqliteTable, name, self.mortal(getattr(SqliteTable, name)))
        for name in ("add", "remove", "_write"):
            monkeypatch.setattr(SetAsideFolder, name, self.mortal(getattr(SetAsideFolder, name)))
        self.table, self.aside = folder / "table.db", folder / "aside"
        self.aside.mkdir()
        self.store.create_collection("orders", partitions=2)
        for number in range(7):
            self.put(f"o-{number}", total=number)

    @property
    def target(self):
        return f"sqlite:{self.table}#orders"

    def keep(self):
        """Keep the table, its position and the folder, from which each kill begins."""
        shutil.copy(self.table, self.folder / "kept.db")
        shutil.copytree(self.aside, self.folder / "kept", dirs_exist_ok=True)

    def restore(self):
        for file in self.folder.glob("table.db*"):
            file.unlink()
        shutil.rmtree(self.aside)
        shutil.copy(self.folder / "kept.db", self.table)
        shutil.copytree(self.folder / "kept", self.aside)

    def put(self, key, **document):
        self.store.put("orders", key, document)

    def run(self, dies_at=None, **settings):
        self.begin_steps(dies_at)
        try:
            return mirror(self.client, ORDERS, self.target, set_aside=self.aside, **settings)
        finally:
            self.dies_at = None

    def retry(self, dies_at=None):
        self.begin_steps(dies_at)
        try:
            return retry_set_aside(
                self.client,
                ORDERS,
                destination_of(self.target),
                SetAsideFolder(self.aside),
                on_step=self.step,
            )
        finally:
            self.dies_at = None

    def sql(self, statement):
        with closing(sqlite3.connect(self.table)) as database:
            found = database.execute(statement).fetchall()
            database.commit()
            return found

    def check(self, texts):
        if any(text is not None and self.refuses(text) for text in texts):
            raise invalid_request("batch", "has a row that the table refuses", "change it")

    def refuse(self):
        """Let the table refuse some rows from now on."""
        self.refuses = lambda text: "bad" in text

    def accept(self):
        self.refuses = lambda text: False

    def rows(self):
        found = self.sql("SELECT key, new_item_state FROM orders WHERE _deleted_at IS NULL")
        return {json.loads(key)["id"]: json.loads(text)["total"] for key, text in found}

    def keys(self):
        return (
            {json.loads(file.read_bytes())["key"]["id"] for file in self.aside.glob("*.json")}
            if self.aside.is_dir()
            else set()
        )


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = World(tmp_path, monkeypatch)
    yield made
    made.client.close()
    made.store.close()


def changed(world):
    world.run()
    world.refuse()
    world.put("o-1", total=100, bad=True)
    world.put("o-2", total=200)
    world.put("o-9", total=900, bad=True)
    world.put("o-3", total=300)


GOOD = {"o-0": 0, "o-1": 1, "o-2": 200, "o-3": 300, "o-4": 4, "o-5": 5, "o-6": 6}
ALL = {**GOOD, "o-1": 100, "o-9": 900}


def test_a_refused_row_stops_no_other_and_is_told_until_it_is_written(world):
    changed(world)
    report = world.run()
    assert (report.set_aside, report.caught_up) == (2, True)
    assert world.rows() == GOOD
    assert world.run().set_aside == 2  # those of earlier runs too
    retried = world.retry()
    assert (retried.written, retried.left) == (0, 2)
    world.accept()
    retried = world.retry()
    assert (retried.written, retried.newer, retried.left) == (2, 0, 0)
    assert world.rows() == ALL
    assert world.run(prove=True).proof.equal
    assert world.run().set_aside == 0


def test_a_value_that_does_not_fit_its_column_is_neither_retried_nor_repaired_into_the_table(world):
    columns = Columns({"total": "decimal(6,2)", "count": "int32"})
    world.run(columns=columns)
    before = world.sql("SELECT key, total, count FROM orders ORDER BY key")
    world.put("o-0", total=0)
    world.put("o-1", total=Decimal("1.005"))
    world.put("o-8", total=8, count=3_000_000_000)
    assert world.run().set_aside == 2
    for _ in range(2):
        retried = world.retry()
        assert (retried.written, retried.newer, retried.left) == (0, 0, 2)
        assert all("does not fit" in reason for reason in retried.reasons)
        assert world.sql("SELECT key, total, count FROM orders ORDER BY key") == before
        to = destination_of(world.target)
        report = verify(world.client, ORDERS, to.target, position=to.stored, repair=True)
        assert not report.equal
        notes = {json.loads(each.key)["id"]: each.note for each in report.differences}
        assert notes.keys() == {"o-1", "o-8"}
        assert all("does not fit" in note for note in notes.values())
        decimal = "a decimal with 1 digits before the point and 3 after it that does not fit"
        assert decimal in {each.source_type for each in report.differences}
    world.put("o-1", total=Decimal("1.50"))
    world.put("o-8", total=8, count=3)
    assert world.run(prove=True).proof.equal


def test_a_declaration_that_rescues_lets_a_retry_write_the_row_although_no_change_comes(world):
    world.run(columns=Columns({"total": "int32"}))
    world.put("o-1", total="many")
    assert world.run().set_aside == 1
    assert world.retry().left == 1
    report = world.run(columns=Columns({"total": "int32"}, misfits="rescue"))
    assert (report.events, report.set_aside) == (0, 1)
    assert (world.retry().written, world.retry().left) == (1, 0)
    assert world.sql('SELECT total, _rescued FROM orders WHERE key = \'{"id":"o-1"}\'') == [
        (None, '{"total":{"path":["total"],"value":"many"}}')
    ]


def test_only_what_was_merged_is_counted(world):
    changed(world)
    told = []
    report = world.run(on_progress=told.append)
    assert (report.events, report.deletes, report.set_aside) == (2, 0, 2)
    assert told[-1].events == 2
    assert world.run(resync=True).events == 6  # of eight rows
    world.put("o-4", total=1, bad=True)
    world.store.delete("orders", "o-5")
    report = world.run()
    assert (report.events, report.deletes) == (1, 1)


def test_a_rescued_row_counts_once_beside_one_that_the_table_refuses(world):
    world.run(columns=Columns({"total": "int32"}, misfits="rescue"))
    world.refuse()
    world.put("o-1", total="many")
    world.put("o-2", total=2, bad=True)
    world.put("o-3", total="few")
    report = world.run()
    assert (report.events, report.rescued, report.set_aside) == (2, 2, 1)


def test_a_collection_with_and_without_its_database_is_one(world):
    changed(world)
    world.run()
    folder = SetAsideFolder(world.aside)
    assert len(folder.records(ResourceAddress(None, "orders"), destination_of(world.target).name)) == 2


def test_a_file_has_no_document_unless_it_is_asked_for(world):
    changed(world)
    world.put("o-1", total="geheim", bad=True)
    world.run()
    for file in world.aside.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "geheim" not in file.read_text()
        found = json.loads(file.read_bytes())
        assert {"v", "position", "key", "reason", "order_key"} <= found.keys()
        assert "document" not in found
    world.put("o-1", total="geheim", bad=True)
    world.run(set_aside_documents=True)
    assert any("geheim" in file.read_text() for file in world.aside.iterdir())


def test_without_a_folder_the_run_ends(world):
    changed(world)
    with pytest.raises(MulticloudDbError):
        mirror(world.client, ORDERS, world.target)


def test_a_delete_of_a_key_that_the_table_cannot_have_leaves_nothing_behind(world, server):
    target, key = f"postgres:{server.dsn}#long_keys", "k" * 3000

    def run():
        return mirror(world.client, ORDERS, target, set_aside=world.aside)

    run()
    world.put(key, total=1)
    world.store.delete("orders", key)
    world.put("o-1", total=100)
    report = run()
    assert (report.events, report.deletes, report.set_aside, list(world.aside.iterdir())) == (1, 0, 0, [])
    assert destination_of(target).found().mark.incomplete_since is None
    world.put(key, total=2)
    assert run().set_aside == 1
    world.store.delete("orders", key)
    assert (run().set_aside, list(world.aside.iterdir())) == (0, [])
    world.store.delete("orders", "o-2")
    world.put(key, total=3)
    world.store.delete("orders", key)
    world.put(key, total=4)
    assert run().set_aside == 1
    assert mirror(world.client, ORDERS, target).began == "position"  # nothing is refused again


def test_a_row_whose_document_was_deleted_counts_as_gone_and_not_as_written(world):
    changed(world)
    world.run()
    world.store.delete("orders", "o-9")
    retried = world.retry()
    assert (retried.written, retried.newer, retried.gone, retried.left) == (0, 0, 1, 1)
    assert world.keys() == {"o-1"}


def test_a_newer_row_is_never_replaced(world):
    changed(world)
    world.run()
    world.put("o-1", total=101)
    world.run()
    world.accept()
    world.store.delete("orders", "o-9")
    retried = world.retry()
    assert (retried.newer, retried.left) == (1, 0)
    assert world.rows() == {**GOOD, "o-1": 101}
    assert world.run(prove=True).proof.equal


def test_the_table_is_incomplete_until_it_is_proved(world):
    changed(world)
    world.run()
    assert destination_of(world.target).found().mark.incomplete_since is not None
    world.accept()
    report = world.run(prove=True)
    assert not report.proof.equal
    assert report.set_aside == 2
    world.retry()
    assert world.run(prove=True).proof.equal
    assert destination_of(world.target).found().mark.incomplete_since is None


def test_a_proof_says_which_differences_are_set_aside_and_where(world):
    changed(world)
    world.run()
    world.sql('UPDATE orders SET new_item_state = \'{"total":7}\' WHERE key = \'{"id":"o-6"}\'')
    proof = world.run(prove=True).proof
    notes = {json.loads(each.key)["id"]: each.note for each in proof.differences}
    aside = f"set aside in {world.aside}"
    assert notes == {"o-1": aside, "o-9": aside, "o-6": None}


def test_a_run_without_the_folder_knows_that_the_table_is_incomplete(world):
    changed(world)
    world.run()
    world.accept()
    report = mirror(world.client, ORDERS, world.target)
    assert report.incomplete_since is not None
    assert report.to_dict()["incomplete_since"] == report.incomplete_since
    world.retry()
    assert mirror(world.client, ORDERS, world.target, prove=True).incomplete_since is None


def test_a_proof_that_finds_the_table_equal_empties_the_folder(world):
    changed(world)
    world.run()
    world.put("o-1", total=1)
    world.store.delete("orders", "o-9")
    report = world.run(prove=True)
    assert report.proof.equal
    assert report.set_aside == 0


def test_too_many_end_the_run_before_its_position_moves(world):
    changed(world)
    with pytest.raises(MulticloudDbError, match="--max-set-aside") as caught:
        world.run(max_set_aside=1)
    assert caught.value.category is ErrorCategory.PERMANENT_FAILURE
    world.accept()
    # One may have come on an earlier page.
    assert world.run().set_aside <= 1
    assert world.retry().left == 0
    assert world.rows() == ALL


def test_a_page_of_which_the_table_refuses_every_row_does_not_end_the_run(world):
    world.run()
    world.refuses = lambda text: '"total":-' in text
    for number in range(3):
        world.put(f"o-{number}", total=-1)
    world.put("o-2", total=-2)
    world.put("o-5", total=50)
    report = world.run()
    assert (report.set_aside, len(world.keys())) == (3, 3)  # rows, and one of them has two changes
    assert len(SetAsideFolder(world.aside).records(ORDERS, destination_of(world.target).name)) == 4
    assert world.rows()["o-5"] == 50
    world.accept()
    assert world.retry().left == 0
    assert world.run(prove=True).proof.equal


def test_a_table_that_refuses_every_row_is_no_matter_of_rows(world):
    world.run()
    world.sql("UPDATE multiclouddb_marks SET value = replace(value, 'orders', 'people')")
    for number in range(3):
        world.put(f"o-{number}", total=-1)
    with pytest.raises(MulticloudDbError, match="people"):
        world.run()
    assert not world.keys()


def test_a_copy_keeps_the_row_of_a_document_that_the_table_refuses(world):
    changed(world)
    report = world.run(resync=True)
    assert (report.began, report.set_aside) == ("snapshot", 2)
    assert world.rows() == GOOD
    world.accept()
    assert world.retry().left == 0
    assert world.rows() == ALL
    assert world.run(prove=True).proof.equal


@pytest.mark.parametrize("resync", [False, True])
def test_killed_at_each_step_nothing_that_was_set_aside_is_lost(world, resync):
    changed(world)
    world.keep()
    world.run(resync=resync)
    whole = world.steps
    assert whole > 10
    for moment in range(whole):
        world.restore()
        with pytest.raises(Death):
            world.run(dies_at=moment, resync=resync)
        world.run()
        assert (world.rows(), world.keys()) == (GOOD, {"o-1", "o-9"}), moment


def test_killed_at_each_step_a_retry_loses_nothing(world):
    changed(world)
    world.run()
    world.accept()
    world.keep()
    world.retry()
    whole = world.steps
    assert whole > 6
    for moment in range(whole):
        world.restore()
        with pytest.raises(Death):
            world.retry(dies_at=moment)
        lacks = {key for key in ("o-1", "o-9") if world.rows().get(key) != ALL[key]}
        assert lacks <= world.keys(), moment
        world.retry()
        assert (world.rows(), world.keys()) == (ALL, set()), moment


def test_a_file_that_a_retry_removes_meanwhile_is_no_record_any_more(world, monkeypatch):
    changed(world)
    world.run()
    folder = SetAsideFolder(world.aside)
    record, *_ = folder.records(ORDERS, destination_of(world.target).name)
    read = type(world.aside).read_bytes

    def reading(file):
        file.unlink()
        return read(file)

    monkeypatch.setattr(type(world.aside), "read_bytes", reading)
    assert folder.records(ORDERS, record.target) == []
