"""A table is compared with the collection of its mark, and with no other one."""

import shutil

import attrs
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.table import TableMerger

from multiclouddb_api import Beginning, ChangeFeedRequest, ErrorCategory, MulticloudDbError
from multiclouddb_embedded import Put
from multiclouddb_tables.delta_log import MARK
from multiclouddb_verify import DeltaTarget, DifferenceKind, Outcome
from pyspark_multiclouddb import merge_into_delta

from .tables import Shop, key_of, plant

FIRST_LOOK = 1
"""The number of the call that looks at the table first."""
SINCE = "2026-01-02T03:04:05Z"


@pytest.fixture
def shop(tmp_path):
    with Shop(tmp_path) as shop:
        yield shop


def without_mark(where, copy):
    """Copy a table to one that no sink has marked; return its path."""
    rows = DeltaTable(where).to_pyarrow_dataset().scanner(use_threads=False).to_table()
    DeltaTable.create(copy, rows.schema)
    write_deltalake(copy, rows, mode="append")
    assert DeltaTarget(copy).found().mark is None
    return copy


def unmark(shop):
    """Let the table be one that no sink has marked."""
    shop.table = without_mark(shop.table, shop.folder / "unmarked")


def set_mark(shop, **changes):
    mark = attrs.evolve(DeltaTarget(shop.table).found().mark, **changes)
    DeltaTable(shop.table).alter.set_table_properties({MARK: mark.to_json()}, raise_if_not_exists=False)


def other_collection(shop, count):
    """Fill a table from another collection; return it, and its rows."""
    address = shop.store.create_collection("customers", partitions=2)
    shop.store.batch("customers", [Put(f"c-{number}", {"n": number}) for number in range(count)])
    where = shop.folder / "customers"
    request = ChangeFeedRequest(address, Beginning())
    for page in shop.client.iterate_changes(request, until_idle=True).pages():
        merge_into_delta(page, None, where, None)
    return where


def rows_of(where):
    rows = DeltaTable(where).to_pyarrow_dataset().scanner(use_threads=False).to_table()
    return sorted(map(repr, rows.to_pylist()))


def refused(shop, text, where=None, **settings):
    shop.table = where or shop.table
    before = rows_of(shop.table)
    with pytest.raises(MulticloudDbError, match=text) as caught:
        shop.verify(**settings)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert rows_of(shop.table) == before
    assert not (shop.folder / "state" / "state.db").exists()


class TestForeign:
    @pytest.mark.parametrize("repair", [False, True])
    @pytest.mark.parametrize("force", [False, True])
    @pytest.mark.parametrize("adopt", [False, True])
    @pytest.mark.parametrize("count", [0, 1, 60])
    def test_the_table_of_another_collection_is_refused_whatever_is_passed(
        self, count, adopt, force, repair, shop
    ):
        where = other_collection(shop, count + 1)
        text = "is the table of embedded main/customers, and not of embedded main/orders"
        refused(shop, text, where, repair=repair, force=force, adopt=adopt)

    def test_the_table_of_the_collection_before_it_was_created_again_is_refused(self, shop):
        shop.store.drop_collection("orders")
        shop.store.create_collection("orders", partitions=2)
        request = ChangeFeedRequest(shop.address, Beginning())
        token = shop.client.read_changes(request).continuation_token
        refused(shop, "dropped and created again", position=token, repair=True)

    def test_a_mark_without_incarnation_is_that_of_any(self, shop):
        mark = DeltaTarget(shop.table).found().mark
        set_mark(shop, source=attrs.evolve(mark.source, incarnation=None))
        assert shop.verify().equal

    def test_it_is_the_same_collection_however_it_is_named(self, shop):
        shop.address = "orders"
        assert shop.verify().equal


