"""Tests that the same programs get the same answers from the scripted server and from Google's emulator."""

import json
import re
import threading
from contextlib import contextmanager
from decimal import Decimal

import pytest
from google.cloud import spanner
from google.cloud.spanner_v1 import JsonObject
from google.cloud.spanner_v1.types import TransactionOptions

from multiclouddb_spanner_emulator import Habits, ScriptedSpanner

from .native import Native, google_emulator, later, refused

TABLE = (
    "CREATE TABLE t (id STRING(MAX) NOT NULL, n INT64, f FLOAT64, b BOOL, byt BYTES(MAX), num NUMERIC, "
    "ts TIMESTAMP, d DATE, j JSON, a ARRAY<INT64>) PRIMARY KEY (id)"
)
PAIRS = "CREATE TABLE u (k INT64 NOT NULL, l STRING(10) NOT NULL, v INT64) PRIMARY KEY (k DESC, l)"
STREAM = "CREATE CHANGE STREAM s FOR ALL"
CAPTURES = ("OLD_AND_NEW_VALUES", "NEW_VALUES", "NEW_ROW", "NEW_ROW_AND_OLD_VALUES")
MISSING = re.compile(r" \[at .*|\n.*", re.S)


@contextmanager
def started(kind, *flags):
    """Provide the server, and a function that ends its partitions."""
    if kind == "google":
        with google_emulator(*flags) as host:
            yield host, None
    else:
        with ScriptedSpanner(Habits(first_partition_only=True)) as server:
            yield server.host, server


@pytest.fixture(params=["scripted", "google"], scope="module")
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def host(kind):
    with started(kind, "--enable_change_stream_churning=false") as (found, _):
        yield found


def keys(*values):
    return spanner.KeySet(keys=[[value] for value in values])


def without_names(told):
    """Return a data change record without its time and transaction id, because they differ between
    servers."""
    return told[1:2] + told[3:]


