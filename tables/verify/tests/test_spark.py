"""`verify_with_spark` on a Delta table; the report is that of `verify`."""

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import attrs
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import AnalysisException
from pyspark.sql.classic.dataframe import DataFrame

from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_conformance.refusals import refusal
from multiclouddb_tables import Columns
from multiclouddb_tables.delta_log import MARK
from multiclouddb_verify import DeltaTarget, DifferenceKind, Outcome, stored_position
from pyspark_multiclouddb import verify_with_spark

from .tables import NAME, VALUES, Busy, Shop, key_of

STALE, MISSING, GHOST = DifferenceKind.STALE, DifferenceKind.MISSING, DifferenceKind.GHOST
PROGRAM = Path(__file__).with_name("program.py")
pytestmark = pytest.mark.xdist_group("jvm")


class SparkShop(Shop):
    """A shop whose table is compared by Spark."""

    spark = None

    def verify_with_spark(self, **settings):
        settings = {"state": self.folder / "spark", "patience_seconds": 30.0, "segments": 3, **settings}
        position = stored_position(self.checkpoints, NAME)
        target = DeltaTarget(self.table)
        return verify_with_spark(
            self.spark, self.client, self.address, target, **{"position": position, **settings}
        )

    def check_same(self, **settings):
        """Compare in both ways; return the report."""
        found = self.verify_with_spark(**settings)
        assert said(found) == said(self.verify(**settings))
        return found


def said(report):
    """Return what two comparisons of one table have in common."""
    told = report if isinstance(report, dict) else report.to_dict()
    return told | {"cost": told["cost"] | {"seconds": None, "state_bytes": None}}


def kinds(differences):
    return {each.key: each.kind for each in differences}


@pytest.fixture
def make(spark, tmp_path):
    made = []

    def shop(*arguments):
        made.append(SparkShop(tmp_path, *arguments))
        made[0].spark = spark
        return made[0]

    yield shop
    for each in made:
        each.__exit__()


@pytest.fixture
def shop(make):
    return make()


def test_report_is_that_of_verify_for_each_kind_and_a_table_that_is_equal(shop):
    shop.store.delete("orders", shop.names.pop())
    shop.follow()
    report = shop.check_same()
    assert (report.equal, report.counts.equal, report.cost.rows) == (True, 59, 59)
    faults = shop.plant(*shop.names[40:])
    assert set(faults.values()) == set(DifferenceKind)
    report = shop.check_same(show_values=True)
    assert kinds(report.differences) == faults
    # The ghost and the row with a foreign key are rows of no document.
    assert report.counts.equal == 59 - len(faults) + 2


def test_declared_columns_and_tombstones_are_compared_and_repaired(make):
    columns = Columns({"n": "int64", "v": "json", "name": {"key": "id", "type": "string"}}, misfits="rescue")
    shop = make(60, None, columns)
    shop.store.put("orders", shop.names[0], {"n": "a text"})
    shop.store.delete("orders", shop.names[1])
    shop.follow()
    assert shop.check_same().equal
    faults = {
        0: {"_rescued": "NULL"}, 1: {"n": "1"}, 2: {"n": "-1"}, 3: {"v": "'null'"}, 4: {"name": "NULL"},
        5: {"new_item_state": "'{}'"},
    }  # fmt: skip
    for at, updates in faults.items():
        DeltaTable(shop.table).update(updates=updates, predicate=f"key = '{key_of(shop.names[at])}'")
    found = kinds(shop.check_same().differences)
    assert found == {key_of(shop.names[at]): GHOST if at == 1 else STALE for at in faults}
    repaired = shop.verify_with_spark(repair=True)
    assert (repaired.equal, repaired.counts.repaired) == (True, len(faults))
    assert shop.check_same().equal


def test_finds_and_repairs_exactly_what_was_planted_beside_a_writer_and_the_sink(shop):
    faults = shop.plant(*shop.names[40:])
    with Busy(shop, shop.names[:40]):
        report = shop.verify_with_spark()
        assert kinds(report.differences) == faults
        assert report.counts.unsettled == 0
        repaired = shop.verify_with_spark(repair=True)
        assert (repaired.equal, kinds(repaired.repaired)) == (True, faults)
    shop.follow()
    shop.check_equal()
    assert shop.verify_with_spark(repair=True).counts.repaired == 0


