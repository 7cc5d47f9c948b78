"""`verify` and `repair` on a Delta table, beside an application and a sink."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import attrs
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from multiclouddb_api import (
    ErrorCategory,
    FileCheckpointStore,
    MulticloudDbClient,
    MulticloudDbError,
    encode_json,
)
from multiclouddb_embedded import Delete, Put
from multiclouddb_tables import delta
from multiclouddb_verify import Counts, DeltaTarget, DifferenceKind, stored_position, verify

from .tables import NAME, Busy, Shop, documents, key_of, plant

PROGRAM = Path(__file__).with_name("program.py")


@pytest.fixture
def shop(tmp_path):
    with Shop(tmp_path) as shop:
        yield shop


def kinds(differences):
    return {each.key: each.kind for each in differences}


class TestFound:
    def test_a_table_of_every_type_is_equal(self, shop):
        shop.store.delete("orders", shop.names.pop())
        shop.follow()
        report = shop.verify()
        assert report.equal
        assert report.verified_through == shop.checkpoints.load(NAME).token
        assert report.counts == Counts(59, 0, 0, {}, behind=0, expected_ghosts=0, expected_missing=0)
        assert (report.cost.rows, report.cost.looked_up) == (59, 0)

    def test_a_scan_asks_for_pages_of_thousands_of_rows(self, shop, monkeypatch):
        """A service's own page may have a hundred; each page costs the same work beside its rows."""
        sizes, read = [], MulticloudDbClient.read_changes

        def counted(client, request, options=None):
            page = read(client, request, options)
            sizes.extend([request.max_page_size] * any(event.backfilled for event in page.events))
            return page

        monkeypatch.setattr(MulticloudDbClient, "read_changes", counted)
        assert shop.verify().equal
        assert sizes
        assert min(sizes) >= 1000

    def test_each_kind_is_found_and_repaired_beside_the_sink(self, shop):
        faults = shop.plant(*shop.names[40:])
        with Busy(shop, shop.names[:40]):
            report = shop.verify()
            assert kinds(report.differences) == faults
            assert report.counts.unsettled == 0
            repaired = shop.verify(repair=True)
            assert (repaired.equal, kinds(repaired.repaired)) == (True, faults)
            assert shop.verify(repair=True).counts.repaired == 0
        shop.follow()
        shop.check_equal()

    def test_a_difference_names_path_and_types_and_values_only_when_asked(self, shop):
        plant(shop.table, key_of(shop.names[3]), DifferenceKind.STALE)
        [found] = shop.verify().differences
        assert (found.path, found.source_type, found.target_type) == ("$.n", "int", "str")
        assert "other" not in repr(found)
        [found] = shop.verify(show_values=True).differences
        assert (found.source_value, found.target_value) == (3, "other")

    def test_an_empty_collection(self, shop):
        for name in shop.names:
            shop.store.delete("orders", name)
        shop.follow()
        assert shop.verify().equal
        plant(shop.table, key_of("ghost"), DifferenceKind.GHOST)
        assert kinds(shop.verify().differences) == {key_of("ghost"): DifferenceKind.GHOST}
        assert shop.verify(repair=True).equal

    def test_a_column_of_others_is_left_alone_and_named(self, shop):
        table = DeltaTable(shop.table)
        table.alter.add_columns([table.schema().fields[0].__class__("note", "string")])
        table.update(updates={"note": "'theirs'"})
        name = key_of(shop.names[3])
        table.update(updates={"new_item_state": "'{}'"}, predicate=f"key = '{name}'")
        report = shop.verify(repair=True)
        assert (report.equal, report.counts.repaired, report.not_compared) == (True, 1, ("note",))
        assert {*DeltaTable(shop.table).to_pyarrow_table(columns=["note"])["note"].to_pylist()} == {"theirs"}

    def test_own_columns_are_compared_and_repaired_with_transform(self, tmp_path):
        def columns(document):
            return {"n": document["n"], "kind": type(document.get("v")).__name__}

        with Shop(tmp_path, 30, transform=columns) as shop:
            assert shop.verify(transform=columns).equal
            damaged = DeltaTable(shop.table)
            damaged.update(updates={"n": "-1"}, predicate=f"key = '{key_of(shop.names[3])}'")
            damaged.delete(f"key = '{key_of(shop.names[4])}'")
            with Busy(shop, shop.names[10:]):
                report = shop.verify(transform=columns, repair=True)
            assert (report.equal, report.counts.repaired) == (True, 2)
            shop.follow()
            assert shop.verify(transform=columns).equal

    def test_record_is_a_commit_and_nothing_else_is_written(self, shop):
        version = DeltaTable(shop.table).version()
        assert shop.verify().equal
        assert DeltaTable(shop.table).version() == version
        report = shop.verify(record=True)
        [commit] = DeltaTable(shop.table).history(1)
        assert commit["multiclouddb.verified_through"] == report.verified_through

    def test_a_sample_proves_nothing_of_all_rows(self, shop):
        version = DeltaTable(shop.table).version()
        report = shop.verify(sample=2, record=True)
        assert (report.equal, report.verified_through, report.verified_at) == (True, None, None)
        assert DeltaTable(shop.table).version() == version

    def test_report_is_json(self, shop):
        plant(shop.table, key_of(shop.names[3]), DifferenceKind.MISSING)
        told = json.loads(json.dumps(shop.verify().to_dict()))
        assert told["counts"]["differences"] == {"missing": 1}

    def test_too_many_differences_are_not_repaired(self, shop):
        shop.plant(*shop.names, kinds=[DifferenceKind.MISSING, DifferenceKind.STALE, DifferenceKind.BLOCKED])
        report = shop.verify(repair=True, max_repairs=2)
        assert "max_repairs" in report.refused
        assert (sum(report.counts.differences.values()), report.counts.repaired) == (3, 0)
        assert shop.verify(repair=True, max_repairs=2, force=True).equal