class TestTransactions:
    @pytest.mark.parametrize("capture", CAPTURES)
    def test_the_net_effect_of_a_transaction(self, host, capture):
        options = f" OPTIONS (value_capture_type = '{capture}')"
        native = Native(host, TABLE, STREAM + options)
        start = native.now()
        with native.batch() as batch:
            batch.insert("t", ["id", "n"], [["b", 1], ["a", 2], ["c", 3]])
            batch.insert("t", ["id", "f"], [["aa", 1.5]])
        with native.batch() as batch:
            batch.update("t", ["id", "n"], [["b", 5]])
            batch.delete("t", keys("a"))
            batch.insert("t", ["id", "n"], [["z", 1]])
            batch.update("t", ["id", "f"], [["c", 5.5]])
            batch.insert_or_update("t", ["id", "n"], [["c", 9]])
            batch.replace("t", ["id", "n"], [["aa", 9]])
            batch.delete("t", keys("missing"))
        with native.batch() as batch:
            batch.insert("t", ["id", "n"], [["short", 1]])
            batch.delete("t", keys("short"))
        with native.batch() as batch:
            batch.update("t", ["id", "n"], [["b", 5]])
            batch.update("t", ["id", "f"], [["c", 7.25]])
            batch.update("t", ["id", "n"], [["z", 2]])
        with native.batch() as batch:
            batch.update("t", ["id", "n"], [["z", 3]])
            batch.delete("t", keys("z"))
            batch.insert("t", ["id", "n"], [["z", 4]])
        with native.batch() as batch:
            batch.delete("t", spanner.KeySet(all_=True))
        told = [without_names(each) for each in native.everything("s", start, native.now())]
        assert told == _expected(("net", capture), told)

    def test_keys_of_two_columns_in_their_order(self, host):
        native = Native(host, PAIRS, STREAM)
        start = native.now()
        with native.batch() as batch:
            batch.insert("u", ["k", "l", "v"], [[1, "x", 1], [2, "y", 2], [2, "a", 3], [-5, "b", None]])
        with native.batch() as batch:
            batch.update("u", ["k", "l", "v"], [[1, "x", 1]])
            batch.delete("u", spanner.KeySet(keys=[[2, "y"]]))
        told = [without_names(each) for each in native.everything("s", start, native.now())]
        assert told == _expected("pairs", told)

    def test_values_of_every_type(self, host):
        native = Native(host, TABLE, STREAM)
        start = native.now()
        with native.batch() as batch:
            batch.insert(
                "t",
                ["id", "n", "f", "b", "byt", "num", "ts", "d", "j", "a"],
                [
                    ["all", 2**62, 1e300, True, b"AP8=", Decimal("1.50"), "2026-01-02T03:04:05Z",
                     "2026-01-02", JsonObject({"x": [1, None], "a": "é"}), [1, -2]],
                    ["none", *[None] * 9],
                ],
            )  # fmt: skip
        told = [without_names(each) for each in native.everything("s", start, native.now())]
        assert told == _expected("values", told)

    def test_what_a_stream_leaves_out(self, host):
        options = " OPTIONS (exclude_insert = true)"
        native = Native(host, TABLE, PAIRS, "CREATE CHANGE STREAM s FOR t(n), u()" + options)
        start = native.now()
        with native.batch() as batch:
            batch.insert("t", ["id", "n", "f"], [["a", 1, 1.5]])
        with native.batch() as batch:
            batch.update("t", ["id", "f"], [["a", 2.5]])
        with native.batch() as batch:
            batch.update("t", ["id", "n", "f"], [["a", 2, 2.5]])
        with native.batch() as batch:
            batch.insert("u", ["k", "l", "v"], [[1, "x", 1]])
        with native.batch() as batch:
            batch.update("u", ["k", "l", "v"], [[1, "x", 2]])
        with native.batch() as batch:
            batch.delete("t", keys("a"))
        told = [without_names(each) for each in native.everything("s", start, native.now())]
        assert told == _expected("left out", told)

    def test_a_capture_type_that_changes(self, host):
        native = Native(host, TABLE, STREAM)
        start = native.now()
        for number, capture in enumerate(CAPTURES):
            native.ddl(f"ALTER CHANGE STREAM s SET OPTIONS (value_capture_type = '{capture}')")
            with native.batch() as batch:
                batch.insert_or_update("t", ["id", "n"], [["a", number]])
        told = [without_names(each) for each in native.everything("s", start, native.now())]
        assert told == _expected("altered", told)


_seen = {}


def _expected(name, told):
    """Return the answer of the first server that ran this program, so that the servers can be compared."""
    return _seen.setdefault(name, told)


