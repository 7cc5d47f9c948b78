"""What a table or deltalake refuses is named when the table is opened, or translated; never a raw error."""

import json
import shutil
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, TableFeatures
from deltalake.schema import PrimitiveType

from multiclouddb_api import BackfillDone, ErrorCategory, MulticloudDbError, ResourceAddress, SnapshotStarted
from multiclouddb_conformance.sink_harness import page, rows
from multiclouddb_tables.contract import Fix
from multiclouddb_tables.delta_log import committed, dataset_of
from multiclouddb_tables.mark import Expected, FeedSource
from multiclouddb_tables.rules import TIME
from multiclouddb_verify import DeltaTarget
from pyspark_multiclouddb import drop_tombstones, live_rows, merge_into_delta, remove_history

from .tables import Shop, key_of

SECRET = "SECRET-7"
FIX = Fix(key_of("a"), ("000001",), "000001", None, {"n": 1}, datetime.now(UTC))
UNSUPPORTED = ErrorCategory.UNSUPPORTED_CAPABILITY


@pytest.fixture
def table(tmp_path):
    """Provide a table of the sink with one row and a column of its own."""
    path = str(tmp_path / "table")
    merged(path, ("a", 1, {}), n=1)
    return path


def columns(n):
    texts = [pa.field(name, pa.string()) for name in ("key", "order_key", "new_item_state")]
    return pa.schema([*texts, pa.field("timestamp", TIME), n, pa.field("_deleted_at", TIME)])


def merged(path, *changes, n=None, **more):
    batch = rows(*changes)
    if n is not None:
        batch = batch.append_column("n", pa.array([n] * batch.num_rows, pa.int64()))
    return merge_into_delta(batch, None, path, None, **more)


def refused(call):
    with pytest.raises(MulticloudDbError) as caught:
        call()
    shown = str(caught.value) + repr(caught.value.detail) + "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown
    return caught.value


def read(path):
    return [batch.num_rows for batch in DeltaTarget(path).rows()]


def parts(path):
    return [batch.num_rows for part in DeltaTarget(path).parts() for batch in part.rows()]


def live(path):
    return live_rows(path).read_all()


def merge(path):
    return merged(path, ("a", 2, {"v": SECRET}), n=2)


def drop(path):
    return drop_tombstones(path, timedelta(0))


def expected(path):
    return Expected(FeedSource("provider", ResourceAddress("main", "orders")), DeltaTarget(path).found())


def fix(path):
    return DeltaTarget(path).fix([FIX], expected(path))


def record(path):
    return DeltaTarget(path).record({"a": "b"}, expected(path))


def test_a_part_of_a_relative_path_is_read_in_another_folder(table, tmp_path, monkeypatch):
    """Spark's Python workers stay in the folder in which the first of them began."""
    monkeypatch.chdir(Path(table).parent)
    made = DeltaTarget(Path(table).name).parts()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert sum(batch.num_rows for part in made for batch in part.rows()) == 1


def test_a_part_whose_table_is_not_on_this_machine_is_told_so(table):
    """It is no version that VACUUM has removed, which is tried again for ten minutes."""
    (part,) = DeltaTarget(table).parts()
    shutil.rmtree(table)
    error = refused(lambda: list(part.rows()))
    assert (error.category, error.retryable) == (ErrorCategory.NOT_FOUND, False)


READS, WRITES = [read, parts, live], [merge, drop, fix, record]


@pytest.mark.parametrize("use", READS + WRITES)
@pytest.mark.parametrize("mode", ["name", "id"])
def test_a_table_with_mapped_columns_is_refused_by_name(tmp_path, mode, use):
    """deltalake takes it, and reads null everywhere."""
    schema = columns(n=pa.field("n", pa.int64()))
    path = str(tmp_path / "table")
    DeltaTable.create(path, schema=schema, configuration={"delta.columnMapping.mode": mode})
    error = refused(lambda: use(path))
    assert (error.category, "columnMapping" in error.message) == (UNSUPPORTED, True)
    assert DeltaTable(path).version() == 0


@pytest.mark.parametrize("use", READS)
@pytest.mark.parametrize("feature", ["V2Checkpoint", "ColumnMapping"])
def test_a_feature_that_deltalake_cannot_read_is_refused_by_name_and_merged_all_the_same(table, feature, use):
    DeltaTable(table).alter.add_feature(
        getattr(TableFeatures, feature), allow_protocol_versions_increase=True
    )
    assert merged(table, ("a", 2, {}), n=2)
    error = refused(lambda: use(table))
    assert (error.category, feature.lower() in error.message.lower()) == (UNSUPPORTED, True)