class TestUnmarked:
    def test_is_refused_without_adopt(self, shop):
        unmark(shop)
        refused(shop, "has no mark of a sink.*--adopt", repair=True)

    def test_is_compared_and_repaired_with_adopt(self, shop):
        unmark(shop)
        plant(shop.table, key_of(shop.names[3]), DifferenceKind.STALE)
        assert shop.verify(adopt=True).counts.differences == {DifferenceKind.STALE: 1}
        assert shop.verify(adopt=True, repair=True).equal

    @pytest.mark.parametrize("is_wrong", ["other keys", "missing", "stale"])
    def test_that_looks_foreign_is_refused_unless_it_is_forced(self, is_wrong, shop):
        match is_wrong:
            case "other keys":
                DeltaTable(shop.table).update(
                    updates={"key": "replace(key, 'o-', 'c-')"}, predicate="key like '%o-%'"
                )
            case "missing":
                DeltaTable(shop.table).delete("key like '%0%'")
            case "stale":
                DeltaTable(shop.table).update(updates={"new_item_state": """'{"n":"x"}'"""})
        unmark(shop)
        with pytest.raises(MulticloudDbError, match="looks like the table of another collection"):
            shop.verify(adopt=True, repair=True)
        assert shop.verify(adopt=True, repair=True, force=True).equal
        shop.check_equal()

    def test_ghosts_alone_can_make_it_look_foreign(self, tmp_path):
        with Shop(tmp_path, 10) as shop:
            for number in range(11):
                plant(shop.table, key_of(f"c-{number}"), DifferenceKind.GHOST)
            unmark(shop)
            with pytest.raises(MulticloudDbError, match=r"11 of 21 keys"):
                shop.verify(adopt=True)

    def test_fewer_than_20_keys_prove_nothing(self, tmp_path):
        with Shop(tmp_path, 19) as shop:
            DeltaTable(shop.table).delete()
            unmark(shop)
            assert shop.verify(adopt=True).counts.differences == {DifferenceKind.MISSING: 19}

    def test_a_marked_one_is_that_of_its_collection_whatever_it_contains(self, shop):
        DeltaTable(shop.table).delete()
        assert shop.verify(repair=True).equal


class TestReplaced:
    """Somebody makes another table under the name while `verify` runs."""

    @pytest.mark.parametrize("is_marked", [False, True])
    @pytest.mark.parametrize(
        ("phase", "repair"), [("scan", True), ("table", False), ("rounds", False), ("repair", True)]
    )
    def test_nothing_is_written_into_it_and_it_gets_no_verdict(self, phase, repair, is_marked, shop):
        other = other_collection(shop, 40)
        if not is_marked:
            other = without_mark(other, shop.folder / "unmarked")
        plant(shop.table, key_of(shop.names[3]), DifferenceKind.MISSING)
        before, replaced = rows_of(other), []

        def replace(told):
            if told.phase == phase and not replaced:
                replaced.append(True)
                shutil.rmtree(shop.table)
                shutil.copytree(other, shop.table)

        text = "is the table of" if is_marked else "was replaced meanwhile by a table without a mark"
        with pytest.raises(MulticloudDbError, match=text) as caught:
            shop.verify(repair=repair, force=True, on_progress=replace, adopt=True, record=True)
        assert replaced
        assert caught.value.category == ErrorCategory.INVALID_REQUEST
        assert rows_of(shop.table) == before


class Swapped:
    """A target whose table is swapped directly before one of the calls to it."""

    def __init__(self, target, at, swap):
        self.target, self.at, self.swap, self.name = target, at, swap, target.name

    def _call(self, name, *arguments, **settings):
        if self.at == 0:
            self.swap()
        self.at -= 1
        return getattr(self.target, name)(*arguments, **settings)

    def columns(self):
        return self._call("columns")

    def rows(self, *arguments, **settings):
        yield from self._call("rows", *arguments, **settings)

    def position(self):
        return self._call("position")

    def found(self, *arguments):
        return self._call("found", *arguments)

    def complete(self, *arguments):
        self._call("complete", *arguments)

    def fix(self, *arguments):
        return self._call("fix", *arguments)

    def record(self, *arguments):
        self._call("record", *arguments)