class TestWindows:
    def test_both_ends_are_inclusive(self, host):
        native = Native(host, TABLE, STREAM)
        start = native.now()
        moments = []
        for number in range(3):
            with native.batch() as batch:
                batch.insert("t", ["id", "n"], [[f"k{number}", number]])
            moments.append(native.everything("s", start, native.now())[-1][0])

        def count(low, high):
            return len(native.everything("s", low, high))

        first, second, third = moments
        assert count(first, third) == 3
        assert count(second, second) == 1
        assert count(later(first, 1), third) == 2
        assert count(first, later(third, -1)) == 2
        assert count(later(third, 1), native.now()) == 0

    def test_a_window_without_data_ends_with_a_heartbeat_of_its_end(self, host):
        native = Native(host, TABLE, STREAM)
        start, end = native.now(), native.now()
        token = native.tokens("s", start)[0]
        assert native.read("s", start, end, token) == [[[], [[end]], []]]
        with native.batch() as batch:
            batch.insert("t", ["id"], [["a"]])
        rows = native.read("s", start, native.now(), token)
        assert [[len(part) for part in row] for row in rows] == [[1, 0, 0]]

    def test_a_strong_read_is_later_than_every_commit_before_it_and_before_every_other(self, host):
        native = Native(host, TABLE, STREAM)
        start = native.now()
        for number in range(10):
            with native.batch() as batch:
                batch.insert("t", ["id"], [[f"k{number}"]])
            assert len(native.everything("s", start, native.now())) == 1
            between = later(native.now(), 1)
            with native.batch() as batch:
                batch.update("t", ["id", "n"], [[f"k{number}", number]])
            assert len(native.everything("s", between, native.now())) == 1
            with native.batch() as batch:
                batch.delete("t", keys(f"k{number}"))
            assert len(native.everything("s", between, native.now())) == 2
            start = later(native.now(), 1)

    def test_a_window_that_ends_later_gets_what_is_written_meanwhile(self, host):
        native = Native(host, TABLE, STREAM)
        start = native.now()
        token = native.tokens("s", start)[0]

        def write():
            with native.batch() as batch:
                batch.insert("t", ["id"], [["a"]])

        writer = threading.Timer(0.3, write)
        writer.start()
        rows = native.read("s", start, later(start, 1_500_000), token)
        writer.join()
        assert [[len(part) for part in row] for row in rows] == [[1, 0, 0]]

    def test_heartbeats_come_while_nothing_else_does(self, host):
        native = Native(host, TABLE, STREAM)
        start = native.now()
        token = native.tokens("s", start)[0]
        rows = native.read("s", start, later(start, 1_000_000), token, beat="200")
        assert all([len(part) for part in row] == [0, 1, 0] for row in rows)
        assert 3 <= len(rows) <= 7
        assert start < rows[0][1][0][0] < rows[-1][1][0][0] <= later(start, 1_000_000)

    def test_the_root_query_names_the_partitions_without_parents(self, host):
        native = Native(host, TABLE, STREAM)
        start = native.now()
        rows = native.read("s", start)
        assert [row[:2] for row in rows] == [[[], []]] * len(rows)
        assert [(row[2][0][0], row[2][0][1], row[2][0][2][0][1]) for row in rows] == [
            (start, f"{number:08d}", []) for number in range(len(rows))
        ]


