"""Tests what users of other writers of Delta reported, and what its documentation says, on our sink."""

import json
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field
from deltalake.exceptions import DeltaError

from multiclouddb_api import ErrorCategory, ErrorReason
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.sink_harness import events, key_of, page
from multiclouddb_spi.faults import key_digest
from multiclouddb_tables import Columns
from multiclouddb_tables.contract import Fix
from multiclouddb_tables.delta import DeltaTarget
from multiclouddb_tables.delta_log import committed
from multiclouddb_tables.delta_refusals import unopened, unreadable, unwritable
from multiclouddb_tables.mark import Expected
from multiclouddb_tables.merging import merge_changes

from .test_reports import made, merged, stored

TYPE = "__CHAR_VARCHAR_TYPE_STRING"


@pytest.mark.parametrize("kind", ["varchar(5)", "char(5)"])
def test_a_text_that_is_longer_than_its_column_is_refused(tmp_path, kind):
    """deltalake does not know the length, and Spark then refuses to write the row again."""
    path, columns = tmp_path / "table", Columns({"code": "string"})
    made(path, Field("code", "string", metadata={TYPE: kind}))
    merged(path, ("a", 1, {"code": "ünïcö"}), ("b", 1, {}), columns=columns)
    error = refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: merged(path, ("a", 2, {"code": "abcde"}), ("b", 2, {"code": "abcdef"}), columns=columns),
        "column code",
        kind,
        key_digest(key_of("b")),
    )
    assert error.detail.reason is ErrorReason.MISFIT
    target = DeltaTarget(path)
    fix = Fix(key_of("b"), ("000001",), "000001", '{"code":"abcdef"}', {"code": "abcdef"}, datetime.now(UTC))
    expected = Expected(target.feed_mark().source, target.found())
    refusal(ErrorCategory.INVALID_REQUEST, lambda: target.fix([fix], expected), kind)
    assert stored(path, "key", "code") == [(key_of("a"), "ünïcö"), (key_of("b"), None)]


def test_lengths_inside_of_a_column_are_not_checked(tmp_path):
    path = tmp_path / "table"
    made(path, Field("code", "string", metadata={TYPE: "array<varchar(5)>"}))
    refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: merged(path, ("a", 1, {"code": "x"}), columns=Columns({"code": "string"})),
        "does not check lengths",
    )


@pytest.mark.parametrize("name", ["a#1", "a?1", "a%231", "a%3f1", "a%2520b", "a%5Cb"])
def test_a_url_of_which_deltalake_takes_a_part_is_refused(tmp_path, name):
    """The tables a#1 and a#2 would have one folder."""
    refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: merged(f"{tmp_path.as_uri()}/{name}", ("a", 1, {})),
        "into another folder",
    )
    assert [*tmp_path.iterdir()] == []


def test_a_url_with_other_characters_is_that_of_one_folder(tmp_path):
    for name, folder in (("a b", "a b"), ("c%20d", "c d"), ("e%f", "e%f"), ("g=h", "g=h")):
        for order in (1, 2):
            merged(f"{tmp_path.as_uri()}/{name}", ("a", order, {"n": order}))
        assert stored(tmp_path / folder, "new_item_state") == [('{"n":2}',)]
    assert len([*tmp_path.iterdir()]) == 4


def cloned(table, path):
    """Make a shallow clone of a table, as Spark does: its log has the files of the table as URLs."""
    files = pa.table(DeltaTable(table).get_add_actions()).to_pylist()
    log = [
        json.loads(line)
        for each in sorted((table / "_delta_log").glob("*.json"))
        for line in each.read_text().splitlines()
    ]
    actions = [
        next(action for action in reversed(log) if kind in action) for kind in ("protocol", "metaData")
    ]
    for action in log:
        if "add" in action and action["add"]["path"] in {each["path"] for each in files}:
            where = (table / action["add"]["path"]).as_uri()
            actions.append({"add": action["add"] | {"path": where}})
    (path / "_delta_log").mkdir(parents=True)
    text = "\n".join(map(json.dumps, actions))
    (path / "_delta_log" / f"{0:020}.json").write_text(text)


def test_a_shallow_clone_is_no_damaged_table(tmp_path):
    """Its files are those of another table, and the Arrow data set of deltalake does not find them."""
    merged(tmp_path / "table", ("a", 1, {"n": 1}))
    cloned(tmp_path / "table", tmp_path / "clone")
    for own in (False, True):
        refusal(
            ErrorCategory.UNSUPPORTED_CAPABILITY,
            lambda own=own: [*DeltaTarget(tmp_path / "clone").rows(own=own)],
            "is a shallow clone",
        )
    refusal(
        ErrorCategory.UNSUPPORTED_CAPABILITY, lambda: DeltaTarget(tmp_path / "clone").parts(), "shallow clone"
    )