def test_a_sink_that_does_not_reach_a_changed_key_is_behind(shop):
    shop.store.put("orders", shop.names[5], {"n": -1})
    shop.store.put("orders", "new", {"n": -1})
    shop.store.delete("orders", shop.names[6])
    report = shop.verify_with_spark(patience_seconds=0.5)
    assert (report.differences, report.counts.equal) == ((), 58)
    assert (report.outcome, report.exit_code, report.unsettled) == (Outcome.BEHIND, 13, ())
    assert set(report.behind) == {key_of(shop.names[5]), key_of(shop.names[6]), key_of("new")}


def test_a_sample_and_a_transform(make):
    def columns(document):
        return {"n": document["n"], "kind": type(document.get("v")).__name__}

    shop = make(60, columns)
    DeltaTable(shop.table).update(updates={"n": "-1"}, predicate="n < 20")
    assert shop.check_same(transform=columns).counts.differences == {DifferenceKind.STALE: 20}
    assert 0 < shop.check_same(transform=columns, sample=2).counts.differences[DifferenceKind.STALE] < 20
    assert shop.verify_with_spark(transform=columns, repair=True).counts.repaired == 20
    assert shop.check_same(transform=columns).equal


def test_an_empty_collection(make):
    shop = make(3)
    for name in shop.names:
        shop.store.delete("orders", name)
    shop.follow()
    assert shop.check_same().equal
    shop.plant("any", kinds=[DifferenceKind.GHOST])
    assert shop.check_same().counts.differences == {DifferenceKind.GHOST: 1}


@pytest.mark.parametrize("phase", ["scan", "compare", "rounds"])
def test_killed_the_next_one_has_the_answer_of_today_in_either_way(shop, phase):
    faults = shop.plant(*shop.names[40:])

    def die(progress):
        if progress.phase == phase:
            raise KeyboardInterrupt

    for goes_on in (shop.verify_with_spark, partial(shop.verify, resume=True)):
        with pytest.raises(KeyboardInterrupt):
            shop.verify_with_spark(on_progress=die)
        faults |= shop.plant(shop.names[30 + len(faults)], kinds=[DifferenceKind.STALE])
        report = goes_on(state=shop.folder / "spark")
        assert (kinds(report.differences), report.cost.rows) == (faults, 60)
        assert "was removed" in report.left_over
        assert ("gone with" in report.left_over) is (goes_on == shop.verify_with_spark)


@pytest.mark.parametrize("given", [{"resume": True}, {"resume": False}, {"transform_name": "x"}])
def test_what_serves_to_resume_is_refused(shop, given):
    with pytest.raises(MulticloudDbError, match="cannot be resumed") as caught:
        shop.verify_with_spark(**given)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST


def test_table_without_mark_that_looks_foreign_is_refused_unless_it_is_forced(shop, monkeypatch):
    found = DeltaTarget.found
    monkeypatch.setattr(
        DeltaTarget, "found", lambda target, *since: attrs.evolve(found(target, *since), mark=None)
    )
    DeltaTable(shop.table).update(updates={"new_item_state": """'{"other":1}'"""})
    with pytest.raises(MulticloudDbError, match="has no mark of a sink"):
        shop.verify_with_spark(repair=True)
    with pytest.raises(MulticloudDbError, match="looks like the table of another collection"):
        shop.verify_with_spark(repair=True, adopt=True)
    assert shop.verify_with_spark(repair=True, adopt=True, force=True).equal