class TestErrors:
    def test_what_is_refused_is_refused_alike(self, host):
        native = Native(host, TABLE, STREAM, "CREATE CHANGE STREAM other FOR t")
        start = native.now()
        (token, *_) = native.tokens("s", start)
        end = native.now()
        stale = TransactionOptions(read_only=TransactionOptions.ReadOnly(read_timestamp=end))
        calls = {
            "past": lambda: native.read("s", "2020-01-01T00:00:00Z"),
            "past token": lambda: native.read("s", "2020-01-01T00:00:00Z", end, token),
            "future": lambda: native.read("s", "2090-01-01T00:00:00Z"),
            "end before start": lambda: native.read("s", end, start, token),
            "heartbeat small": lambda: native.read("s", start, end, token, "99"),
            "heartbeat large": lambda: native.read("s", start, end, token, "300001"),
            "no heartbeat": lambda: native.read("s", start, end, token, None),
            "no start": lambda: native.read("s", None, end, token),
            "no token": lambda: native.read("s", start, end, "nonsense"),
            "token of another": lambda: native.read("other", start, end, token),
            "no stream": lambda: native.read("missing", start, end, token),
            "no session": lambda: native.ask("SELECT 1", session=native.database.name + "/sessions/none"),
            "no table": lambda: native.ask("SELECT * FROM missing"),
            "stale": lambda: native.read("s", start, end, token, transaction=stale),
            "no database": lambda: native.api.create_session(database=native.database.name + "x"),
            "no instance": lambda: native.api.create_session(
                database="projects/tests/instances/no/databases/d"
            ),
            "row again": lambda: _insert(native, "t", ["id"], [["a"], ["a"]]),
            "write no table": lambda: _insert(native, "missing", ["id"], [["a"]]),
            "write no column": lambda: _insert(native, "t", ["missing"], [["a"]]),
            "table again": lambda: native.ddl(TABLE),
            "stream again": lambda: native.ddl(STREAM),
            "drop no stream": lambda: native.ddl("DROP CHANGE STREAM missing"),
            "drop no table": lambda: native.ddl("DROP TABLE missing"),
            "column again": lambda: native.ddl("ALTER TABLE t ADD COLUMN n INT64"),
            "drop no column": lambda: native.ddl("ALTER TABLE t DROP COLUMN missing"),
            "no option": lambda: native.ddl("CREATE CHANGE STREAM s3 FOR ALL OPTIONS (foo = 'x')"),
            "four": lambda: native.ddl("CREATE CHANGE STREAM s3 FOR t", "CREATE CHANGE STREAM s4 FOR t"),
        }
        told = {name: _plain(native, *refused(call)) for name, call in calls.items()}
        expected = _expected("errors", told)
        assert {name for name in told if told[name][0] == "OK"} == set()
        assert told == expected

    @pytest.mark.parametrize("postgres", [False, True])
    def test_the_schema_is_the_present_one(self, host, postgres):
        """GetDatabaseDdl answers with the statements that create it, whatever was executed before."""
        if postgres:
            table = (
                "CREATE TABLE t (id varchar PRIMARY KEY, n bigint, v varchar(10) NOT NULL, a bigint[], "
                "ts timestamptz)"
            )
            stream = "CREATE CHANGE STREAM s FOR t(n) WITH (value_capture_type = 'NEW_ROW')"
            native = Native(host, table, stream, postgres=True)
            changes = "ALTER CHANGE STREAM s SET (retention_period = '2d')"
            column = "ALTER TABLE t ADD COLUMN more varchar(20)"
        else:
            native = Native(host, TABLE, PAIRS, STREAM, "CREATE CHANGE STREAM two FOR t(n, f), u")
            changes = "ALTER CHANGE STREAM s SET OPTIONS (retention_period = '2d')"
            column = "ALTER TABLE t ADD COLUMN more STRING(20)"
        told = []
        for statement in (None, column, "ALTER TABLE t DROP COLUMN more", changes, "CREATE CHANGE STREAM w"):
            if statement is not None:
                native.ddl(statement)
            native.database.reload()
            told.append([" ".join(each.split()) for each in native.database.ddl_statements])
        native.ddl("DROP CHANGE STREAM w", "DROP CHANGE STREAM s")
        native.database.reload()
        told.append([" ".join(each.split()) for each in native.database.ddl_statements])
        assert told == _expected(("schema", postgres), told)

    @pytest.mark.parametrize("given", [[1], [1, "a", 2]], ids=len)
    def test_a_key_with_a_part_less_or_more_is_refused(self, host, given):
        native = Native(host, PAIRS, STREAM)
        with native.batch() as batch:
            batch.insert("u", ["k", "l"], [[1, "a"]])

        def read():
            with native.database.snapshot() as snapshot:
                return list(snapshot.read("u", ["k"], spanner.KeySet(keys=[given])))

        status, message = refused(read)
        assert status == "FAILED_PRECONDITION"
        count = f"Expected 2 key parts, found {len(given)} key parts."
        assert message.startswith(f"Wrong number of key parts for u. {count}")

    def test_a_token_lives_from_its_start_to_its_end(self, kind):
        flags = (
            "--override_change_stream_partition_token_alive_seconds=1",
            "--change_stream_churn_thread_sleep_interval=1s",
            "--change_stream_churning_interval=1s",
        )
        with started(kind, *flags) as (host, server):
            native = Native(host, TABLE, STREAM)
            start = native.now()
            token = native.tokens("s", start)[0]
            ending = threading.Timer(0.3, lambda: server and server.move(token))
            ending.start()
            rows = native.read("s", start, None, token, timeout=30)
            ending.join()
            (end, sequence, children) = rows[-1][2][0]
            assert sequence == "00000000"
            assert all(token in parents for _, parents in children)
            child = children[0][0]
            assert native.read("s", end, end, token) == rows[-1:]
            assert native.read("s", start, end, token)[-1:] == rows[-1:]
            assert native.read("s", start, later(end, -1), token)[-1] == [[], [[later(end, -1)]], []]
            assert native.read("s", end, end, child)[-1] == [[], [[end]], []]
            for moment, which in ((later(end, 1), token), (later(end, -1), child)):
                status, message = refused(
                    lambda moment=moment, which=which: native.read("s", moment, None, which)
                )
                assert status == "OUT_OF_RANGE"
                assert "start_timestamp is invalid for the partition" in message
            assert child in native.tokens("s", later(end, 1))
            assert token not in native.tokens("s", end)


