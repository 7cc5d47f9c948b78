"""Runs the contract of a table on SQLite, and what SQLite does to rows in silence."""

import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial

import pyarrow as pa
import pytest

from multiclouddb_api import (
    BackfillDone,
    ErrorCategory,
    MulticloudDbError,
    SnapshotStarted,
    decode_json,
    encode_json,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.sink_harness import (
    NOW,
    PLAN,
    Death,
    documents,
    events,
    expected,
    key_of,
    page,
    read,
    refused,
    rows,
    tombstones,
)
from multiclouddb_conformance.targets import *  # noqa: F403
from multiclouddb_conformance.targets.declared import *  # noqa: F403
from multiclouddb_spi.faults import key_digest
from multiclouddb_tables import Columns, Fix, layout
from multiclouddb_tables.layout import NO_ORDER
from multiclouddb_tables.sqlite import SqliteTable, merge_into_sqlite


class Killer:
    """Dice that decide whether the process dies before or after a statement that writes."""

    def __init__(self):
        self.dice, self.chance = None, 0.0

    def die(self):
        if self.dice is not None and self.dice.random() < self.chance:
            self.dice = None
            raise Death


class Mortal(sqlite3.Connection):
    """A connection of a process that may die."""

    killer = Killer()

    def execute(self, statement, *arguments):
        if statement.startswith(("SELECT", "PRAGMA", "BEGIN")):
            return super().execute(statement, *arguments)
        self.killer.die()
        found = super().execute(statement, *arguments)
        self.killer.die()
        return found

    def executemany(self, *arguments):
        self.killer.die()
        found = super().executemany(*arguments)
        self.killer.die()
        return found


class SqliteSink:
    def __init__(self, place, killer):
        self.path, self._killer = place / "shop ?#%.db", killer

    @property
    def target(self):
        return SqliteTable(self.path, "orders")

    def merge(self, batch, batch_id=None, app_id=None, **options):
        return merge_into_sqlite(batch, batch_id, self.path, "orders", app_id, **options)

    def drop(self):
        with sqlite3.connect(self.path) as database:
            database.execute("DROP TABLE orders")
        database.close()

    def dies(self, dice, chance=0.0):
        self._killer.dice, self._killer.chance = dice, chance


@pytest.fixture
def sink(tmp_path, monkeypatch):
    killer = Killer()
    monkeypatch.setattr(Mortal, "killer", killer)
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Mortal))
    return SqliteSink(tmp_path, killer)


COLUMNS = {
    "key": "TEXT NOT NULL", "order_key": "TEXT NOT NULL", "timestamp": "TIMESTAMP_TEXT",
    "new_item_state": "TEXT", "_deleted_at": "TIMESTAMP_TEXT",
}  # fmt: skip


def made(changed="", more="", ending=")"):
    """Return the statement that makes a table, with one column of another type."""
    name, _, kind = changed.partition(" ")
    columns = {**COLUMNS, name: kind} if name else COLUMNS
    return "CREATE TABLE orders (" + ", ".join(map(" ".join, columns.items())) + more + ending


@pytest.fixture
def run(sink):
    """Run statements in the database, in WAL mode, as its owner would."""

    def run(*statements):
        with closing(sqlite3.connect(sink.path, isolation_level=None)) as database:
            found = [database.execute(each).fetchall() for each in ("PRAGMA journal_mode = WAL", *statements)]
        return found[-1]

    return run


def wider(name, values, kind, order=1):
    keys = [(f"k{number}", order, {}) for number in range(len(values))]
    return rows(*keys).append_column(name, pa.array(values, kind))


def own(sink):
    return [decode_json(row["state"]) for each in sink.target.rows(own=True) for row in each.to_pylist()]