@pytest.mark.parametrize("phase", ["compare", "repair"])
def test_a_table_that_is_replaced_meanwhile_is_not_written_and_gets_no_verdict(shop, phase):
    shop.plant(*shop.names[:8])
    copy, replaced = shop.folder / "copy", []
    rows = DeltaTable(shop.table).to_pyarrow_table()
    mark = {MARK: DeltaTarget(shop.table).found().mark.to_json()}
    DeltaTable.create(copy, rows.schema, configuration=mark, raise_if_key_not_exists=False)
    write_deltalake(copy, rows, mode="append")

    def replace(told):
        if told.phase == phase and not replaced:
            replaced.append(DeltaTable(copy).version())
            shutil.rmtree(shop.table)
            shutil.copytree(copy, shop.table)

    with pytest.raises(MulticloudDbError) as caught:
        shop.verify_with_spark(repair=True, record=True, on_progress=replace)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert "was replaced meanwhile" in caught.value.message
    assert [DeltaTable(shop.table).version()] == replaced


def test_an_error_of_a_task_is_the_error_of_verify(shop):
    DeltaTable(shop.table).update(updates={"key": "NULL"}, predicate=f"key = '{key_of(shop.names[3])}'")
    with pytest.raises(MulticloudDbError, match="without key") as caught:
        shop.verify_with_spark()
    assert caught.value.category == ErrorCategory.INVALID_REQUEST


@pytest.mark.parametrize("repair", [False, True])
def test_a_record_that_cannot_be_decoded_hides_no_other_one(shop, repair):
    faults = shop.plant(*shop.names[10:13], kinds=[STALE, MISSING, GHOST])
    gone = shop.names[20]
    DeltaTable(shop.table).delete(f"key = '{key_of(gone)}'")
    shop.damage("documents", shop.names[5])
    shop.damage("documents", gone)
    report = shop.verify_with_spark(repair=repair)
    assert kinds(report.repaired if repair else report.differences) == faults
    assert report.exit_code == (12 if repair else 11)
    assert report.counts.equal == len(shop.names) - 4 + (2 if repair else 0)
    assert key_of(shop.names[5]) in report.unsettled
    assert sum("cannot be decoded" in reason for reason in report.reasons.values()) >= 2
    assert report.verified_through is None


def test_a_change_that_cannot_be_decoded(shop):
    shop.store.put("orders", shop.names[5], {"n": "after"})
    shop.store.put("orders", shop.names[5], {"n": 5, "v": VALUES[5]})
    shop.damage("log", shop.names[5])
    report = shop.verify_with_spark(patience_seconds=0.0)
    assert (report.differences, report.exit_code) == ((), 12)
    assert report.counts.equal >= len(shop.names) - 1
    assert any("cannot be decoded" in reason for reason in report.reasons.values())


def test_a_key_whose_last_change_cannot_be_decoded_is_not_known(shop):
    shop.store.put("orders", shop.names[5], {"n": "after"})
    shop.damage("log", shop.names[5])
    report = shop.verify_with_spark()
    assert (report.differences, report.exit_code) == ((), 12)
    assert "may be the key of a change" in report.reasons[key_of(shop.names[5])]


def test_a_platform_that_refuses_persist_is_named(shop, monkeypatch):
    def persist(*_):
        raise AnalysisException("[NOT_SUPPORTED_WITH_SERVERLESS] PERSIST TABLE is not supported")

    monkeypatch.setattr(DataFrame, "persist", persist)
    refusal(ErrorCategory.UNSUPPORTED_CAPABILITY, shop.verify_with_spark, "persist", "use verify")


def test_a_target_without_parts_is_refused(shop):
    with pytest.raises(MulticloudDbError, match="pass DeltaTarget"):
        verify_with_spark(shop.spark, shop.client, shop.address, str(shop.table), position="x")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_rows_give_the_report_of_verify_and_need_no_more_memory_of_the_driver(tmp_path):
    peaks = []
    for count in (100_000, 1_000_000):
        folder = tmp_path / str(count)
        folder.mkdir()
        with Shop(folder, count) as shop:
            faults = shop.plant(*shop.names[:: count // 50])
            command = [sys.executable, str(PROGRAM), "spark", str(folder), "8"]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            assert ran.returncode == 0, ran.stderr
            told = json.loads(ran.stdout)
            report = shop.verify()
        assert kinds(report.differences) == faults
        assert said(told["report"]) == said(report)
        peaks.append(told["rss"])
    print(*(f"{peak >> 20} MiB" for peak in peaks))  # noqa: T201
    assert peaks[1] < peaks[0] + (32 << 20)