def _insert(native, table, columns, rows):
    with native.batch() as batch:
        batch.insert(table, columns, rows)


def _plain(native, status, message):
    """Return the message without names, times and positions in a statement."""
    text = MISSING.sub("", str(message).replace(native.database.name, "DATABASE"))
    text = re.sub(r", request_id = .*|\d{4}-\d\d-\d\dT[0-9:.]+|[A-Za-z0-9_-]{60,}", "", text)
    return status, text


def test_a_session_tells_of_itself(host):
    native = Native(host)
    (batched,) = native.api.batch_create_sessions(database=native.database.name, session_count=1).session
    for name in (batched.name, native.session):
        found = native.api.get_session(name=name)
        # Google's emulator makes no multiplexed sessions.
        told = {field.name for field, _ in found._pb.ListFields()} - {"multiplexed"}
        assert told == _expected("session", told)


class TestInformation:
    QUERIES = (
        "SELECT * FROM INFORMATION_SCHEMA.CHANGE_STREAMS",
        "SELECT * FROM INFORMATION_SCHEMA.CHANGE_STREAM_TABLES",
        "SELECT * FROM INFORMATION_SCHEMA.CHANGE_STREAM_COLUMNS",
        "SELECT * FROM INFORMATION_SCHEMA.CHANGE_STREAM_OPTIONS",
        "SELECT * FROM INFORMATION_SCHEMA.DATABASE_OPTIONS WHERE OPTION_NAME = 'database_dialect'",
        "SELECT cs.CHANGE_STREAM_NAME AS name, cs.ALL AS every, o.OPTION_VALUE "
        "FROM INFORMATION_SCHEMA.CHANGE_STREAMS AS cs LEFT JOIN INFORMATION_SCHEMA.CHANGE_STREAM_OPTIONS "
        "AS o ON o.CHANGE_STREAM_NAME = cs.CHANGE_STREAM_NAME",
        "SELECT COLUMN_NAME, ORDINAL_POSITION, COLUMN_ORDERING FROM INFORMATION_SCHEMA.INDEX_COLUMNS "
        "WHERE TABLE_SCHEMA = '' AND INDEX_TYPE = 'PRIMARY_KEY' ORDER BY TABLE_NAME, ORDINAL_POSITION",
        "SELECT TABLE_NAME, COLUMN_NAME, ORDINAL_POSITION, IS_NULLABLE, SPANNER_TYPE "
        "FROM INFORMATION_SCHEMA.COLUMNS WHERE TABLE_SCHEMA = '' AND TABLE_NAME IN ('t', 'u')",
        "SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = ''",
        "SELECT cs.change_stream_name, Table_Name AS place, all_Columns "
        "FROM information_schema.change_stream_tables AS cs",
        "SELECT change_stream_name, `ALL` FROM information_schema.change_streams",
    )  # fmt: skip

    def test_a_database_tells_of_itself(self, host):
        options = " OPTIONS (value_capture_type = 'NEW_ROW', retention_period = '36h')"
        native = Native(host, TABLE, PAIRS, STREAM, "CREATE CHANGE STREAM two FOR t, u(v)" + options)
        native.ddl("CREATE CHANGE STREAM nothing")
        for sql in self.QUERIES:
            names, rows = native.ask(sql)
            told = names, sorted(rows, key=str)
            assert told == _expected(sql, told)

    def test_a_database_of_postgres_tells_of_itself(self, host):
        native = Native(
            host,
            "CREATE TABLE t (id varchar(30) NOT NULL, n bigint, f double precision, j jsonb, ts timestamptz, "
            "a bigint[], PRIMARY KEY (id))",
            "CREATE CHANGE STREAM s FOR ALL WITH (value_capture_type = 'NEW_ROW')",
            "CREATE CHANGE STREAM Two FOR t",
            postgres=True,
        )
        queries = [
            *(
                f"SELECT * FROM information_schema.change_stream{name}"
                for name in ("s", "_tables", "_options")
            ),
            "SELECT option_value FROM information_schema.database_options "
            "WHERE option_name = 'database_dialect'",
            "SELECT column_name, spanner_type, data_type, ordinal_position, is_nullable "
            "FROM information_schema.columns WHERE table_schema = 'public'",
        ]
        for sql in queries:
            names, rows = native.ask(sql)
            told = names, sorted(rows, key=str)
            assert told == _expected(sql, told)