class TestTableOfTheUser:
    """Tests tables that somebody else has made."""

    @pytest.mark.parametrize(
        ("statement", "said"),
        [
            ("CREATE VIEW orders AS SELECT 1 AS key", "is a view"),
            ("CREATE VIRTUAL TABLE orders USING fts5(key)", "is a virtual"),
            (made("key INTEGER NOT NULL"), "key of the type INTEGER"),
            (made("order_key NOT NULL"), "order_key of the type BLOB"),
            (made("order_key DECIMAL(6) NOT NULL"), "order_key of the type DECIMAL"),
            (made("new_item_state JSON"), "new_item_state of the type JSON"),
            (made("key TEXT PRIMARY KEY"), "may be null"),
            (made("order_key TEXT"), "may be null"),
            (made(more=", total INT64 NOT NULL DEFAULT 0"), "tombstone"),
            (made("key TEXT NOT NULL COLLATE NOCASE"), "collation NOCASE"),
            (made("key TEXT NOT NULL COLLATE RTRIM"), "collation RTRIM"),
            (made("new_item_state TEXT AS (key)"), "computes the column"),
            (made("timestamp TEXT", ending=") STRICT").replace("TIMESTAMP_TEXT", "TEXT"), "column timestamp"),
            (made("timestamp DATETIME"), "column timestamp"),
            ("CREATE TABLE orders (id INTEGER PRIMARY KEY)", "no column key"),
        ],
    )  # fmt: skip
    def test_one_that_changes_rows_in_silence_is_refused(self, sink, run, statement, said):
        run(statement)
        before = run("SELECT * FROM sqlite_schema")
        assert said in refused(sink.merge, rows(("a", 1, {}))).message
        assert run("SELECT * FROM sqlite_schema") == before

    def test_a_trigger_is_refused_also_if_it_comes_later(self, sink, run):
        sink.merge(rows(("a", 1, {"n": 1})))
        run("CREATE TRIGGER quiet BEFORE UPDATE ON orders BEGIN SELECT RAISE(IGNORE); END")
        for call in (sink.merge, lambda batch: sink.target):
            assert "trigger quiet" in refused(call, rows(("a", 2, {}))).message

    def test_a_database_in_which_readers_lock_the_sink_out(self, sink, run):
        run(made(), "PRAGMA journal_mode = DELETE")
        assert "journal mode delete" in refused(sink.merge, rows(("a", 1, {}))).message

    def test_a_database_with_another_encoding(self, sink):
        with closing(sqlite3.connect(sink.path)) as database:
            database.execute("PRAGMA encoding = 'UTF-16le'")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("CREATE TABLE other (a)")
        assert "encoding UTF-16le" in refused(sink.merge, rows(("a", 1, {}))).message

    def test_an_order_key_is_compared_by_code_points(self, sink, run):
        run(made("order_key TEXT NOT NULL COLLATE NOCASE"))
        sink.merge(rows(("a", 1, {"n": 1})), create="always")
        run("UPDATE orders SET order_key = '00000B'")
        batch = rows(("a", 1, {"n": 2}))
        at = batch.column_names.index("order_key")
        sink.merge(batch.set_column(at, "order_key", pa.array(["00000a"])))
        assert documents(sink) == {"a": {"n": 2}}
        plan = "provider:resource:snapshot:s"
        sink.merge(page([], SnapshotStarted("00000B", plan)))
        assert read(sink)[key_of("a")]["order_key"] == ""

    @pytest.mark.parametrize(
        "ending",
        [
            ", PRIMARY KEY (key)) WITHOUT ROWID",
            ", PRIMARY KEY (key) ON CONFLICT REPLACE)",
            ", UNIQUE (key) ON CONFLICT IGNORE)",
            ", upper TEXT AS (upper(new_item_state)) STORED, rowid TEXT, `b``\"] c` TEXT DEFAULT 'x')",
        ],
    )
    def test_others_are_filled_and_repaired(self, sink, run, ending):
        run(made(more=ending, ending=""))
        sink.merge(rows(("a", 1, {"n": 1}), ("b", 1, {"n": 1}), ("gone", 1, None)), create="always")
        sink.merge(rows(("a", 2, {"n": 2}), ("b", 0, {"n": 0}), ("c", 1, None)))
        assert (documents(sink), tombstones(sink).keys()) == ({"a": {"n": 2}, "b": {"n": 1}}, {"c", "gone"})
        assert not [row for row in own(sink) if "x" in row.values()]  # the default of a column
        fix = Fix(key_of("a"), ("000002",), "000002", '{"n":3}', {}, NOW)
        assert sink.target.fix([fix], expected(sink)) == 1
        assert documents(sink)["a"] == {"n": 3}
        assert "upper" not in sink.target.columns()

    def test_no_other_row_goes_because_of_a_unique_column(self, sink, run):
        run(made(more=", total INT64 UNIQUE ON CONFLICT REPLACE"))
        sink.merge(wider("total", [1, 2], pa.int64()), create="always")
        assert "constraint" in refused(sink.merge, wider("total", [2], pa.int64(), 2)).message
        inserted = rows(("new", 1, {})).append_column("total", pa.array([2]))
        assert "constraint" in refused(sink.merge, inserted).message
        assert documents(sink).keys() == {"k0", "k1"}

    def test_a_computed_column_cannot_be_merged(self, sink, run):
        run(made(more=", total INT64 AS (length(key))"))
        batch = wider("total", [1], pa.int64())
        assert "is computed" in refused(sink.merge, batch, create="always", new_columns="add").message

    def test_several_rows_of_one_key_are_refused_and_repaired(self, sink, run):
        row = f"""('{key_of("a")}', '000001', null, '{{}}', null)"""
        run(made(), f"INSERT INTO orders VALUES {row}, {row}")
        assert "several rows" in refused(sink.merge, rows(("a", 2, {})), create="always").message
        fix = Fix(key_of("a"), ("000001", "000001"), "000001", '{"n":1}', None, NOW)
        assert sink.target.fix([fix], expected(sink)) == 1
        assert documents(sink) == {"a": {"n": 1}}
        sink.merge(rows(("a", 2, {"n": 2})), create="always")
        assert documents(sink) == {"a": {"n": 2}}

    def test_a_renamed_table_takes_its_mark_along_and_a_copy_has_none(self, sink, run):
        sink.merge(rows(("a", 1, {"n": 1})))
        mark = sink.target.found().mark
        run("ALTER TABLE orders RENAME TO old", "CREATE TABLE orders AS SELECT * FROM old WHERE 0")
        assert SqliteTable(sink.path, "old").found().mark == mark
        assert "NOT NULL" in refused(lambda: sink.target).message