@pytest.mark.parametrize("use", READS + WRITES)
def test_a_table_with_deletion_vectors_is_refused_by_name(table, use):
    """Versions of deltalake apply them to other rows, so that a merge brings deleted rows back."""
    DeltaTable(table).alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    before = DeltaTable(table).version()
    error = refused(lambda: use(table))
    assert (error.category, "deletionVectors" in error.message) == (UNSUPPORTED, True)
    assert DeltaTable(table).version() == before


def test_deletion_vectors_that_another_writer_switches_on_before_a_commit_are_refused(table):
    """The sink has opened the table before; it is what the commit would be based on that counts."""
    opened, made = DeltaTable(table), []
    DeltaTable(table).alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    opened.update_incremental()
    assert refused(lambda: committed(opened, lambda: made.append(1))).category == UNSUPPORTED
    assert not made


@pytest.mark.parametrize("use", [merge, fix, record])
@pytest.mark.parametrize("feature", ["IdentityColumns", "RowTracking"])
def test_a_feature_that_deltalake_cannot_write_is_no_race(table, feature, use):
    before = DeltaTable(table).version()
    DeltaTable(table).alter.add_feature(
        getattr(TableFeatures, feature), allow_protocol_versions_increase=True
    )
    error = refused(lambda: use(table))
    assert (error.category, error.retryable, feature in error.message) == (UNSUPPORTED, False, True)
    assert DeltaTable(table).version() == before + 1


@pytest.mark.parametrize("use", WRITES)
def test_a_table_that_only_grows_is_refused_when_it_is_opened(table, use):
    DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "true"})
    error = refused(lambda: use(table))
    assert (error.category, error.retryable) == (ErrorCategory.INVALID_REQUEST, False)
    assert "appendOnly" in error.message
    assert sum(read(table)) == 1


def test_a_table_that_only_grows_from_the_middle_of_a_merge_on(table):
    opened = DeltaTable(table)
    DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "true"})
    error = refused(lambda: committed(opened, lambda: opened.update(updates={"n": "5"}), patience_seconds=30))
    assert (error.category, "appendOnly" in error.message) == (ErrorCategory.INVALID_REQUEST, True)


@pytest.mark.parametrize(
    ("name", "order"), [(SECRET, 1), ("a", 2)], ids=["a row to insert", "a row to update"]
)
def test_a_row_that_a_check_refuses_shows_the_rule_and_not_the_row(table, name, order):
    DeltaTable(table).alter.add_constraint({"positive": "n > 0"})
    wrong = Fix(key_of(SECRET), (), "1", SECRET, {"n": -5}, FIX.timestamp)
    for call in (
        lambda: merged(table, (name, order, {"v": SECRET}), n=-5),
        lambda: DeltaTarget(table).fix([wrong], expected(table)),
    ):
        error = refused(call)
        assert (error.category, error.retryable) == (ErrorCategory.INVALID_REQUEST, False)
        assert "positive (n > 0)" in error.message
        assert sum(read(table)) == 1


def test_a_delete_in_a_table_whose_own_column_is_not_null(tmp_path):
    path = str(tmp_path / "table")
    schema = columns(n=pa.field("n", pa.int64(), nullable=False))
    DeltaTable.create(path, schema=schema)
    merged(path, ("a", 1, {}), n=1)
    batch = rows(("a", 2, None)).append_column("n", pa.nulls(1, pa.int64()))
    error = refused(lambda: merge_into_delta(batch, None, path, None))
    assert (error.category, "column n, which is NOT NULL" in error.message) == (
        ErrorCategory.INVALID_REQUEST,
        True,
    )


@pytest.mark.parametrize(
    "kind",
    [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.list_(pa.uint32()), pa.struct([("a", pa.uint8())]),
     pa.dictionary(pa.int8(), pa.uint32())],
    ids=str,
)  # fmt: skip
def test_an_unsigned_column_is_refused_before_anything_is_written(tmp_path, kind):
    batch = rows(("a", 1, {})).append_column("u", pa.nulls(1, kind))
    error = refused(lambda: merge_into_delta(batch, None, str(tmp_path / "table"), None))
    assert (error.category, "column u" in error.message) == (ErrorCategory.INVALID_REQUEST, True)
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize(
    "kind",
    [pa.null(), pa.list_(pa.null()), pa.struct([("a", pa.null())]), pa.map_(pa.string(), pa.null()),
     pa.struct([])],
    ids=str,
)  # fmt: skip
def test_a_column_without_a_type_is_refused_before_anything_is_written(tmp_path, kind):
    """Most readers cannot open a table with a column of the type void, and no batch can change its type."""
    batch = rows(("a", 1, {})).append_column("v", pa.nulls(1, kind))
    error = refused(lambda: merge_into_delta(batch, None, str(tmp_path / "table"), None))
    assert (error.category, "column v" in error.message) == (ErrorCategory.INVALID_REQUEST, True)
    assert not (tmp_path / "table").exists()