class TestDamaged:
    """Rows that no sink writes."""

    @pytest.mark.parametrize("depth", [300, 5000])
    def test_a_text_that_is_nested_too_deep_is_unreadable(self, shop, depth):
        key = key_of(shop.names[3])
        update(shop, key, new_item_state="'" + "[" * depth + "]" * depth + "'")
        assert kinds(shop.verify().differences) == {key: DifferenceKind.UNREADABLE}
        assert shop.verify(repair=True).equal
        shop.check_equal()

    def test_a_row_without_order_key_is_blocked(self, shop):
        key = key_of(shop.names[3])
        update(shop, key, order_key="NULL")
        assert kinds(shop.verify().differences) == {key: DifferenceKind.BLOCKED}
        assert shop.verify(repair=True).equal
        shop.store.put("orders", shop.names[3], {"n": -1})
        shop.follow()
        shop.check_equal()

    def test_two_rows_without_order_key_become_one(self, shop):
        key = key_of(shop.names[3])
        plant(shop.table, key, DifferenceKind.DUPLICATE)
        update(shop, key, order_key="NULL")
        assert kinds(shop.verify().differences) == {key: DifferenceKind.DUPLICATE}
        assert shop.verify(repair=True).equal
        shop.check_equal()

    def test_a_row_without_key_is_named(self, shop):
        update(shop, key_of(shop.names[3]), key="NULL")
        with pytest.raises(MulticloudDbError, match="without key") as caught:
            shop.verify()
        assert caught.value.category == ErrorCategory.INVALID_REQUEST


def update(shop, where, **values):
    DeltaTable(shop.table).update(predicate=f"key = '{where}'", updates=values)