class TestValues:
    """Tests values that SQLite does not have."""

    @pytest.mark.parametrize(
        ("values", "kind"),
        [
            ([1.0, float("nan")], pa.float64()), ([float("nan")], pa.float32()), ([2**64 - 1], pa.uint64()),
            ([1], pa.timestamp("ns", "UTC")), ([2**60], pa.timestamp("us")), ([2**31 - 1], pa.date32()),
            ([1], pa.duration("s")), ([[1]], pa.list_(pa.int8())), ([None], pa.null()),
        ],
        ids=str,
    )  # fmt: skip
    def test_are_refused_and_name_the_column(self, sink, values, kind):
        sink.merge(rows(("k0", 0, {})))
        assert "column total" in refused(sink.merge, wider("total", values, kind), new_columns="add").message
        assert documents(sink) == {"k0": {}}

    @pytest.mark.parametrize(
        ("value", "kind"),
        [(float("nan"), pa.float64()), (2**60, pa.timestamp("us")), (2**31 - 1, pa.date32())],
        ids=str,
    )
    def test_are_refused_with_the_key_of_their_row(self, sink, value, kind):
        message = refused(sink.merge, wider("total", [None, value, None], kind)).message
        assert key_digest(key_of("k1")) in message

    def test_texts_that_look_like_numbers_stay_texts(self, sink):
        values = ["1.0", "007", "1e3", "9223372036854775808", "a\0b", "", "NULL", "x'00'"]
        sink.merge(wider("total", values, pa.string()))
        assert [row["total"] for row in own(sink)] == values

    def test_floats_have_no_negative_zero(self, sink):
        values = [-0.0, 0.0, float("inf"), 5e-324, 2.0**63]
        sink.merge(wider("total", values, pa.float64()))
        holds = sink.target.columns()["total"]
        wanted = encode_json([decode_json(encode_json({"v": holds(each)}))["v"] for each in values])
        assert encode_json([row["total"] for row in own(sink)]) == wanted
        assert str(holds(-0.0)) == "0.0"

    def test_a_repair_writes_no_value_that_the_column_does_not_hold(self, sink):
        batch = wider("total", [1], pa.int64()).append_column("price", pa.array([None], pa.decimal128(4, 2)))
        sink.merge(batch.append_column("real", pa.array([1.5])))
        for columns in (
            {"total": 2**63}, {"total": "2"}, {"total": True}, {"real": float("nan")}, {"real": 1},
            {"price": Decimal("100.00")}, {"price": Decimal("1.005")}, {"price": Decimal("1E+999999")},
        ):  # fmt: skip
            fix = Fix(key_of("k0"), ("000001",), "000001", "{}", columns, NOW)
            message = refused(sink.target.fix, [fix], expected(sink)).message
            assert f"column {next(iter(columns))}" in message
            assert key_digest(key_of("k0")) in message
        assert own(sink) == [{"total": 1, "real": 1.5}]

    @pytest.mark.parametrize("names", [("Total", "total"), ("KEY",), ("a\0b",)])
    def test_names_that_sqlite_does_not_tell_apart(self, sink, names):
        batch = rows(("a", 1, {}))
        for name in names:
            batch = batch.append_column(name, pa.array(["x"]))
        assert names[-1][0] in refused(sink.merge, batch, new_columns="add").message
        assert not sink.path.exists()

    def test_what_others_have_written_is_read_as_it_is(self, sink, run):
        kinds = {
            "flag": pa.bool_(), "at": pa.timestamp("us", "UTC"), "local": pa.timestamp("us"),
            "day": pa.date32(), "price": pa.decimal128(4, 2), "n": pa.int64(), "real": pa.float64(),
            "raw": pa.binary(), "t": pa.string(),
        }  # fmt: skip
        batch = rows(("a", 1, {"n": 1}))
        for name, kind in kinds.items():
            batch = batch.append_column(name, pa.array([None], kind))
        sink.merge(batch)
        run(
            "UPDATE orders SET flag = 2, at = '2026-01-31', local = '2026-01-31', day = 'soon', "
            "price = '1,5', n = 'x', real = 'y', raw = 'z', t = x'00'"
        )
        assert own(sink) == [
            {
                "flag": 2, "at": "2026-01-31", "local": "2026-01-31",
                "day": "soon", "price": "1,5", "n": "x", "real": "y", "raw": "z", "t": b"\0",
            }
        ]  # fmt: skip

    def test_a_number_that_the_type_of_its_column_does_not_hold_is_read_as_it_is(self, sink, run):
        """SQLite stores it all the same, so a reader that rounds it would call a wrong row equal."""
        batch = rows(("a", 1, {"n": 1}))
        for name, kind in (("price", pa.decimal128(4, 2)), ("real", pa.float32()), ("n", pa.int64())):
            batch = batch.append_column(name, pa.array([None], kind))
        sink.merge(batch)
        run("UPDATE orders SET price = '1.504', real = 0.1, n = 2.5")
        [found] = own(sink)
        assert (found["price"], found["real"], found["n"]) == (Decimal("1.504"), 0.1, 2.5)

    def test_large_documents_are_read_in_small_batches(self, sink, monkeypatch):
        monkeypatch.setattr(layout, "GROUP_BYTES", 4000)
        sink.merge(rows(*((f"k{number:02}", 1, {"text": "x" * 1000}) for number in range(20))))
        sizes = [batch.num_rows for batch in sink.target.rows()]
        assert (sum(sizes), max(sizes)) == (20, 4)

    def test_bytes_in_place_of_texts(self, sink, run):
        sink.merge(rows(("a", 1, {"n": 1}), ("b", 1, {"n": 1}), ("c", 1, {})))
        run(
            "UPDATE orders SET new_item_state = CAST(new_item_state AS BLOB) WHERE key LIKE '%a%'",
            "UPDATE orders SET new_item_state = CAST(x'ff' AS TEXT) WHERE key LIKE '%b%'",
            "UPDATE orders SET order_key = x'00' WHERE key LIKE '%c%'",
        )
        found = read(sink)
        assert found[key_of("a")]["state"] == "bytes " + b'{"n":1}'.hex()
        assert found[key_of("b")]["state"] == "bytes ff"
        assert found[key_of("c")]["order_key"] == NO_ORDER
        sink.merge(rows(("c", 2, {"n": 2})))
        fix = Fix(key_of("c"), (NO_ORDER,), "000002", '{"n":2}', None, NOW)
        assert sink.target.fix([fix], expected(sink)) == 1
        assert read(sink)[key_of("c")]["state"] == '{"n":2}'
        run("UPDATE orders SET key = CAST(key AS BLOB) WHERE key LIKE '%a%'")
        assert "no text" in refused(read, sink).message