class TestPostgres:
    def test_records_are_json(self, host):
        native = Native(
            host,
            "CREATE TABLE t (id varchar NOT NULL, n bigint, f double precision, b boolean, num numeric, "
            "j jsonb, a bigint[], PRIMARY KEY (id))",
            "CREATE CHANGE STREAM s FOR ALL WITH (value_capture_type = 'NEW_ROW_AND_OLD_VALUES')",
            postgres=True,
        )
        start = native.now()
        with native.batch() as batch:
            batch.insert("t", ["id", "n", "f", "j", "a"], [["x", 1, 1.5, '{"b": 1, "a": 2}', [1, 2]]])
        with native.batch() as batch:
            batch.update("t", ["id", "n"], [["x", 2]])
        with native.batch() as batch:
            batch.delete("t", keys("x"))
        end = native.now()
        tokens = [
            child["token"]
            for row in native.read("s", start)
            for child in json.loads(row)["child_partitions_record"]["child_partitions"]
        ]
        rows = [json.loads(row) for token in tokens for row in native.read("s", start, end, token)]
        data = [row["data_change_record"] for row in rows if "data_change_record" in row]
        beats = [row["heartbeat_record"]["timestamp"] for row in rows if "heartbeat_record" in row]
        assert all(beat.endswith("+00:00") for beat in beats)
        for told in data:
            assert told.pop("commit_timestamp").endswith("+00:00")
            del told["server_transaction_id"]
        assert len(data) == 3
        assert data == _expected("postgres", data)

    @pytest.mark.parametrize("postgres", [True, False], ids=["jsonb", "json"])
    def test_numbers_in_json(self, host, postgres):
        text = (
            "[18446744073709551615, 18446744073709551616, -9223372036854775809, "
            "123456789012345678901234567890, 0.1, 1.10, 2.50e-3, "
            "12345678901234567890.125, 3.141592653589793238]"
        )
        table, stream = ("CREATE TABLE t (id varchar, j jsonb, PRIMARY KEY (id))", STREAM)
        if not postgres:
            table = "CREATE TABLE t (id STRING(9), j JSON) PRIMARY KEY (id)"
        native = Native(host, table, stream, postgres=postgres)
        with native.batch() as batch:
            batch.insert("t", ["id", "j"], [["x", text]])
        with native.database.snapshot() as snapshot:
            [[found]] = snapshot.read("t", ["j"], spanner.KeySet(all_=True), lazy_decode=False)
        told = found.serialize() if isinstance(found, JsonObject) else found
        assert told == _expected(f"numbers {postgres}", told)

    def test_a_stream_that_is_missing_has_another_status(self, host):
        native = Native(host, postgres=True)
        status, message = refused(lambda: native.read("missing", native.now()))
        assert status == "NOT_FOUND"
        assert "function spanner.read_json_missing" in message