class TestPosition:
    def refused(self, shop, category, text, **settings):
        with pytest.raises(MulticloudDbError, match=text) as caught:
            shop.verify(**settings)
        assert caught.value.category == category

    def test_none(self, shop):
        self.refused(shop, ErrorCategory.INVALID_REQUEST, "give --position", position=None)

    def test_of_another_collection(self, shop, tmp_path):
        (tmp_path / "other").mkdir()
        with Shop(tmp_path / "other") as other:
            token = other.checkpoints.load(NAME).token
        self.refused(shop, ErrorCategory.INVALID_REQUEST, "token", position=token)

    def test_that_has_expired(self, shop):
        token = shop.checkpoints.load(NAME).token
        shop.store.put("orders", "a", {})
        shop.store.trim("orders", max_count=0)
        self.refused(shop, ErrorCategory.CHECKPOINT_EXPIRED, "failOnDataLoss=false", position=token)

    def test_sink_that_does_not_move_is_behind_and_differences_are_confirmed(self, shop):
        plant(shop.table, key_of(shop.names[3]), DifferenceKind.MISSING)
        shop.store.put("orders", shop.names[5], {"n": -1})
        report = shop.verify(patience_seconds=0.5)
        assert kinds(report.differences) == {key_of(shop.names[3]): DifferenceKind.MISSING}
        assert (report.unsettled, report.behind) == ((), (key_of(shop.names[5]),))

    def test_heals_what_a_skipped_outage_has_lost(self, shop):
        """The sink goes on at the end of the feed, beside which the table is repaired."""
        for number, name in enumerate(shop.names[:30]):
            if number % 3:
                shop.store.put("orders", name, {"n": -number})
            else:
                shop.store.delete("orders", name)
        shop.store.put("orders", "new", {})
        shop.pass_over()
        before = {row["key"]: row for row in rows_of(shop.table)}
        with Busy(shop, shop.names[30:40]):
            report = shop.verify(repair=True)
        assert report.equal
        assert report.counts.repaired == 31
        shop.follow()
        shop.check_equal()
        untouched = [key_of(name) for name in shop.names[40:]]
        after = {row["key"]: row for row in rows_of(shop.table)}
        assert [after[key] for key in untouched] == [before[key] for key in untouched]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_an_outage_is_healed_with_few_bytes_and_the_stream_never_stops(tmp_path, monkeypatch):
    """3,000 scattered rows among 200,000: a repair writes at most 1.1 times the table.

    An attempt that another commit forestalls leaves its files, at most as many again.
    """
    forestalled = []

    def counted(merge):
        def run(*arguments):
            try:
                return merge(*arguments)
            except BaseException as error:
                forestalled.append(error)
                raise

        return run

    for name in ("merge_fixes", "merge_changes"):
        monkeypatch.setattr(delta, name, counted(getattr(delta, name)))
    with Shop(tmp_path, 200_000) as shop:
        for number, name in enumerate(random.Random(7).sample(shop.names[1000:], 2000)):
            shop.store.batch("orders", [Delete(name) if number % 2 else Put(name, {"n": -number})])
        shop.store.batch("orders", [Put(f"new-{number}", {"n": number}) for number in range(1000)])
        shop.pass_over()
        size, began = size_of(shop.table), DeltaTable(shop.table).version()
        there = set(shop.table.glob("*.parquet"))
        with Busy(shop, shop.names[:1000], size=5000):
            report = shop.verify(repair=True, max_repairs=3000)
            assert (report.equal, report.counts.repaired) == (True, 3000)
        shop.follow()
        shop.check_equal()
        commits = DeltaTable(shop.table).history()[: DeltaTable(shop.table).version() - began]
        # The repair names the key that it matches otherwise than the sink.
        repairs = {each["version"] for each in commits if "_match" in str(each["operationParameters"])}
        merged = {each["version"] for each in commits} - repairs
        assert any(min(repairs) - 3 <= version <= max(repairs) + 3 for version in merged)
        sink = sum(added(shop.table, version) for version in merged)
        written = sum(path.stat().st_size for path in set(shop.table.glob("*.parquet")) - there) - sink
        print(f"{written / size:.2f} times the table, {len(merged)} commits of the sink")  # noqa: T201
        assert 0 < sum(added(shop.table, version) for version in repairs) <= 1.1 * size
        assert written <= 1.1 * size * (1 + len(forestalled))


def size_of(path):
    return sum(pa.table(DeltaTable(path).get_add_actions(flatten=True))["size_bytes"].to_pylist())