class TestFile:
    """Tests what happens to the file of the database."""

    def test_a_database_that_another_program_has_locked(self, sink):
        sink.merge(rows(("a", 1, {"n": 1})))
        table = SqliteTable(sink.path, "orders", patience_seconds=0.05)
        with closing(sqlite3.connect(sink.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(MulticloudDbError, match="locked") as caught:
                table.store({"n": 1}, {})
            assert (caught.value.category, caught.value.retryable) == (ErrorCategory.CONFLICT, True)
            assert documents(sink) == {"a": {"n": 1}}
        table.store({"n": 1}, {})
        assert table.number("n") == 1

    @pytest.mark.parametrize("when", ["BEGIN IMMEDIATE", "COMMIT"])
    def test_a_file_that_is_replaced_during_a_step(self, sink, monkeypatch, when):
        sink.merge(rows(("a", 1, {"n": 1})))
        copy = sink.path.with_name("copy.db")
        shutil.copy(sink.path, copy)
        table, execute = sink.target, Mortal.execute

        def replaced(database, statement, *arguments):
            found = execute(database, statement, *arguments)
            if statement == when and copy.exists():
                copy.rename(sink.path)
            return found

        with monkeypatch.context() as patched:
            patched.setattr(Mortal, "execute", replaced)
            with pytest.raises(MulticloudDbError, match="replaced") as caught:
                table.store({"n": 1}, {})
        assert caught.value.retryable
        sink.target.store({"n": 1}, {})
        assert sink.target.number("n") == 1
        assert documents(sink) == {"a": {"n": 1}}

    @pytest.mark.parametrize("in_place", [False, True])
    def test_what_was_compared_is_not_written_into_a_copy(self, sink, in_place):
        sink.merge(rows(("a", 1, {"n": 1})))
        copy = sink.path.with_name("copy.db")
        shutil.copy(sink.path, copy)
        if in_place:
            sink.merge(rows(("a", 2, {"n": 2})))
        before = expected(sink)
        if in_place:
            sink.path.write_bytes(copy.read_bytes())
        else:
            copy.rename(sink.path)
        assert "meanwhile" in refused(sink.target.fix, [], before).message
        assert documents(sink) == {"a": {"n": 1}}

    def test_a_merge_opens_the_file_once_for_each_step_that_writes(self, sink, monkeypatch):
        sink.merge(rows(("a", 1, {"n": 1})))
        said, execute, connect = list[str](), Mortal.execute, sqlite3.connect

        def noted(database, statement, *arguments):
            said.append(statement)
            return execute(database, statement, *arguments)

        def opened(*arguments, **settings):
            said.append("open")
            return connect(*arguments, **settings)

        monkeypatch.setattr(Mortal, "execute", noted)
        monkeypatch.setattr(sqlite3, "connect", opened)
        sink.merge(rows(("a", 2, {"n": 2})))
        # The first look at the table and the last one write nothing.
        assert said.count("open") <= said.count("BEGIN IMMEDIATE") + 2 < said.count("BEGIN")

    def test_between_the_steps_of_a_merge_others_write_and_the_file_has_what_was_committed(
        self, sink, monkeypatch, run
    ):
        sink.merge(rows(("a", 1, {"n": 1})))
        run("CREATE TABLE others (n)")
        merge, copy = SqliteTable.merge, sink.path.with_name("copy.db")

        def between(table, *arguments, **settings):
            with closing(sqlite3.connect(sink.path, timeout=0)) as other, other:
                other.execute("INSERT INTO others VALUES (1)")
            merge(table, *arguments, **settings)
            shutil.copy(sink.path, copy)

        monkeypatch.setattr(SqliteTable, "merge", between)
        sink.merge(rows(("a", 2, {"n": 2})))
        assert run("SELECT n FROM others") == [(1,)]
        sink.path = copy
        assert documents(sink) == {"a": {"n": 2}}

    def test_a_file_that_is_replaced_between_the_steps_of_a_merge(self, sink, monkeypatch):
        sink.merge(rows(("a", 1, {"n": 1})))
        copy, merge = sink.path.with_name("copy.db"), SqliteTable.merge
        shutil.copy(sink.path, copy)

        def replaced(table, *arguments, **settings):
            copy.rename(sink.path)
            merge(table, *arguments, **settings)

        with monkeypatch.context() as patched:
            patched.setattr(SqliteTable, "merge", replaced)
            with pytest.raises(MulticloudDbError, match="made again") as caught:
                sink.merge(rows(("a", 2, {"n": 2})))
        assert caught.value.category == ErrorCategory.CONFLICT
        assert documents(sink) == {"a": {"n": 1}}
        sink.merge(rows(("a", 2, {"n": 2})))
        assert documents(sink) == {"a": {"n": 2}}

    def test_a_file_that_is_replaced_is_opened_again_for_the_next_step(self, sink):
        sink.merge(rows(("a", 1, {"n": 1})))
        sink.target.store({"n": 1}, {})
        copy, table = sink.path.with_name("copy.db"), sink.target
        shutil.copy(sink.path, copy)
        with table.kept_open():
            table.store({"n": 2}, {})
            assert table.number("n") == 2
            copy.rename(sink.path)
            assert table.number("n") == 1

    def test_several_threads_make_the_database_at_once(self, sink):
        def fill(number):
            return sink.merge(rows((f"k{number}", 1, {"n": number})))

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(fill, number) for number in range(4)]
        for number, future in enumerate(futures):
            if (error := future.exception()) is not None:
                assert isinstance(error, MulticloudDbError)
                assert error.retryable, error
                fill(number)
        assert documents(sink) == {f"k{number}": {"n": number} for number in range(4)}

    def test_no_database(self, sink, tmp_path):
        sink.path.write_text("no database " * 100)
        assert "no database" in refused(sink.merge, rows(("a", 1, {}))).message
        for path in (tmp_path, tmp_path / "none" / "a.db", "", b"a.db", ":memory:", 5):
            error = refused(merge_into_sqlite, rows(("a", 1, {})), None, path, "orders", None)
            assert error.message.startswith("path: ")
        assert "s3cret" not in refused(SqliteTable, "https://me:s3cret@host/shop", "orders").message
        for name in ("", "sqlite_a", "multiclouddb_marks", "a\0b", "\ud800", 5):
            assert "table" in refused(SqliteTable, tmp_path / "a.db", name).message


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX by_total ON orders(total)",
        "CREATE VIEW totals AS SELECT total FROM orders",
        "ALTER TABLE orders ADD COLUMN more GENERATED ALWAYS AS (total) VIRTUAL",
    ],
)
def test_a_declared_column_that_something_uses_keeps_its_type_and_its_declaration(tmp_path, statement):
    path, before = tmp_path / "shop.db", Columns({"total": "int64"})

    def merge(batch, **options):
        return merge_into_sqlite(batch, None, path, "orders", None, **options)

    merge(page(events(("a", 1, {"total": 1}))), columns=before)
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement)
    begin = page([], SnapshotStarted("000100", PLAN))
    message = refused(merge, begin, columns=Columns({"total": "string"}), refill=True).message
    assert "drop what uses the column" in message
    merge(page(events(("a", 2, {"total": 2}))), columns=before)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT total FROM orders").fetchall() == [(2,)]