def optimized(path):
    """Write the only file of a table anew, as OPTIMIZE of Spark does by default: with times of 96 bits."""
    table = DeltaTable(path)
    [old] = [Path(each) for each in table.file_uris()]
    new = path / "optimized.parquet"
    pq.write_table(pq.read_table(old), new, use_deprecated_int96_timestamps=True)
    facts = {"partitionValues": {}, "dataChange": False}
    actions = [
        {"commitInfo": {"timestamp": 1, "operation": "OPTIMIZE", "operationParameters": {}}},
        {"add": {"path": new.name, "size": new.stat().st_size, "modificationTime": 1, **facts}},
        {"remove": {"path": old.name, "size": old.stat().st_size, "deletionTimestamp": 1, **facts}},
    ]
    log = path / "_delta_log" / f"{table.version() + 1:020}.json"
    log.write_text("\n".join(map(json.dumps, actions)))


def test_times_that_spark_has_written_are_read(tmp_path):
    """In nanoseconds, as Arrow reads them by default, 9999 and 1 are other years, and no microseconds."""
    path, columns = tmp_path / "table", Columns({"at": "timestamp", "there": "timestamp_ntz", "n": "int64"})
    times = {"a": "9999-12-31T23:59:59.999999", "b": "0001-01-01T00:00:00", "c": "2026-01-31T12:00:00.5"}
    changes = [(name, 1, {"at": f"{text}Z", "there": text}) for name, text in times.items()]
    merged(path, *changes, columns=columns)

    def found():
        return sorted(
            (row["key"], row["state"])
            for batch in DeltaTarget(path).rows(own=True)
            for row in batch.to_pylist()
        )

    before = found()
    optimized(path)
    assert found() == before
    assert len([*DeltaTarget(path).rows()]) == 1
    target = DeltaTarget(path)
    mark = target.feed_mark()
    target.redeclare(pa.schema(Columns({"n": "string"}).fields()), ["n"], mark)
    assert found() == before


@pytest.mark.parametrize("value", ["TRUE", "True"])
def test_a_change_data_feed_that_only_spark_sees_is_refused(tmp_path, value):
    """Its merges have no changes of their own, so each row of a file seems to be deleted and inserted."""
    path, property_ = tmp_path / "table", "delta.enableChangeDataFeed"
    made(path, configuration={property_: value})
    refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: merged(path, ("a", 1, {})),
        f"{property_} with the value {value}",
    )
    DeltaTable(path).alter.set_table_properties({property_: "true"})
    merged(path, ("a", 1, {}), ("b", 1, {}))
    merged(path, ("a", 2, {}))
    table = DeltaTable(path)
    found = pa.table(table.load_cdf(starting_version=table.version()).read_all())
    assert sorted(found["_change_type"].to_pylist()) == ["update_postimage", "update_preimage"]


@pytest.mark.parametrize("value", ["FALSE", "False"])
def test_a_log_that_only_spark_would_keep_is_refused(tmp_path, value):
    """deltalake would remove its entries at a checkpoint of the log, although the user has forbidden it."""
    path, property_ = tmp_path / "table", "delta.enableExpiredLogCleanup"
    more = {"delta.logRetentionDuration": "interval 0 seconds", "delta.checkpointInterval": "2"}
    made(path, configuration={property_: value, **more})
    refusal(ErrorCategory.INVALID_REQUEST, lambda: merged(path, ("a", 1, {})), f"{property_} with the value")
    DeltaTable(path).alter.set_table_properties({property_: "false"})
    for order in range(1, 6):
        merged(path, ("a", order, {}))
    assert len([*(path / "_delta_log").glob("*.json")]) == DeltaTable(path).version() + 1


def test_a_change_data_feed_that_is_off_in_any_spelling_is_off(tmp_path):
    made(tmp_path / "table", configuration={"delta.enableChangeDataFeed": "FALSE"})
    merged(tmp_path / "table", ("a", 1, {}))
    assert stored(tmp_path / "table", "key") == [(key_of("a"),)]


def test_an_invariant_that_refuses_a_row_is_named(tmp_path):
    path, columns = tmp_path / "table", Columns({"n": "int64"})
    rule = json.dumps({"expression": {"expression": "n > 2"}})
    made(path, Field("n", "long", metadata={"delta.invariants": rule}))
    merged(path, ("a", 1, {"n": 3}), columns=columns)
    refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: merged(path, ("b", 1, {"n": 1}), columns=columns),
        "the invariant of the column n (n > 2)",
    )
    assert stored(path, "n") == [(3,)]