def test_a_panic_of_deltalake_is_an_error_of_ours(table):
    """It is no `Exception` in Python, and its text shows the value."""
    opened = DeltaTable(table)
    batch = pa.table({"key": [key_of("a")], "u": pa.array([3_000_000_000], pa.uint32())})

    def commit():
        opened.alter.add_columns([Field("u", PrimitiveType("integer"))])
        opened.merge(batch, "s.key = t.key", source_alias="s", target_alias="t").when_matched_update(
            {"u": "s.u"}
        ).execute()

    error = refused(lambda: committed(opened, commit))
    assert error.category == ErrorCategory.PERMANENT_FAILURE
    assert "3000000000" not in f"{error} {error.__cause__} {error.detail}"


@pytest.mark.parametrize("is_vacuumed", [True, False])
def test_a_file_that_vanishes_under_a_commit_is_read_again_if_the_table_has_moved_on(table, is_vacuumed):
    opened = DeltaTable(table)
    if is_vacuumed:
        merged(table, ("a", 2, {}), n=2)
    for uri in opened.file_uris():
        Path(uri).unlink()
    update = lambda: committed(opened, lambda: opened.update(updates={"n": "5"}))  # noqa: E731
    if is_vacuumed:
        assert update()["num_updated_rows"] == 1
    else:
        error = refused(update)
        assert (error.category, error.retryable) == (ErrorCategory.PERMANENT_FAILURE, False)


def count(path):
    return DeltaTarget(path).count()


@pytest.mark.parametrize("use", [read, parts, live, count])
def test_a_file_of_the_newest_version_that_is_gone_is_no_reason_to_try_again(table, use):
    """Else `verify` tries it again for its whole patience, and a mirror takes it for an outage."""
    for uri in DeltaTable(table).file_uris():
        Path(uri).unlink()
    error = refused(lambda: use(table))
    assert (error.category, error.retryable) == (ErrorCategory.PERMANENT_FAILURE, False)
    assert "newest version" in error.message
    assert "bring it back" in error.message


@pytest.mark.parametrize("use", [DeltaTarget.rows, DeltaTarget.parts])
def test_a_file_that_is_gone_because_the_table_has_moved_on_is_a_reason_to_try_again(table, use):
    old = DeltaTable(table).file_uris()
    found = use(DeltaTarget(table))
    if use is DeltaTarget.parts:
        (part,) = found
        found = part.rows()

    def gone():
        merged(table, ("a", 2, {}), n=2)
        for uri in old:
            Path(uri).unlink()

    # The version is loaded with the first row that is asked for.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "multiclouddb_tables.delta_rows.dataset_of", lambda *args: (gone(), dataset_of(*args))[1]
        )
        error = refused(lambda: list(found))
    assert (error.category, error.retryable) == (ErrorCategory.TRANSIENT_FAILURE, True)


def test_parts_of_a_table_that_is_made_again_at_its_path(tmp_path):
    """A process of Spark lives on, and both tables have the same versions."""
    path = tmp_path / "table"
    for life in range(2):
        shutil.rmtree(path, ignore_errors=True)
        merged(str(path), *((name, 1, {"life": life}) for name in "abc"))
        found = DeltaTarget(str(path)).parts()
        assert sum(batch.num_rows for part in found for batch in part.rows()) == 3
    shutil.rmtree(path)
    merged(str(path), ("a", 1, {}))
    for part in found:
        assert refused(lambda part=part: list(part.rows())).category == ErrorCategory.TRANSIENT_FAILURE


def test_a_mark_is_stored_in_a_table_that_deltalake_cannot_read(table):
    DeltaTable(table).alter.add_feature(TableFeatures.V2Checkpoint, allow_protocol_versions_increase=True)
    begins = SnapshotStarted("000010~", "p:r:snapshot:s")
    merge_into_delta(page([], begins), None, table, None)
    assert DeltaTable(table).metadata().configuration["multiclouddb-snapshot:s"] == "0"


def test_the_stages_of_a_snapshot_have_the_numbers_of_older_tables(tmp_path):
    """Another number would be taken for a snapshot that has begun: its end would bury rows again."""
    path, stages = str(tmp_path / "table"), []
    for notice in (SnapshotStarted("000010~", "p:r:snapshot:s"), BackfillDone("p:r:snapshot:s", "000010~")):
        merge_into_delta(page([], notice), None, path, None)
        stages.append(DeltaTable(path).metadata().configuration["multiclouddb-snapshot:s"])
    assert stages == ["0", "1"]