def test_a_restored_file_has_the_columns_and_the_declaration_of_its_copy(tmp_path):
    path, copy = tmp_path / "shop.db", tmp_path / "copy.db"
    before, after = Columns({"total": "int64"}), Columns({"total": "string"})
    begin, low = page([], SnapshotStarted("000100", PLAN)), "000100"
    scanned = events(("a", 0, {"total": 1}), mark="snapshot:s:", backfilled=True, floor=low)
    end = page(scanned, BackfillDone(PLAN, low))

    def merge(batch, **options):
        return merge_into_sqlite(batch, None, path, "orders", None, **options)

    def kept(source, target):
        with closing(sqlite3.connect(source)) as database, closing(sqlite3.connect(target)) as made:
            database.backup(made)

    def stored():
        with closing(sqlite3.connect(path)) as database:
            return database.execute("SELECT total FROM orders").fetchall()

    merge(page(events(("a", 1, {"total": 1}))), columns=before)
    kept(path, copy)
    for each in (begin, end):
        merge(each, columns=after, refill=True)
    assert stored() == [("1",)]
    kept(copy, path)
    assert (stored(), SqliteTable(path, "orders").found().mark.declared) == ([(1,)], before)
    assert "refill=True" in refused(merge, page(events(("a", 2, {"total": 2}))), columns=after).message
    for each in (begin, end):
        merge(each, columns=after, refill=True)
    assert (stored(), SqliteTable(path, "orders").found().mark.unfilled) == ([("1",)], ())


def test_a_time_without_a_zone_removes_no_tombstone(tmp_path):
    """Nobody says whether it is a time of UTC or of this machine."""
    late = datetime(9999, 1, 1, tzinfo=UTC)
    path = tmp_path / "orders.sqlite"
    merge_into_sqlite(rows(("a", 1, None)), None, path, "orders", None)
    table = SqliteTable(path, "orders")
    drop = partial(table.drop_tombstones, late.replace(tzinfo=None))
    refusal(ErrorCategory.INVALID_REQUEST, drop, "before: is a naive datetime")
    assert table.drop_tombstones(late) == 1