def test_a_table_that_is_partitioned_by_the_order_is_refused(tmp_path):
    """A snapshot could not begin: it makes the order of each row empty, which Delta stores as null."""
    made(tmp_path / "table", partition_by=["order_key"])
    refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: merged(tmp_path / "table", ("a", 1, {})),
        "partitioned by order_key",
    )


def overwritten(path):
    """Write an empty DataFrame over a table, as Spark does: it adds a file without rows."""
    table = DeltaTable(path)
    new = path / "empty.parquet"
    pq.write_table(pa.schema(table.schema().to_arrow()).empty_table(), new)
    facts = {"partitionValues": {}, "dataChange": True}
    actions = [{"commitInfo": {"timestamp": 1, "operation": "WRITE", "operationParameters": {}}}]
    actions += [
        {"remove": {"path": Path(each).name, "deletionTimestamp": 1, **facts}} for each in table.file_uris()
    ]
    stats = json.dumps({"numRecords": 0, "minValues": {}, "maxValues": {}, "nullCount": {}})
    added = {"path": new.name, "size": new.stat().st_size, "modificationTime": 1, "stats": stats}
    actions.append({"add": added | facts})
    log = path / "_delta_log" / f"{table.version() + 1:020}.json"
    log.write_text("\n".join(map(json.dumps, actions)))


def test_a_table_that_spark_has_emptied_has_a_file_and_is_empty(tmp_path):
    """What somebody has removed would be missing, while the merges go on."""
    path = tmp_path / "table"
    merged(path, ("a", 1, {}))
    assert not DeltaTarget(path).is_empty()
    overwritten(path)
    assert DeltaTarget(path).is_empty()
    later = page(events(("b", 1, {})))
    later = attrs.evolve(later, resumed_from=later.continuation_token)
    refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: merge_changes(DeltaTarget(path), "a sink", later),
        "is empty, but a sink has merged rows into it",
    )


@pytest.mark.parametrize("place", ["file.txt", "file.txt/table", "URL"])
@pytest.mark.parametrize(
    "use", [DeltaTarget.found, lambda target: merged(target.where, ("a", 1, {}))], ids=["read", "merge"]
)
def test_a_path_that_is_a_file_or_in_one_is_refused(use, place, tmp_path):
    """deltalake fails as a storage does that may be back soon, so a mirror would try it for minutes."""
    file = tmp_path / "file.txt"
    file.write_text("mine")
    where = file.as_uri() if place == "URL" else str(tmp_path / place)
    refusal(
        ErrorCategory.INVALID_REQUEST, lambda: use(DeltaTarget(where)), where, "is a file", "path of a folder"
    )
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    "told",
    [
        "Unable to copy data to file: File too large (os error 27)",
        "Unable to copy data to file: No space left on device (os error 28)",
        "Unable to create file: Disk quota exceeded (os error 122)",
    ],
)
def test_a_full_disk_is_named_in_place_of_the_types_of_columns(told, tmp_path):
    """What deltalake says where it writes a file of a commit; its class is the one of all other errors."""
    path = str(tmp_path / "table")
    merged(path, ("a", 1, {}))
    table = DeltaTable(path)

    def commit():
        step = "\n          \x1b[31m↳\x1b[0m "
        raise DeltaError(step.join(["Failed to parse parquet", "Generic LocalFileSystem error", told]))

    error = refusal(
        ErrorCategory.PERMANENT_FAILURE, lambda: committed(table, commit), "the space on the disk"
    )
    assert "types of the columns" not in str(error)


@pytest.mark.parametrize("make", [unopened, unreadable, unwritable])
def test_a_storage_that_refuses_is_told_with_the_last_cause(make):
    """As deltalake 1.6.6 tells it: with colours of a terminal, and places in its code in the last lines."""
    step = "\n          \x1b[31m↳\x1b[0m "
    causes = [
        "Generic S3 error",
        "Error performing list request",
        "Error performing GET https://s3.example.org/shop?list-type=2&prefix=orders%2F in 6.8ms - Server "
        "returned non-2xx status code",
        "403 Forbidden",
        "<Error><Code>AccessDenied</Code></Error>",
    ]
    message = make("s3://shop/orders", OSError(step.join(causes) + "\n\n   0: <unknown>\n")).message
    assert "403 Forbidden: <Error><Code>AccessDenied</Code></Error>" in message
    assert "GET https://s3.example.org/shop in 6.8ms" in message
    assert [part for part in ("\x1b", "[31m", "↳", "<unknown>", "prefix=") if part in message] == []