def test_a_row_that_the_table_refuses_does_not_keep_the_others_from_being_repaired(tmp_path):
    with Shop(tmp_path, 20) as shop:
        table = DeltaTable(shop.table)
        for name in shop.names[3:6]:
            table.delete(f"key = '{key_of(name)}'")
        table.alter.add_constraint({"no_fourth": f"key <> '{key_of(shop.names[4])}'"})
        report = shop.verify(repair=True)
        assert [each.key for each in report.differences] == [key_of(shop.names[4])]
        assert {each.key for each in report.repaired} == {key_of(shop.names[at]) for at in (3, 5)}
        assert "no_fourth" in (report.differences[0].note or "")


def _log(path):
    return sorted(Path(path, "_delta_log").glob("*.json"))


def _with(**protocol):
    def write(path):
        after = Path(path, "_delta_log", f"{len(_log(path)):020d}.json")
        after.write_text(json.dumps({"protocol": protocol}) + "\n")

    return write


def _cut_off(path):
    with open(_log(path)[-1], "r+") as file:
        file.truncate(40)


UNKNOWN = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["zzz"], "writerFeatures": ["zzz"]}
LOGS = {
    "feature": (_with(**UNKNOWN), UNSUPPORTED, "zzz"),
    "version": (_with(minReaderVersion=9, minWriterVersion=9), UNSUPPORTED, "version 9"),
    "cut off": (_cut_off, ErrorCategory.PERMANENT_FAILURE, "damaged"),
    "hole": (lambda path: _log(path)[1].unlink(), ErrorCategory.PERMANENT_FAILURE, "damaged"),
    "hint": (
        lambda path: Path(path, "_delta_log", "_last_checkpoint").write_text('{"version":2,"size":5}'),
        ErrorCategory.PERMANENT_FAILURE,
        "remove this file, which is only a hint",
    ),
}


@pytest.mark.parametrize(("damage", "category", "said"), LOGS.values(), ids=LOGS)
@pytest.mark.parametrize("call", [read, parts, live, merge, drop, remove_history])
def test_a_log_that_deltalake_does_not_open(table, damage, category, said, call):
    merged(table, ("a", 2, {"v": 2}), n=2)
    damage(table)
    error = refused(lambda: call(table))
    assert (error.category, error.retryable) == (category, False)
    assert said in error.message
    assert "\n" not in error.message


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_log_without_a_hint_is_listed(table, is_whole):
    """Delta's protocol lets a reader do so; the log may be damaged nevertheless."""
    merged(table, ("a", 2, {"v": 2}), n=2)
    hint = Path(table, "_delta_log", "_last_checkpoint")
    hint.write_text('{"version":2,"size":5}')
    if not is_whole:
        _log(table)[1].unlink()
    assert "hint" in refused(lambda: live(table)).message
    hint.unlink()
    if is_whole:
        assert live(table).num_rows == 1
    else:
        assert "damaged" in refused(lambda: live(table)).message


@pytest.mark.parametrize("call", [merge, remove_history])
def test_a_checkpoint_without_the_file_of_its_commit(table, call):
    """The table is read; before deltalake commits, it looks at the commit before its own."""
    DeltaTable(table).create_checkpoint()
    [*_, last] = _log(table)
    last.unlink()
    error = refused(lambda: call(table))
    assert (error.category, error.retryable) == (ErrorCategory.PERMANENT_FAILURE, False)
    words = f"a checkpoint of its last version, {int(last.stem)}, but not the file _delta_log/{last.name},"
    assert words in error.message
    assert live(table).num_rows == 1
    # As Spark writes it.
    last.with_name(f"{int(last.stem) + 1:020}.json").write_text('{"commitInfo":{"timestamp":1}}\n')
    assert merged(table, ("a", 3, {}), n=3)
    assert live(table)["n"].to_pylist() == [3]


@pytest.mark.parametrize("call", [read, parts, live])
def test_a_file_that_is_no_file_of_the_table(table, call):
    for each in Path(table).glob("*.parquet"):
        each.write_bytes(b"PAR1nothingPAR1")
    error = refused(lambda: call(table))
    assert error.category == ErrorCategory.PERMANENT_FAILURE
    assert f"a file of {table} is damaged" in error.message


@pytest.mark.parametrize("name", ["a%20b", "shop%2Forders", "back\\slash", "a?b", "a#b"])
@pytest.mark.parametrize("call", [read, live, merge, drop, remove_history])
def test_a_folder_that_deltalake_takes_for_another_one(tmp_path, name, call):
    error = refused(lambda: call(str(tmp_path / name)))
    assert error.category == ErrorCategory.INVALID_REQUEST
    assert "into another folder" in error.message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a b", "100%", "ü&+*:[]'{}"])
def test_a_folder_with_an_unusual_name(tmp_path, name):
    path = str(tmp_path / name)
    assert merged(path, ("a", 1, {}))
    assert merged(path, ("a", 2, {"n": 2}))
    assert live(path).num_rows == sum(read(path)) == 1
    assert [each.name for each in tmp_path.iterdir()] == [name]
