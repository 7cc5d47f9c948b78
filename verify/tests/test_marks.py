"""A table is compared with the collection of its mark, and with no other one."""

import shutil

import attrs
import pytest
from deltalake import DeltaTable

from multiclouddb_api import Beginning, ChangeFeedRequest, ErrorCategory, MulticloudDbError
from multiclouddb_embedded import Put
from multiclouddb_verify import DeltaTarget, Kind, Outcome
from multiclouddb_verify.delta import MARK
from pyspark_multiclouddb import merge_into_delta

from .tables import Shop, key_of, plant

SINCE = "2026-01-02T03:04:05Z"


@pytest.fixture
def shop(tmp_path):
    with Shop(tmp_path) as shop:
        yield shop


def without_mark(where, copy):
    """Copy a table to one that no sink has marked; return its path."""
    rows = DeltaTable(where).to_pyarrow_dataset().scanner(use_threads=False).to_table()
    DeltaTable.create(copy, rows.schema)
    from deltalake import write_deltalake

    write_deltalake(copy, rows, mode="append")
    assert DeltaTarget(copy).mark() is None
    return copy


def unmark(shop):
    """Let the table be one that no sink has marked."""
    shop.table = without_mark(shop.table, shop.folder / "unmarked")


def set_mark(shop, **changes):
    mark = attrs.evolve(DeltaTarget(shop.table).mark(), **changes)
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
        mark = DeltaTarget(shop.table).mark()
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
        plant(shop.table, key_of(shop.names[3]), Kind.STALE)
        assert shop.verify(adopt=True).counts.differences == {Kind.STALE: 1}
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
                plant(shop.table, key_of(f"c-{number}"), Kind.GHOST)
            unmark(shop)
            with pytest.raises(MulticloudDbError, match=r"11 of 21 keys"):
                shop.verify(adopt=True)

    def test_fewer_than_20_keys_prove_nothing(self, tmp_path):
        with Shop(tmp_path, 19) as shop:
            DeltaTable(shop.table).delete()
            unmark(shop)
            assert shop.verify(adopt=True).counts.differences == {Kind.MISSING: 19}

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
        plant(shop.table, key_of(shop.names[3]), Kind.MISSING)
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
        mark = DeltaTarget(shop.table).mark()
        assert mark.incomplete_since == report.incomplete_since
        assert mark.columns

    def test_a_difference_that_is_left_keeps_it_and_comes_first(self, shop):
        set_mark(shop, incomplete_since=SINCE)
        plant(shop.table, key_of(shop.names[3]), Kind.STALE)
        report = shop.verify(repair=True, max_repairs=0)
        assert (report.outcome, report.incomplete_since) == (Outcome.DIFFERENT, SINCE)
        assert DeltaTarget(shop.table).mark().incomplete_since == SINCE

    def test_a_gap_that_the_sink_skips_meanwhile_stays(self, shop):
        set_mark(shop, incomplete_since=SINCE)
        later = "2026-02-02T03:04:05Z"
        report = shop.verify(
            record=True,
            on_progress=lambda told: told.phase == "compare" and set_mark(shop, incomplete_since=later),
        )
        assert report.equal
        assert DeltaTarget(shop.table).mark().incomplete_since == later