def added(path, version):
    """Return the bytes that a commit has added."""
    lines = (path / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
    return sum(each["add"]["size"] for each in map(json.loads, lines) if "add" in each)


def rows_of(path):
    return DeltaTable(path).to_pyarrow_dataset().scanner(use_threads=False).to_table().to_pylist()


class TestTable:
    def refused(self, shop, path, text, category=ErrorCategory.INVALID_REQUEST):
        with pytest.raises(MulticloudDbError, match=text) as caught:
            verify(
                shop.client, shop.address, DeltaTarget(path), position=shop.checkpoints.load(NAME).token,
                state=shop.folder / "state", adopt=True,
            )  # fmt: skip
        assert caught.value.category == category

    def test_none(self, shop, tmp_path):
        self.refused(shop, tmp_path / "nowhere", "no Delta table", ErrorCategory.NOT_FOUND)

    @pytest.mark.parametrize(
        ("names", "text"),
        [
            (["id"], "has no column key"),
            (["key", "order_key", "_deleted_at"], "no column new_item_state.*transform="),
        ],
    )
    def test_of_another_form(self, shop, tmp_path, names, text):
        DeltaTable.create(tmp_path / "other", pa.schema([(name, pa.string()) for name in names]))
        self.refused(shop, tmp_path / "other", text)

    def test_of_something_else(self, shop):
        with pytest.raises(MulticloudDbError, match="pass DeltaTarget"):
            verify(shop.client, shop.address, str(shop.table), position="x")


class TestState:
    @pytest.mark.parametrize("phase", ["scan", "table", "compare", "rounds", "repair"])
    def test_killed_in_any_phase_it_goes_on_with_the_same_report(self, shop, phase):
        faults = shop.plant(*shop.names[40:])
        repairs = phase == "repair"
        ran = run("verify", shop, phase, str(int(repairs)))
        assert ran.returncode == -signal.SIGKILL, ran.stderr
        assert (shop.folder / "state" / "state.db").exists()
        report = shop.verify(repair=repairs, resume=True)
        assert kinds(report.repaired if repairs else report.differences) == faults
        assert report.cost.rows == 60, "rows were read again"
        assert not (shop.folder / "state").exists()


def run(part, shop, *arguments):
    command = [sys.executable, str(PROGRAM), part, str(shop.folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)


@pytest.mark.parametrize("commits", [25, pytest.param(1000, marks=pytest.mark.soak)])
def test_two_processes_write_the_table_and_neither_ends(shop, commits):
    """One merges as a sink does, one repairs; a third job compacts the table and removes old files."""
    jobs = [
        subprocess.Popen([sys.executable, str(PROGRAM), part, str(shop.folder), str(commits)])
        for part in ("merge", "fix", "maintain")
    ]
    assert [job.wait(3000) for job in jobs] == [0, 0, 0]
    found = documents(shop.table)
    assert json.loads(found["shared"])["n"] == commits - 1
    assert {name for name in found if name.startswith("sink-")} == {f"sink-{n}" for n in range(commits)}
    assert {name for name in found if name.startswith("fix-")} == {f"fix-{n}" for n in range(commits)}


def test_storage_without_conditional_writes_is_refused_by_name(shop, monkeypatch):
    def refuses(self, *_, **__):
        raise OSError("Atomic rename requires a LockClient for S3 backends")

    plant(shop.table, key_of(shop.names[3]), DifferenceKind.STALE)
    monkeypatch.setattr("deltalake.table.TableMerger.execute", refuses)
    with pytest.raises(MulticloudDbError, match="no conditional writes") as caught:
        shop.verify(repair=True)
    assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY


@pytest.mark.parametrize(
    ("count", "damage"),
    [
        (20_000, 0),
        (20_000, 1),
        pytest.param(10_000_000, 0, marks=pytest.mark.soak),
        pytest.param(1_000_000, 1, marks=pytest.mark.soak),
    ],
)
def test_memory_and_disk_do_not_grow_with_the_rows_and_the_differences(tmp_path, count, damage):
    """The digests are spilled: at most 64 bytes a row, and 256 MiB."""
    ran = run("many", attrs.make_class("Folder", ["folder"])(tmp_path), str(count), str(damage))
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    different = count // damage if damage else 0
    assert (told["different"], told["equal"], told["unsettled"]) == (different, count - different, 0)
    assert told["rss"] < 256 << 20
    if not damage:
        assert told["state_bytes"] / count < 64 + 100_000 / count


assert os.name == "posix"


def test_a_row_that_a_constraint_refuses_does_not_stop_the_others(tmp_path):
    with Shop(tmp_path, 20) as shop:
        faults = shop.plant(
            *shop.names, kinds=[DifferenceKind.MISSING, DifferenceKind.STALE, DifferenceKind.TOMBSTONE]
        )
        [stale] = [key for key, kind in faults.items() if kind is DifferenceKind.STALE]
        rule = f"key <> '{stale}' OR new_item_state = '{{\"n\":\"other\"}}'"
        DeltaTable(shop.table).alter.add_constraint({"kept": rule})
        report = shop.verify(repair=True)
        assert kinds(report.differences) == {stale: DifferenceKind.STALE}
        assert kinds(report.repaired) == {key: kind for key, kind in faults.items() if key != stale}
        [left] = report.differences
        assert "kept" in left.note
        assert encode_json(shop.truth()[json.loads(stale)["id"]]).decode() not in left.note


class TestEmptyScan:
    """Only a key of the source says how many of its components form the partition key."""

    @pytest.fixture
    def lines(self, tmp_path):
        with Shop(tmp_path, 0) as shop:
            shop.address = shop.store.create_collection("lines", partitions=1, partition_key=("a", "b"))
            shop.checkpoints = FileCheckpointStore(tmp_path / "checkpoints of lines")
            self.put(shop, {"n": 1})
            shop.store.batch("lines", [Delete(dict(self.key))])
            shop.follow()
            yield shop

    key = MappingProxyType({"a": 1, "b": 2, "id": "x"})
    text = encode_json(key).decode()

    def put(self, shop, document):
        shop.store.batch("lines", [Put(dict(self.key), document)])
        shop.follow()

    def test_a_collection_that_is_filled_after_it_was_scanned_is_repaired(self, lines):
        def fill(told):
            if told.phase == "table" and not list(lines.store.scan("lines")):
                self.put(lines, {"n": 2})
                plant(lines.table, self.text, DifferenceKind.STALE)

        report = lines.verify(
            repair=True, on_progress=fill, position=stored_position(lines.checkpoints, NAME)
        )
        assert (report.equal, kinds(report.repaired)) == (True, {self.text: DifferenceKind.STALE})

    def test_what_nobody_can_ask_an_empty_collection_for_is_not_touched(self, lines):
        row = {"new_item_state": "'{}'", "_deleted_at": "NULL"}
        DeltaTable(lines.table).update(predicate=f"key = '{self.text}'", updates=row)
        report = lines.verify(repair=True)
        assert (report.equal, report.unsettled, report.repaired) == (False, (self.text,), ())
        self.put(lines, {"n": 3})
        assert lines.verify(repair=True).equal