class TestSwapped:
    """The table is swapped between any two steps of a comparison that repairs and records."""

    def made_again(self, shop):
        """The same feed fills another table at the path, which lacks the same row."""
        copy = shop.folder / "copy"
        rows = DeltaTable(shop.table).to_pyarrow_dataset().scanner(use_threads=False).to_table()
        mark = {MARK: DeltaTarget(shop.table).found().mark.to_json()}
        DeltaTable.create(copy, rows.schema, configuration=mark, raise_if_key_not_exists=False)
        write_deltalake(copy, rows, mode="append")

        def swap():
            shutil.rmtree(shop.table)
            shutil.copytree(copy, shop.table)

        return swap

    def restored(self, shop):
        table = DeltaTable(shop.table)
        version = table.version()
        table.update(updates={"new_item_state": "new_item_state"})

        def swap():
            DeltaTable(shop.table).restore(version)

        return swap

    @pytest.mark.parametrize("how", [made_again, restored])
    def test_it_is_not_written_and_gets_no_verdict(self, how, shop):
        plant(shop.table, key_of(shop.names[3]), DifferenceKind.MISSING)
        set_mark(shop, incomplete_since=SINCE)
        at, kept = 0, shop.folder / "kept"
        shutil.copytree(shop.table, kept)
        while True:
            shutil.rmtree(shop.table)
            shutil.copytree(kept, shop.table)
            shutil.rmtree(shop.folder / "copy", ignore_errors=True)
            swap, after = how(self, shop), []

            def swapped(swap=swap, after=after):
                swap()
                after.append((rows_of(shop.table), DeltaTable(shop.table).version()))

            target = Swapped(DeltaTarget(shop.table), at, swapped)
            try:
                report = shop.verify(target=target, repair=True, record=True)
            except MulticloudDbError as error:
                if error.category != ErrorCategory.INVALID_REQUEST:
                    raise
                assert after == [(rows_of(shop.table), DeltaTable(shop.table).version())]
            else:
                # Before the first look at it, it is the table that is compared; or nobody has swapped it.
                assert report.equal
                assert at <= FIRST_LOOK or not after
            if not after:
                break
            at += 1
        assert at >= 10

    def test_not_even_between_the_last_look_and_the_commit(self, shop, monkeypatch):
        plant(shop.table, key_of(shop.names[3]), DifferenceKind.MISSING)
        execute, swap = TableMerger.execute, self.restored(shop)

        def call(merger):
            monkeypatch.setattr(TableMerger, "execute", execute)
            swap()
            return execute(merger)

        monkeypatch.setattr(TableMerger, "execute", call)
        with pytest.raises(MulticloudDbError, match="went back to an earlier version"):
            shop.verify(repair=True)
        assert DeltaTable(shop.table).history(1)[0]["operation"] == "RESTORE"

    def test_another_commit_of_the_sink_does_not_disturb(self, shop):
        plant(shop.table, key_of(shop.names[3]), DifferenceKind.MISSING)
        for at in (1, 7):
            shop.store.batch("orders", [Put(shop.names[-1], {"n": at})])
            assert shop.verify(target=Swapped(DeltaTarget(shop.table), at, shop.follow), repair=True).equal


def test_a_log_that_does_not_show_what_happened_proves_nothing(shop):
    before = DeltaTarget(shop.table).found()
    for number in range(3):
        plant(shop.table, key_of(shop.names[number]), DifferenceKind.STALE)
    assert not DeltaTarget(shop.table).found(before).went_back
    table = DeltaTable(shop.table)
    table.create_checkpoint()
    for version in range(table.version()):
        (shop.table / "_delta_log" / f"{version:020d}.json").unlink()
    assert DeltaTarget(shop.table).found(before).went_back


def test_by_default_a_tenth_of_the_rows_is_repaired_and_at_least_100(tmp_path):
    with Shop(tmp_path, 1100) as shop:
        for count, is_repaired in ((111, False), (110, True)):
            DeltaTable(shop.table).delete(f"key < '{key_of(shop.names[count])}'")
            report = shop.verify(repair=True)
            assert (report.equal, report.refused is None) == (is_repaired, is_repaired)
            if not is_repaired:
                assert shop.verify(repair=True, max_repairs=count).equal
    (tmp_path / "small").mkdir()
    with Shop(tmp_path / "small", 101) as shop:
        DeltaTable(shop.table).delete(f"key < '{key_of(shop.names[100])}'")
        assert shop.verify(repair=True).equal


class TestIncomplete:
    @pytest.mark.parametrize(
        ("settings", "is_left"),
        [
            ({}, True),
            ({"record": True}, False),
            ({"repair": True}, False),
            ({"repair": True, "sample": 2}, True),
        ],
    )
    def test_only_an_equal_verdict_that_may_write_clears_the_mark(self, settings, is_left, shop):
        set_mark(shop, incomplete_since=SINCE)
        report = shop.verify(**settings)
        assert report.equal
        assert report.incomplete_since == (SINCE if is_left else None)
        assert (report.outcome, report.exit_code) == ((Outcome.BEHIND, 13) if is_left else (Outcome.EQUAL, 0))
        mark = DeltaTarget(shop.table).found().mark
        assert mark.incomplete_since == report.incomplete_since
        assert mark.columns

    def test_a_difference_that_is_left_keeps_it_and_comes_first(self, shop):
        set_mark(shop, incomplete_since=SINCE)
        plant(shop.table, key_of(shop.names[3]), DifferenceKind.STALE)
        report = shop.verify(repair=True, max_repairs=0)
        assert (report.outcome, report.incomplete_since) == (Outcome.DIFFERENT, SINCE)
        assert DeltaTarget(shop.table).found().mark.incomplete_since == SINCE

    def test_a_gap_that_the_sink_skips_meanwhile_stays(self, shop):
        set_mark(shop, incomplete_since=SINCE)
        later = "2026-02-02T03:04:05Z"
        report = shop.verify(
            record=True,
            on_progress=lambda told: told.phase == "compare" and set_mark(shop, incomplete_since=later),
        )
        assert report.equal
        assert DeltaTarget(shop.table).found().mark.incomplete_since == later
