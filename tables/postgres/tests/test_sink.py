"""Tests what is PostgreSQL's own: exactly once, kills of client and server, and its refusals."""

import json
import os
import random
import signal
import string
import subprocess
import sys
import threading
import traceback
from contextlib import ExitStack
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import attrs
import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row, namedtuple_row, scalar_row

from multiclouddb_api import (
    BackfillDone,
    Beginning,
    ChangeFeedRequest,
    Checkpoint,
    ErrorCategory,
    MulticloudDbError,
    ResourceAddress,
    SnapshotStarted,
    connect,
)
from multiclouddb_conformance.sink_harness import PLAN, SOURCE, bare, events, key_of, page, rows
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_postgres import PostgresCheckpointStore, PostgresTarget, merge_into_postgres
from multiclouddb_postgres.frames import FrameTable
from multiclouddb_postgres.server import errors as server_errors
from multiclouddb_postgres.server import repeated
from multiclouddb_postgres.table import PostgresTable
from multiclouddb_postgres.values import copied
from multiclouddb_spi import encode_partition_id
from multiclouddb_spi.faults import key_digest
from multiclouddb_tables import Columns
from testing.postgres_server import PostgresServer

AT = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
IGNORES_CASE = """
CREATE FUNCTION compared(text, text) RETURNS int LANGUAGE sql IMMUTABLE AS
'SELECT bttextcmp(lower($1), lower($2))';
CREATE FUNCTION is_less(text, text) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT lower($1) < lower($2)';
CREATE FUNCTION is_same(text, text) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT lower($1) = lower($2)';
CREATE OPERATOR <# (LEFTARG = text, RIGHTARG = text, FUNCTION = is_less);
CREATE OPERATOR =# (LEFTARG = text, RIGHTARG = text, FUNCTION = is_same);
CREATE OPERATOR CLASS ignores_case FOR TYPE text USING btree AS
OPERATOR 1 <#, OPERATOR 3 =#, FUNCTION 1 compared(text, text)
"""
PROGRAM = Path(__file__).with_name("program.py")


def run(part, *arguments):
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), part, *arguments], stdout=subprocess.PIPE, text=True
    )


def named(error, name):
    """Return True if a message names a key, and does not show it."""
    return key_digest(key_of(name)) in error.message and f'"{name}"' not in str(error)


def refused(call, category=ErrorCategory.INVALID_REQUEST):
    with pytest.raises(MulticloudDbError) as caught:
        call()
    assert caught.value.category == category
    assert "\n" not in caught.value.message
    return caught.value


def query(dsn, text):
    with psycopg.connect(dsn) as connection:
        return connection.execute(text).fetchall()


def merged(dsn, *changes, **options):
    return merge_into_postgres(rows(*changes), None, dsn, "orders", None, **options)


def keys(dsn):
    return {key for (key,) in query(dsn, "SELECT key FROM orders WHERE _deleted_at IS NULL")}


class TestExactlyOnce:
    def test_rows_and_token_are_one_transaction(self, dsn):
        store = PostgresCheckpointStore(dsn)
        first = page(events(("a", 1, {})), token="t1")
        merge_into_postgres(first, None, dsn, "orders", None, checkpoint_name="w")
        saved = store.load("w")
        assert saved.token == "t1"
        second = page(events(("b", 2, {})), token="t2")
        merge_into_postgres(second, None, dsn, "orders", None, checkpoint_name="w", checkpoint=saved)
        assert store.load("w").token == "t2"
        # A page without events moves the token too.
        merge_into_postgres(
            page([], token="t3"), None, dsn, "orders", None, checkpoint_name="w", checkpoint=store.load("w")
        )
        assert store.load("w").token == "t3"
        assert PostgresTarget(dsn, "orders").position() == "t3"

    @pytest.mark.parametrize("checkpoint", [None, Checkpoint("t1", "1-abc")])
    def test_second_worker_conflicts_and_writes_nothing(self, dsn, checkpoint):
        merge_into_postgres(
            page(events(("a", 1, {})), token="t1"), None, dsn, "orders", None, checkpoint_name="w"
        )
        late = page(events(("b", 2, {})), token="late")
        refused(
            lambda: merge_into_postgres(
                late, None, dsn, "orders", None, checkpoint_name="w", checkpoint=checkpoint
            ),
            ErrorCategory.CONFLICT,
        )
        assert keys(dsn) == {'{"id":"a"}'}
        assert PostgresCheckpointStore(dsn).load("w").token == "t1"

    def test_part_of_the_callers_transaction(self, dsn):
        with psycopg.connect(dsn) as connection:
            with connection.transaction(force_rollback=True):
                merge_into_postgres(
                    page(events(("a", 1, {}))), None, connection, "orders", None, checkpoint_name="w"
                )
            assert PostgresCheckpointStore(dsn).load("w") is None
            assert connection.execute("SELECT to_regclass('orders')").fetchone() == (None,)
            for _ in range(2):
                with connection.transaction():
                    merge_into_postgres(page(events(("a", 1, {}))), None, connection, "orders", None)
                    merge_into_postgres(page(events(("b", 1, {}))), None, connection, "orders", None)
            left = "SELECT count(*) FROM pg_class WHERE relpersistence = 't' AND relkind = 'r'"
            assert connection.execute(left).fetchone() == (0,)
        assert len(keys(dsn)) == 2

    def test_work_in_the_callers_transaction_is_not_repeated(self, dsn):
        """The transaction may have to be repeated as a whole, which only the caller can do."""
        done = []

        def work(connection):
            done.append(connection)
            connection.execute("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$")

        with psycopg.connect(dsn, autocommit=True) as connection, connection.transaction():
            error = refused(partial(repeated, connection, "orders", work), ErrorCategory.CONFLICT)
        assert error.detail.native_code == "40001"
        assert len(done) == 1

    @pytest.mark.parametrize(
        ("busy", "said"),
        [("failed", "has failed before"), ("pipeline", "pipeline mode"), ("copy", "has not ended")],
    )
    def test_a_connection_on_which_nothing_can_be_run_is_refused(self, dsn, busy, said):
        """Another try changes nothing, so the error must not ask for one."""
        with psycopg.connect(dsn) as connection, ExitStack() as stack:
            if busy == "failed":
                with pytest.raises(psycopg.Error):
                    connection.execute("SELECT 1 / 0")
            elif busy == "pipeline":
                stack.enter_context(connection.pipeline())
            else:
                copy = stack.enter_context(connection.cursor().copy("COPY (SELECT 1) TO STDOUT"))
                stack.callback(lambda: [*copy])
            error = refused(
                lambda: merge_into_postgres(page(events(("a", 1, {}))), None, connection, "orders", None),
                ErrorCategory.INVALID_REQUEST,
            )
            assert said in str(error)

    def test_a_table_that_the_caller_reads_gets_no_column(self, dsn):
        merge_into_postgres(rows(("a", 1, {})), None, dsn, "orders", None)
        with psycopg.connect(dsn) as connection, connection.cursor("mine") as cursor:
            cursor.execute("SELECT * FROM orders")
            batch = rows(("a", 2, {})).append_column("n", pa.array([1]))
            error = refused(
                lambda: merge_into_postgres(batch, None, connection, "orders", None, new_columns="add"),
                ErrorCategory.INVALID_REQUEST,
            )
            assert "close the cursor" in str(error)

    @pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.soak)])
    def test_program_that_adds_to_a_counter_survives_kills(self, dsn, tmp_path, kills):
        dice = random.Random(kills)
        with EmbeddedStore(tmp_path / "shop.db", durable=False) as store:
            store.create_collection("orders", partitions=3)
            for number in range(100 * kills):
                store.put("orders", f"k{dice.randrange(200)}", {"n": number})
            query_of = psycopg.connect(dsn, autocommit=True)
            query_of.execute("CREATE TABLE counter (n bigint)")
            query_of.execute("INSERT INTO counter VALUES (0)")
            for _ in range(kills):
                ran = run("follow", dsn, f"embedded://{store.path}")
                for _ in range(dice.randrange(1, 8)):
                    ran.stdout.readline()
                if dice.random() < 0.5:
                    wait_until(partial(in_transaction, query_of, ran))
                ran.kill()
                ran.communicate()
            ran = run("follow", dsn, f"embedded://{store.path}")
            ran.communicate(timeout=300)
            assert ran.returncode == 0
            assert query_of.execute("SELECT n FROM counter").fetchone() == (100 * kills,)
            live = {f'{{"id":"{key.components["id"]}"}}' for key, _ in store.scan("orders")}
            assert keys(dsn) == live
            query_of.close()


BUSY = "SELECT 1 FROM pg_stat_activity WHERE state LIKE '%transaction%' AND pid <> pg_backend_pid()"


def in_transaction(connection, program):
    """Return True if the program is inside a transaction, or has ended."""
    return connection.execute(BUSY).fetchone() is not None or program.poll() is not None


WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO %'"


LOCKING = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'LOCK TABLE %'"


class Held:
    """Keeps a merge between its COPY and its commit, because another transaction writes the same keys."""

    def __init__(self, dsn):
        self.dsn = dsn
        merged(dsn, ("old", 1, {}))
        self.lock = psycopg.connect(dsn)
        insert = "INSERT INTO orders (key, order_key) VALUES (%s, '')"
        self.lock.cursor().executemany(insert, [(key_of(name),) for name in (0, "new")])

    def waiting(self):
        found = []

        def waits():
            with psycopg.connect(self.dsn) as connection:
                found[:] = connection.execute(WAITING).fetchall()
            return found

        wait_until(waits, seconds=60)
        return found[0][0]

    def check(self):
        """Nothing of the batch is there; merged again, all of it is."""
        assert keys(self.dsn) == {'{"id":"old"}'}
        names = query(self.dsn, "SELECT name FROM multiclouddb_marks ORDER BY name")
        assert names == [("multiclouddb-feed",), ("multiclouddb-filled",)]
        merge = run("merge", self.dsn, "50")
        merge.communicate(timeout=60)
        assert merge.returncode == 0
        assert len(keys(self.dsn)) == 51


class TestKills:
    """Something dies between COPY and commit."""

    def test_client(self, dsn):
        held = Held(dsn)
        merge = run("merge", dsn, "50")
        held.waiting()
        merge.kill()
        merge.communicate()
        held.lock.close()
        held.check()

    @pytest.mark.parametrize("how", ["pg_terminate_backend", "pg_cancel_backend"])
    def test_backend(self, dsn, how):
        held, caught = Held(dsn), []
        thread = threading.Thread(target=lambda: caught.append(refused_by(dsn)))
        thread.start()
        query(dsn, f"SELECT {how}({held.waiting()})")
        thread.join(60)
        held.lock.close()
        assert (caught[0].category, caught[0].detail.retryable) == (ErrorCategory.TRANSIENT_FAILURE, True)
        held.check()

    @pytest.mark.parametrize("whole", [False, True])
    def test_server(self, whole):
        """A backend that is killed takes the server's other processes along; so does the server itself."""
        with PostgresServer() as server:
            held, caught = Held(server.dsn), []
            thread = threading.Thread(target=lambda: caught.append(refused_by(server.dsn)))
            thread.start()
            backend = held.waiting()
            if whole:
                server.kill()
                server.start()
            else:
                os.kill(backend, signal.SIGKILL)
                # The server ends its other backends before it recovers.
                other = Path(f"/proc/{held.lock.info.backend_pid}")
                wait_until(lambda: not other.exists(), seconds=60)
            thread.join(60)
            held.lock.close()
            assert (caught[0].category, caught[0].detail.retryable) == (ErrorCategory.TRANSIENT_FAILURE, True)

            def answers():
                try:
                    return query(server.dsn, "SELECT 1")
                except psycopg.OperationalError:
                    return False

            wait_until(answers, seconds=60)
            held.check()


def refused_by(dsn):
    try:
        merge_into_postgres(rows(("new", 2, {})), 0, dsn, "orders", "app")
    except MulticloudDbError as error:
        return error
    raise AssertionError


class TestTwoWriters:
    @pytest.mark.parametrize("ends", [False, True])
    def test_row_of_another_writer_does_not_escape_a_snapshot(self, dsn, ends):
        """The other transaction began first, in a database whose transactions see one version."""
        merged(dsn, ("old", 20, {}))
        begins, done = SnapshotStarted("000010~", "p:r:snapshot:s"), BackfillDone("p:r:snapshot:s", "000010~")
        if ends:
            merge_into_postgres(page([], begins), None, dsn, "orders", None)
        frozen = f"{dsn} options='-c default_transaction_isolation=serializable'"
        snapshot = page([], *((done,) if ends else (begins, done)))
        with psycopg.connect(dsn) as other:
            other.execute(
                "INSERT INTO orders (key, order_key, new_item_state) VALUES (%s, %s, '{}')",
                ("late", "000005" if ends else "000030"),
            )
            thread = threading.Thread(
                target=merge_into_postgres, args=(snapshot, None, frozen, "orders", None)
            )
            thread.start()
            wait_until(lambda: query(dsn, LOCKING), seconds=60)
        thread.join(60)
        assert keys(dsn) == set()

    def test_older_change_that_waits_for_a_newer_one_does_not_win(self, dsn):
        merged(dsn, ("a", 1, {"n": 1}))
        with psycopg.connect(dsn) as first:
            with first.transaction():
                merge_into_postgres(rows(("a", 5, {"n": 5})), None, first, "orders", None)
                second = threading.Thread(target=merged, args=(dsn, ("a", 3, {"n": 3})))
                second.start()
                wait_until(lambda: query(dsn, WAITING), seconds=60)
            second.join(60)
        assert query(dsn, "SELECT order_key, new_item_state->>'n' FROM orders") == [("000005", "5")]

    def test_never_lose_a_change(self, dsn):
        """Two writers merge the same keys in batches of different orders."""
        merged(dsn, ("seed", 0, {}))
        failed = []

        def write(number):
            dice = random.Random(number)
            try:
                for at in range(30):
                    names = dice.sample(range(40), 20)
                    merged(dsn, *((f"k{name}", 2 * at + number, {"n": 2 * at + number}) for name in names))
            except BaseException as error:  # noqa: BLE001 - raised by the other thread
                failed.append(error)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        # Both lock rows in the order of their keys.
        assert query(dsn, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [
            (0,)
        ]
        best = {}
        for number in range(2):
            dice = random.Random(number)
            for at in range(30):
                for name in dice.sample(range(40), 20):
                    best[f"k{name}"] = max(best.get(f"k{name}", 0), 2 * at + number)
        found = query(dsn, "SELECT key::json->>'id', order_key::int FROM orders WHERE key NOT LIKE '%seed%'")
        assert dict(found) == best

    @pytest.mark.parametrize(("code", "tries"), [("40P01", 10), ("40001", 10), ("53100", 1)])
    def test_deadlock_and_serialization_failure_are_repeated_and_a_full_disk_is_not(self, dsn, code, tries):
        merged(dsn, ("a", 1, {}))
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "CREATE SEQUENCE tries; CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"PERFORM nextval('tries'); RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$; "
                "CREATE TRIGGER fails BEFORE INSERT ON orders EXECUTE FUNCTION fail()"
            )
        wanted = ErrorCategory.CONFLICT if tries > 1 else ErrorCategory.PERMANENT_FAILURE
        error = refused(lambda: merged(dsn, ("b", 2, {})), wanted)
        assert error.detail.native_code == code
        assert query(dsn, "SELECT last_value FROM tries") == [(tries,)]


def altered(text):
    """Return a test's name and what changes a table of the sink by SQL."""
    return pytest.param(text, id=text[:40])


TABLE = (
    'CREATE TABLE orders (key text COLLATE "C" PRIMARY KEY, order_key text COLLATE "C", '
    "_deleted_at timestamptz, new_item_state json, timestamp timestamptz)"
)


def add_trigger(connection, table, name, event, body, when="BEFORE"):
    connection.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; END $$; "
        f"CREATE TRIGGER {name} {when} {event} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()"
    )


@pytest.mark.parametrize("code", ["P0001", "23514", "45000", "40001", "08000"])
def test_what_a_trigger_says_of_a_row_is_in_no_error(dsn, code):
    """Its text may contain the row, whatever its code is."""
    merged(dsn, ("a", 1, {}))
    with psycopg.connect(dsn, autocommit=True) as connection:
        add_trigger(
            connection, "orders", "fails", "INSERT OR UPDATE",
            f"RAISE EXCEPTION 'bad row %', NEW USING ERRCODE = '{code}', HINT = NEW.new_item_state",
        )  # fmt: skip
    secret = "SECRET-7"
    with pytest.raises(MulticloudDbError) as caught:
        merged(dsn, (secret, 2, {"text": secret}))
    error = caught.value
    shown = repr(error) + repr(error.detail) + "".join(traceback.format_exception(error))
    assert secret not in shown
    assert "bad row" not in shown
    assert error.detail.native_code == code
    assert "only the server's log has its text" in error.message


def add_function(connection):
    connection.execute(
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$"
    )


DROPPING = [
    "CREATE TRIGGER drops BEFORE INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION nothing()",
    "CREATE RULE drops AS ON INSERT TO orders DO INSTEAD NOTHING",
]
"""What makes the table drop rows in silence, with the function `nothing`."""
WITHOUT_KEY = "ALTER TABLE orders DROP CONSTRAINT orders_pkey"
AGAIN = "ALTER TABLE orders RENAME TO other; CREATE TABLE orders (LIKE other INCLUDING ALL)"


class TestRefused:
    """What cannot be written is refused by name, and nothing is written."""

    def test_key_that_is_too_long(self, dsn):
        dice = random.Random(1)
        fits, long = ("".join(chr(dice.randrange(0x4E00, 0x9000)) for _ in range(n)) for n in (860, 870))
        merged(dsn, (fits, 1, {}))
        error = refused(lambda: merged(dsn, ("b", 1, {}), (long, 2, {})))
        assert "2,600" in error.message or "2600" in error.message
        assert len(keys(dsn)) == 1

    @pytest.mark.parametrize(
        "kind", [pa.timestamp("us", "UTC"), *map(pa.timestamp, ("us", "ms", "s"))], ids=str
    )
    @pytest.mark.parametrize("year", [-100_000, 0, 1, 9999, 32_767, 32_768, 200_000, 275_760])
    def test_a_time_is_stored_as_it_is_or_refused_with_its_key(self, dsn, kind, year):
        """Arrow writes a year of 16 bits into its text."""
        seconds = int(np.datetime64(f"{year:+07d}-01-01T00:00:00", "s").astype(int))
        value = seconds * {"s": 1, "ms": 10**3, "us": 10**6}[kind.unit]
        batch = rows(("a", 1, {})).append_column("at", pa.array([value], pa.int64()).cast(kind))
        if not 1 <= year <= 32_767:
            error = refused(lambda: merge_into_postgres(batch, None, dsn, "t", None))
            assert "column at: has a time outside the years" in error.message
            assert named(error, "a")
            return
        merge_into_postgres(batch, None, dsn, "t", None)
        assert query(dsn, "SELECT extract(epoch FROM at)::bigint FROM t") == [(seconds,)]

    @pytest.mark.parametrize("day", [-719_163, -719_162, 11_248_737, 11_248_738, 2**31 - 1])
    def test_a_date_of_a_year_without_a_text_is_refused(self, dsn, day):
        batch = rows(("a", 1, {})).append_column("day", pa.array([day], pa.date32()))
        if -719_162 <= day < 11_248_738:
            merge_into_postgres(batch, None, dsn, "t", None)
            assert query(dsn, "SELECT day - DATE '1970-01-01' FROM t") == [(day,)]
            return
        error = refused(lambda: merge_into_postgres(batch, None, dsn, "t", None))
        assert "column day: has a time outside the years" in error.message
        assert named(error, "a")

    def test_the_servers_hint_is_told(self, dsn):
        """A table in a publication needs an identity of its rows for an update."""
        merge_into_postgres(rows(("a", 1, {})), None, dsn, "t", None)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("ALTER TABLE t REPLICA IDENTITY NOTHING")
            connection.execute("CREATE PUBLICATION hinted FOR TABLE t")
        batch = rows(("a", 2, {}))
        error = refused(
            lambda: merge_into_postgres(batch, None, dsn, "t", None), ErrorCategory.PERMANENT_FAILURE
        )
        assert "set REPLICA IDENTITY" in error.message

    @pytest.mark.parametrize("body", ["PERFORM 1 FROM nowhere", "NEW.nothing := 1", "PERFORM nothing FROM t"])
    def test_a_trigger_that_names_what_does_not_exist_is_no_table_that_was_changed(self, dsn, body):
        merge_into_postgres(rows(("a", 1, {})), None, dsn, "t", None)
        with psycopg.connect(dsn, autocommit=True) as connection:
            add_trigger(connection, "t", "fails", "INSERT OR UPDATE", f"{body}; RETURN NEW")
        error = refused(lambda: merge_into_postgres(rows(("b", 2, {})), None, dsn, "t", None))
        assert "drop the trigger" in error.message
        assert not error.retryable

    @pytest.mark.parametrize(
        ("text", "category"),
        [
            ("query_wait_timeout", ErrorCategory.TRANSIENT_FAILURE),
            ("server login has been failing, try again later", ErrorCategory.TRANSIENT_FAILURE),
            ("unsupported startup parameter: options", ErrorCategory.INVALID_REQUEST),
        ],
    )
    def test_a_pooler_has_one_code_for_all_that_it_refuses(self, text, category):
        class Refusal(psycopg.errors.ProtocolViolation):
            diag = SimpleNamespace(
                message_primary=text, message_hint=None, source_function=None, context=None
            )

        with pytest.raises(MulticloudDbError, match=text) as caught, server_errors("t"):
            raise Refusal(text)
        assert caught.value.category == category
        assert ("pass it on" in caught.value.message) is (category == ErrorCategory.INVALID_REQUEST)

    def test_the_hint_of_a_trigger_is_not_told(self, dsn):
        merge_into_postgres(rows(("a", 1, {})), None, dsn, "t", None)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "CREATE FUNCTION hinting() RETURNS trigger LANGUAGE plpgsql AS "
                "$$BEGIN RAISE EXCEPTION 'no' USING HINT = 'secret'; END$$"
            )
            connection.execute(
                "CREATE TRIGGER hinting BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION hinting()"
            )
        batch = rows(("b", 1, {}))
        error = refused(
            lambda: merge_into_postgres(batch, None, dsn, "t", None), ErrorCategory.PERMANENT_FAILURE
        )
        assert "secret" not in error.message

    def test_text_with_nul(self, dsn):
        batch = rows(("a", 1, {}), ("b", 2, {})).append_column("x", pa.array(["fine", "a\0b"]))
        error = refused(lambda: merge_into_postgres(batch, None, dsn, "orders", None))
        assert "column x" in error.message
        assert named(error, "b")
        assert query(dsn, "SELECT to_regclass('orders')") == [(None,)]

    @pytest.mark.parametrize("text", ["\0", "\ud800"])
    def test_document_that_jsonb_refuses_and_json_accepts(self, dsn, text):
        bad = rows(("a", 1, {}), ("bad", 1, {}), ("c", 1, {}))
        at = bad.column_names.index("new_item_state")
        bad = bad.set_column(at, "new_item_state", pa.array(["{}", json.dumps({"secret": text}), "{}"]))
        error = refused(lambda: merge_into_postgres(bad, None, dsn, "orders", None, documents="jsonb"))
        assert "new_item_state" in error.message
        assert named(error, "bad")
        assert "secret" not in f"{error} {error.__cause__}"
        merge_into_postgres(bad, None, dsn, "orders", None)
        assert len(keys(dsn)) == 3
        assert "documents=" in refused(lambda: merged(dsn, ("d", 1, {}), documents="jsonb")).message

    @pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
    @pytest.mark.parametrize("long", ["abcd", "ab  "])
    def test_text_that_does_not_fit_names_the_key(self, dsn, long, kind):
        """The server would cut spaces at the end of a text in silence."""
        merged(dsn, ("a", 1, {}))
        with psycopg.connect(dsn) as connection:
            connection.execute("ALTER TABLE orders ADD COLUMN n varchar(3)")
        batch = rows(*((f"k{n}", 2, {}) for n in range(10)))
        batch = batch.append_column("n", pa.array(["äöü"] * 7 + [long] + ["abc"] * 2, kind))
        error = refused(lambda: merge_into_postgres(batch, None, dsn, "orders", None))
        assert "column n" in error.message
        assert named(error, "k7")

    def test_text_that_an_array_of_texts_would_take_apart(self, dsn):
        merged(dsn, ("a", 1, {}))
        with psycopg.connect(dsn) as connection:
            connection.execute("ALTER TABLE orders ADD COLUMN n varchar(3)[]")
        batch = rows(("a", 2, {})).append_column("n", pa.array(["{ a, b }"]))
        error = refused(lambda: merge_into_postgres(batch, None, dsn, "orders", None))
        assert "is text in the batch and character varying(3)[]" in error.message

    def test_key_whose_spaces_the_server_would_cut(self, dsn):
        def merge(*keys_of):
            batch = rows(("a", 1, {}), ("b", 2, {}))
            batch = batch.set_column(batch.column_names.index("key"), "key", pa.array(keys_of))
            merge_into_postgres(batch, None, dsn, "orders", None)

        with psycopg.connect(dsn) as connection:
            connection.execute(TABLE.replace("key text", "key varchar(3)", 1))
        merge("abc", "ab ")
        assert key_digest("abc ") in refused(lambda: merge("abd", "abc ")).message
        assert keys(dsn) == {"abc", "ab "}

    @pytest.mark.parametrize(
        ("event", "body"),
        [
            ("INSERT", "RETURN NULL"),
            ("UPDATE", "RETURN NULL"),
            ("UPDATE", "RETURN OLD"),
            ("INSERT OR UPDATE", "NEW.order_key := ''; RETURN NEW"),
        ],
    )
    def test_trigger_that_drops_rows(self, dsn, event, body):
        """It may belong to a partition. One that lets rows pass changes nothing."""
        with psycopg.connect(dsn) as connection:
            connection.execute(f"{TABLE} PARTITION BY HASH (key)")
            connection.execute(
                "CREATE TABLE part PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
            )
            add_trigger(connection, "part", "passes", "INSERT OR UPDATE", "RETURN NEW")
        merged(dsn, ("a", 1, {}))
        with psycopg.connect(dsn) as connection:
            add_trigger(connection, "part", "drops", event, body)
        error = refused(lambda: merged(dsn, ("b" if "INSERT" in event else "a", 2, {})))
        assert "BEFORE trigger" in error.message
        assert query(dsn, "SELECT key, order_key FROM orders") == [('{"id":"a"}', "000001")]

    def test_trigger_that_also_runs_where_changes_are_replicated(self, dsn):
        merged(dsn, ("a", 1, {}))
        with psycopg.connect(dsn) as connection:
            add_trigger(connection, "orders", "drops", "INSERT", "RETURN NULL")
            connection.execute("ALTER TABLE orders ENABLE ALWAYS TRIGGER drops")
        assert "BEFORE trigger" in refused(lambda: merged(dsn, ("b", 2, {}))).message

    @pytest.mark.parametrize(
        ("when", "body"),
        [
            ("BEFORE", "NEW.new_item_state := '{}'; RETURN NEW"),
            ("BEFORE", "NEW._deleted_at := now(); RETURN NEW"),
            ("BEFORE", "NEW.n := NEW.n + 1; RETURN NEW"),
            ("BEFORE", "NEW.timestamp := NULL; RETURN NEW"),
            ("AFTER", "DELETE FROM orders WHERE key = NEW.key; RETURN NULL"),
            (
                "AFTER",
                "UPDATE orders SET n = 0 WHERE key = NEW.key AND n <> 0; RETURN NULL",
            ),
        ],
    )
    @pytest.mark.parametrize("event", ["INSERT", "UPDATE"])
    def test_trigger_that_changes_what_was_written(self, dsn, event, when, body):
        """It may belong to a partition. Nothing of the batch is written."""

        def merge(*changes, n):
            batch = rows(*changes).append_column("n", pa.array([n] * len(changes), pa.int64()))
            merge_into_postgres(batch, None, dsn, "orders", None, new_columns="add")

        merge(("a", 1, {"v": 1}), n=1)
        with psycopg.connect(dsn) as connection:
            add_trigger(connection, "orders", "passes", "INSERT OR UPDATE", "RETURN NEW")
            audit = "INSERT INTO audit VALUES (NEW.key); RETURN NULL"
            connection.execute("CREATE TABLE audit (key text)")
            add_trigger(connection, "orders", "audits", "INSERT OR UPDATE", audit, "AFTER")
        merge(("a", 2, {"v": 2}), ("c", 1, {"v": 1}), n=2)
        with psycopg.connect(dsn) as connection:
            add_trigger(connection, "orders", "changes", event, body, when)
        name = "b" if event == "INSERT" else "a"
        error = refused(lambda: merge((name, 3, {"v": "SECRET"}), n=3))
        assert "trigger" in error.message
        assert "SECRET" not in str(error)
        found = query(dsn, "SELECT key, order_key, n, new_item_state->>'v' FROM orders ORDER BY key")
        assert found == [(key_of("a"), "000002", 2, "2"), (key_of("c"), "000001", 2, "1")]

    def test_older_and_repeated_changes_are_not_compared(self, dsn):
        """The sink has not written them now, and nobody knows with which values it did."""
        merged(dsn, ("a", 5, {"v": 1}))
        with psycopg.connect(dsn) as connection:
            add_trigger(connection, "orders", "passes", "INSERT OR UPDATE", "RETURN NEW")
            connection.execute("UPDATE orders SET new_item_state = '{}'")
        merged(dsn, ("a", 5, {"v": 1}), ("b", 1, {}))
        merged(dsn, ("a", 4, {"v": 7}))
        assert keys(dsn) == {key_of("a"), key_of("b")}

    def test_change_without_its_document_keeps_values_beside_a_trigger(self, dsn):
        merged(dsn, ("a", 1, {"v": 1}))
        with psycopg.connect(dsn) as connection:
            add_trigger(connection, "orders", "passes", "INSERT OR UPDATE", "RETURN NEW")
        merge_into_postgres(bare(("a", 2, {})), None, dsn, "orders", None, missing_state="keep")
        assert query(dsn, "SELECT order_key, new_item_state->>'v' FROM orders") == [("000002", "1")]

    @pytest.mark.parametrize("kind", ["AS IDENTITY", "AS (length(key)) STORED"])
    def test_column_that_the_server_makes(self, dsn, kind):
        merged(dsn, ("a", 1, {}))
        with psycopg.connect(dsn) as connection:
            connection.execute(f"ALTER TABLE orders ADD nr bigint GENERATED ALWAYS {kind}")
        merged(dsn, ("b", 1, {}))
        batch = rows(("c", 1, {})).append_column("nr", pa.array([5], pa.int64()))
        error = refused(lambda: merge_into_postgres(batch, None, dsn, "orders", None))
        assert "column nr" in error.message
        assert "GENERATED" in error.message
        assert keys(dsn) == {key_of("a"), key_of("b")}

    @pytest.mark.parametrize("zone", [None, "UTC"])
    def test_nanoseconds(self, dsn, zone):
        batch = rows(("a", 1, {})).append_column("at", pa.array([1001], pa.timestamp("ns", zone)))
        error = refused(lambda: merge_into_postgres(batch, None, dsn, "orders", None))
        assert "microseconds" in error.message
        assert query(dsn, "SELECT to_regclass('orders')") == [(None,)]

    def test_texts_that_are_views(self, dsn):
        batch = rows(("a", 1, {})).append_column("t", pa.array(["x"], pa.string_view()))
        merge_into_postgres(batch, None, dsn, "orders", None)
        assert query(dsn, "SELECT t FROM orders") == [("x",)]
        nested = rows(("b", 1, {})).append_column("t", pa.array([["x"]], pa.list_(pa.string_view())))
        error = refused(lambda: merge_into_postgres(nested, None, dsn, "orders", None))
        assert "column t" in error.message

    @pytest.mark.parametrize("ends", [False, True])
    def test_trigger_that_keeps_rows_from_a_snapshot(self, dsn, ends):
        plan, floor = "p:r:snapshot:s", "000010~"
        merged(dsn, ("a", 20, {}))
        begins, done = SnapshotStarted(floor, plan), BackfillDone(plan, floor)
        if ends:
            merge_into_postgres(page([], begins), None, dsn, "orders", None)
        with psycopg.connect(dsn) as connection:
            add_trigger(connection, "orders", "drops", "UPDATE", "RETURN NULL")
        notice = done if ends else begins
        error = refused(lambda: merge_into_postgres(page([], notice), None, dsn, "orders", None))
        assert "BEFORE trigger" in error.message
        with psycopg.connect(dsn) as connection:
            connection.execute("DROP TRIGGER drops ON orders")
        merge_into_postgres(page([], *((done,) if ends else (begins, done))), None, dsn, "orders", None)
        assert keys(dsn) == set()

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ("ALTER TABLE orders ALTER order_key TYPE text COLLATE pg_c_utf8", "collation"),
            ("ALTER TABLE orders ALTER key TYPE text COLLATE pg_c_utf8", "collation"),
            (WITHOUT_KEY, "unique index"),
            (f"{WITHOUT_KEY}; CREATE UNIQUE INDEX u ON orders (key) WHERE key <> ''", "unique index"),
            (f"{WITHOUT_KEY}; ALTER TABLE orders ADD UNIQUE (key) DEFERRABLE", "unique index"),
            (f"{WITHOUT_KEY}; ALTER TABLE orders ADD UNIQUE (key, order_key)", "unique index"),
            ("ALTER TABLE orders DROP COLUMN _deleted_at", "_deleted_at"),
            ("ALTER TABLE orders RENAME TO o; CREATE VIEW orders AS SELECT * FROM o", "view"),
            ("CREATE RULE r AS ON INSERT TO orders DO INSTEAD NOTHING", "rules"),
            ("CREATE TABLE child () INHERITS (orders)", "inherit"),
            ("ALTER TABLE orders ALTER _deleted_at TYPE timestamp", "_deleted_at of type timestamp"),
            ("ALTER TABLE orders ADD CHECK (key NOT LIKE '%b%')", "constraint"),
            (
                "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE "
                "CONSTRAINT TRIGGER t AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
                "EXECUTE FUNCTION f()",
                "deferred trigger",
            ),
        ],
    )
    def test_table_of_another_form(self, dsn, change, text):
        merged(dsn, ("a", 1, {}))
        with psycopg.connect(dsn) as connection:
            connection.execute(change)
        error = refused(lambda: merged(dsn, ("b", 1, {"secret": 1})))
        assert text in error.message
        assert "secret" not in f"{error} {error.__cause__}"

    @pytest.mark.parametrize(
        ("name", "value", "text"),
        [
            ("x" * 64, 1, "63 bytes"), ("ctid", 1, "system column"), ("_deleted_at", 1, "the sink writes"),
            ("s", {"a": 1}, "JSON text"), ("KEY", "x", "upper and lower case"), ("a\0", 1, "63 bytes"),
        ],
    )  # fmt: skip
    def test_column(self, dsn, name, value, text):
        batch = rows(("a", 1, {})).append_column(name, pa.array([value]))
        assert text in refused(lambda: merge_into_postgres(batch, None, dsn, "orders", None)).message

    @pytest.mark.parametrize(
        ("option", "text"),
        [
            ({"batch": 5}, "batch"), ({"dsn": 5}, "dsn"), ({"dsn": "x"}, "dsn"), ({"table": ""}, "table"),
            ({"table": "a.b.c"}, "table"), ({"table": "x" * 64}, "table"), ({"table": None}, "table"),
            ({"batch_id": 1}, "app_id"), ({"app_id": "a"}, "app_id"), ({"documents": "text"}, "documents"),
            ({"create": 1}, "create"),
            ({"connections": "4"}, "connections"), ({"connections": 0}, "connections"),
            ({"new_columns": "x"}, "new_columns"),
            ({"missing_state": "x"}, "missing_state"), ({"checkpoint_name": "w"}, "page"),
            ({"checkpoint_name": "a b"}, "letters"), ({"checkpoint": 5}, "checkpoint"),
        ],
    )  # fmt: skip
    def test_argument(self, dsn, option, text):
        arguments = {
            "batch": rows(("a", 1, {})),
            "batch_id": None,
            "dsn": dsn,
            "table": "orders",
            "app_id": None,
        }
        assert text in refused(lambda: merge_into_postgres(**{**arguments, **option})).message

    def test_user_without_rights_and_read_only(self, dsn):
        merged(dsn, ("a", 1, {}))
        role = f"reader_{abs(hash(dsn))}"
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {role} LOGIN")
        try:
            reader = dsn.replace("user=postgres", f"user={role}")
            error = refused(lambda: merged(reader, ("b", 1, {})), ErrorCategory.AUTHORIZATION_FAILED)
            assert "TEMPORARY" in error.message
            assert not error.retryable
        finally:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(f"DROP ROLE {role}")
        standby = f"{dsn} options='-c default_transaction_read_only=on'"
        error = refused(lambda: merged(standby, ("b", 1, {})), ErrorCategory.PERMANENT_FAILURE)
        assert "standby" in error.message
        assert not error.retryable

    def test_setting_that_a_pooler_refuses(self, monkeypatch):
        """The words are those of pgbouncer 1.18."""

        def connect(*args, **settings):
            raise psycopg.OperationalError(
                'connection to server on socket "/x" failed: FATAL:  unsupported startup parameter: options'
            )

        monkeypatch.setattr(psycopg, "connect", connect)
        error = refused(lambda: merged("host=/tmp options='-c statement_timeout=9'", ("a", 1, {})))
        assert "startup parameter: options" in error.message
        assert not error.retryable

    @pytest.mark.parametrize("setting", ["no_such_setting=1", "work_mem=cold", "shared_buffers=9"])
    def test_setting_that_the_server_refuses_is_no_outage(self, dsn, setting):
        error = refused(lambda: merged(f"{dsn} options='-c {setting}'", ("a", 1, {})))
        assert setting.partition("=")[0] in error.message
        assert "correct the option" in error.message
        assert not error.retryable

    @pytest.mark.parametrize(
        ("change", "way_out"),
        [
            ("CREATE INDEX ON orders ((new_item_state->>'t'))", "index a hash of the value"),
            ("CREATE INDEX ON orders (key, (new_item_state->>'t'))", "index a hash of the value"),
            (
                f"DROP TABLE orders; {TABLE} PARTITION BY HASH (key); "
                "CREATE TABLE p PARTITION OF orders FOR VALUES WITH (MODULUS 1000, REMAINDER 0)",
                "add the partition",
            ),
            ("CREATE UNIQUE INDEX ON orders ((new_item_state->>'n'))", "drop the constraint"),
        ],
    )
    def test_index_or_partition_of_the_user_that_has_no_place_for_a_row(self, dsn, change, way_out):
        merged(dsn, ("a", 1, {"n": 1}))
        with psycopg.connect(dsn, autocommit=True) as connection:
            for each in change.split("; "):
                connection.execute(each)
        text = "".join(random.Random(1).choices(string.ascii_letters, k=6000))
        message = refused(lambda: merged(dsn, ("b", 1, {"n": 1, "t": text}))).message
        assert way_out in message
        assert text[:20] not in message

    @pytest.mark.parametrize("has_key", [True, False])
    def test_index_of_the_user_that_takes_two_keys_for_one(self, dsn, has_key):
        merged(dsn, ("a", 1, {"n": 1}))
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(IGNORES_CASE)
            connection.execute("CREATE UNIQUE INDEX ON orders (key ignores_case)")
            if not has_key:
                connection.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey")
        message = refused(lambda: merged(dsn, ("A", 2, {"n": 2}))).message
        assert ("drop the constraint" if has_key else "has no primary key") in message
        assert query(dsn, "SELECT new_item_state->>'n' FROM orders") == [("1",)]

    def test_document_that_is_nested_too_deeply(self, dsn):
        batch = rows(("a", 1, {}))
        at = batch.column_names.index("new_item_state")
        batch = batch.set_column(at, "new_item_state", pa.array(["[" * 20_000 + "]" * 20_000]))
        for documents in ("json", "jsonb"):
            message = refused(
                lambda documents=documents: merge_into_postgres(
                    batch, None, dsn, "orders", None, documents=documents
                )
            ).message
            assert ("max_stack_depth" in message) is (documents == "json")

    def test_connection_that_does_not_know_what_a_text_is(self, dsn):
        with psycopg.connect(f"{dsn} client_encoding=SQL_ASCII") as connection:
            batch = rows(("a", 1, {}))
            error = refused(lambda: merge_into_postgres(batch, None, connection, "orders", None))
        assert "client_encoding" in error.message

    @pytest.mark.parametrize(
        "change",
        [
            "ALTER TABLE orders SET UNLOGGED",
            f"DROP TABLE orders; {TABLE} PARTITION BY HASH (key); "
            "CREATE UNLOGGED TABLE p PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        ],
    )
    def test_table_that_a_crash_empties(self, dsn, change):
        """Its marks and the token of its query outlive the crash."""
        merged(dsn, ("a", 1, {}))
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(change)
        assert "SET LOGGED" in refused(lambda: merged(dsn, ("b", 1, {}))).message

    def test_table_that_ends_with_its_session(self, dsn):
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(TABLE.replace("CREATE", "CREATE TEMPORARY"))
            batch = rows(("a", 1, {}))
            error = refused(lambda: merge_into_postgres(batch, None, connection, "orders", None))
        assert "temporary" in error.message

    def test_table_that_hides_rows_from_the_user(self, dsn):
        """Otherwise a snapshot would leave hidden rows as they are."""
        merged(dsn, ("a", 1, {}))
        role = f"some_{abs(hash(dsn))}"
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                f"CREATE ROLE {role} LOGIN; GRANT SELECT, INSERT, UPDATE ON orders TO {role}; "
                "ALTER TABLE orders ENABLE ROW LEVEL SECURITY"
            )
        try:
            hidden = dsn.replace("user=postgres", f"user={role}")
            assert "row-level security" in refused(lambda: merged(hidden, ("b", 1, {}))).message
            merged(dsn, ("a", 2, {}))
        finally:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")

    @pytest.mark.parametrize("change", [*DROPPING, "ALTER TABLE orders RENAME TO other", "DROP TABLE orders"])
    def test_table_cannot_change_between_its_check_and_its_rows(self, dsn, monkeypatch, change):
        merged(dsn, ("a", 1, {}))
        refusals = []

        def meanwhile(connection, batch):
            with psycopg.connect(f"{dsn} options='-c lock_timeout=50'") as other:
                add_function(other)
                with pytest.raises(psycopg.errors.LockNotAvailable) as caught:
                    other.execute(change)
                refusals.append(caught.value)
            copied(connection, batch)

        monkeypatch.setattr("multiclouddb_postgres.table.copied", meanwhile)
        merged(dsn, ("b", 2, {}))
        assert len(refusals) == 1
        assert keys(dsn) == {key_of("a"), key_of("b")}

    @pytest.mark.parametrize("change", DROPPING)
    def test_change_of_the_table_that_the_callers_transaction_does_not_see(self, dsn, change):
        """It sees the server's catalogue as it was before."""
        merged(dsn, ("a", 1, {}))
        with psycopg.connect(dsn) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT 1")
            with psycopg.connect(dsn) as other:
                add_function(other)
                other.execute(change)
            batch = rows(("b", 2, {}))
            error = refused(lambda: merge_into_postgres(batch, None, connection, "orders", None))
        assert "keeps a row from being written" in error.message
        assert keys(dsn) == {key_of("a")}

    @pytest.mark.parametrize("step", ["outdate", "bury"])
    @pytest.mark.parametrize(("change", "text"), [(DROPPING[0], "BEFORE trigger"), (AGAIN, "made again")])
    def test_step_of_a_snapshot_looks_at_the_table_again(self, dsn, step, change, text):
        """Between the steps of a batch of Spark, nothing is locked."""
        merged(dsn, ("a", 5 if step == "bury" else 20, {}))
        settings = {"create": True, "new_columns": "refuse", "documents": "json"}
        with psycopg.connect(dsn, autocommit=True) as connection:
            storage = FrameTable(connection, dsn, "orders", 1, settings)
            add_function(connection)
            connection.execute(change)
            with pytest.raises(MulticloudDbError, match=text):
                getattr(storage, step)("000010~", {"m": 1})
        assert query(dsn, "SELECT name FROM multiclouddb_marks WHERE name = 'm'") == []

    @pytest.mark.parametrize(
        "statement",
        [
            "INSERT INTO orders (key, order_key, new_item_state) VALUES ('SECRET', NULL, '1')",
            "INSERT INTO orders (key, order_key) VALUES ('SECRET', ''), ('SECRET', '')",
            "SELECT 'SECRET'::integer",
            "SELECT '{\"SECRET'::json",
            "SELECT 'SECRET'::timestamptz",
            "DO $$ BEGIN PERFORM 1 / 0, 'SECRET'; END $$",
            "DO $$ BEGIN EXECUTE 'SELECT SECRET FROM'; END $$",
        ],
    )
    def test_message_of_the_server_never_shows_data(self, dsn, statement):
        merged(dsn, ("a", 1, {}))
        with pytest.raises(MulticloudDbError) as caught:
            repeated(dsn, "orders", lambda connection: connection.execute(statement))
        error = caught.value
        shown = [str(error), repr(error.detail), str(error.__cause__), str(error.detail.native_text)]
        shown += traceback.format_exception_only(error)
        assert "SECRET" not in " ".join(shown)
        assert error.detail.native_code is not None
        assert len(error.detail.native_text) > 10

    def test_missing_schema(self, dsn):
        refused(
            lambda: merge_into_postgres(rows(("a", 1, {})), None, dsn, "nowhere.orders", None),
            ErrorCategory.NOT_FOUND,
        )


def test_what_was_merged_outlives_a_crash_whatever_the_role_has_set():
    """The position may be stored elsewhere, and must not be ahead of the rows."""
    with PostgresServer("wal_writer_delay=10s", "wal_writer_flush_after=1GB") as server:
        lazy = f"{server.dsn} options='-c synchronous_commit=off'"
        merged(lazy, ("a", 1, {}))
        PostgresCheckpointStore(lazy).save("w", "t", None)
        server.kill()
        server.start()
        wait_until(lambda: query(server.dsn, "SELECT NOT pg_is_in_recovery()") == [(True,)], seconds=60)
        assert keys(server.dsn) == {key_of("a")}
        assert PostgresCheckpointStore(server.dsn).load("w").token == "t"


def test_tombstone_has_the_time_of_its_merge(dsn):
    """The events are from January, and a later snapshot does not change the time of a tombstone."""
    merged(dsn, ("a", 1, None), ("b", 1, {}))
    times = "SELECT _deleted_at, now() - _deleted_at < '1 hour' FROM orders ORDER BY key"
    [(first, is_new), _] = query(dsn, times)
    assert is_new
    plan = encode_partition_id("provider", ResourceAddress("main", "orders"), "first", "snapshot:s")
    snapshot = page([], SnapshotStarted("000010~", plan), BackfillDone(plan, "000010~"))
    merge_into_postgres(snapshot, None, dsn, "orders", None)
    assert query(dsn, times)[0] == (first, True)


def test_row_says_since_when_its_document_is_old(dsn):
    since = "SELECT _stale_since FROM orders"
    merge_into_postgres(bare(("a", 1, {})), None, dsn, "orders", None, missing_state="keep")
    [(first,)] = query(dsn, since)
    merge_into_postgres(bare(("a", 2, {})), None, dsn, "orders", None, missing_state="keep")
    assert query(dsn, since) == [(first,)] != [(None,)]
    merged(dsn, ("a", 3, {}))
    assert query(dsn, since) == [(None,)]


def test_snapshot_in_a_transaction_that_sees_one_version_is_refused(dsn):
    merged(dsn, ("a", 1, {}))
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        begins = page([], SnapshotStarted("000010~", "p:r:snapshot:s"))
        error = refused(lambda: merge_into_postgres(begins, None, connection, "orders", None))
    assert "READ COMMITTED" in error.message


class TestColumns:
    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ("ADD COLUMN n integer", "is text in the batch and integer"),
            ("ADD COLUMN m integer", "lost the column n"),
        ],
    )
    def test_columns_are_checked_again_in_the_transaction_of_the_rows(self, dsn, change, text):
        """Two sinks may add a column at the same time, each of its own type."""
        merged(dsn, ("a", 1, {}))
        batch = rows(("a", 2, {})).append_column("n", pa.array(["007"]))
        with psycopg.connect(dsn, autocommit=True) as connection:
            settings = {"create": True, "new_columns": "add", "documents": "json"}
            planned = PostgresTable(connection, "orders", **settings)
            planned.prepare(batch.select(["key", "order_key", "n"]).schema)
            connection.execute(f"ALTER TABLE orders DROP COLUMN n, {change}")

            def merge():
                with connection.transaction():
                    written = PostgresTable(connection, "orders", holds=True, **settings)
                    written.merge(batch.select(["key", "order_key", "type", "n"]), {})

            is_lost = "lost" in text
            message = refused(
                merge, ErrorCategory.CONFLICT if is_lost else ErrorCategory.INVALID_REQUEST
            ).message
        assert text in message
        assert query(dsn, "SELECT order_key FROM orders") == [("000001",)]

    def test_every_type(self, dsn):
        values = {
            "b": True, "i8": pa.scalar(-5, pa.int8()), "u32": pa.scalar(2**32 - 1, pa.uint32()), "i": 2**62,
            "f": 0.1, "inf": float("inf"), "t": 'a"b\n,\\N\t', "e": "", "d": date(2026, 1, 2),
            "at": AT, "naive": AT.replace(tzinfo=None), "x": b"\x00\xff",
            "dec": Decimal("1.50"), "none": None,
        }  # fmt: skip
        batch = rows(("a", 1, {}), ("b", 1, {}))
        for name, value in values.items():
            one = pa.array([value if not isinstance(value, pa.Scalar) else value.as_py(), None])
            if isinstance(value, pa.Scalar):
                one = one.cast(value.type)
            batch = batch.append_column(name, one.cast(pa.string()) if value is None else one)
        names = ", ".join(f'"{name}"' for name in values)
        for _ in range(2):
            merge_into_postgres(batch, None, dsn, "Shop", None)
            batch = batch.set_column(
                batch.column_names.index("order_key"), "order_key", pa.array(["000002"] * 2)
            )
            [first, second] = query(dsn, f'SELECT {names} FROM "Shop" ORDER BY key')
            ours = [each.as_py() if isinstance(each, pa.Scalar) else each for each in values.values()]
            assert list(first) == ours
            assert set(second) == {None}

    @pytest.mark.parametrize("encoding", ["UTF8", "LATIN1", "SQL_ASCII"])
    def test_text_is_utf_8_whatever_the_encodings_of_client_and_server(self, server, dsn, encoding):
        name = f"in_{encoding.lower()}_{abs(hash(dsn))}"
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(
                f"CREATE DATABASE {name} ENCODING {encoding} TEMPLATE template0 "
                "LOCALE_PROVIDER libc LOCALE 'C'"
            )
        there = server.dsn.replace("dbname=postgres", f"dbname={name}")
        try:
            merged(f"{there} client_encoding=latin1", ("é", 1, {"n": "ü"}))
            merged(there, ("é", 2, {"n": "ü"}))
            found = query(f"{there} client_encoding=utf8", "SELECT key, new_item_state FROM orders")
            assert found == [('{"id":"é"}', {"n": "ü"})]
            [read] = PostgresTarget(there, "orders").rows()
            assert read.to_pylist()[0]["key"] == '{"id":"é"}'
        finally:
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def test_names_that_look_like_placeholders(self, dsn):
        table, plan = '100%s "orders"', "p:r:snapshot:s"
        batch = (
            rows(("a", 1, {})).append_column("rate%", pa.array([0.5])).append_column("%(x)s", pa.array([1]))
        )
        merge_into_postgres(batch, 0, dsn, table, "app%")
        merge_into_postgres(page([], SnapshotStarted("000010~", plan)), None, dsn, table, None)
        merge_into_postgres(page([], BackfillDone(plan, "000010~")), None, dsn, table, None)
        [found] = query(dsn, 'SELECT "rate%", "%(x)s", _deleted_at IS NULL FROM "100%s ""orders"""')
        assert found == (None, None, False)
        assert len(list(PostgresTarget(dsn, table).rows([]))) == 0
        assert len(list(PostgresTarget(dsn, table).rows(['{"id":"a"}'], own=True))) == 1

    def test_table_of_another_schema_that_was_made_by_hand(self, dsn):
        with psycopg.connect(dsn) as connection:
            connection.execute(
                'CREATE SCHEMA shop; CREATE TABLE shop.orders (key text COLLATE "C" PRIMARY KEY, '
                'order_key text COLLATE "C", _deleted_at timestamptz, new_item_state json, '
                '"timestamp" timestamptz, '
                "n int GENERATED ALWAYS AS ((new_item_state->>'n')::int) STORED)"
            )
        for order in (0, 1, 2):
            merge_into_postgres(
                rows(("a", order, {"n": order})), order, dsn, "shop.orders", "app", create="never"
            )
        assert query(dsn, "SELECT n FROM shop.orders") == [(2,)]
        found = query(dsn, "SELECT name FROM shop.multiclouddb_marks ORDER BY name")
        assert found == [("multiclouddb-feed",), ("multiclouddb-filled",), ("multiclouddb-query:app",)]

    def test_mark_is_the_same_by_each_name_of_the_table(self, dsn):
        with psycopg.connect(dsn) as connection:
            connection.execute(f"CREATE SCHEMA other; {TABLE}")
        found = f"{dsn} options='-c search_path=other,public'"
        merged(found, ("a", 1, {"n": 1}))
        other = rows(("a", 2, {"n": 2})).drop_columns(["partition_id", "database", "collection"])
        for where, table in ((found, "orders"), (dsn, "orders"), (dsn, "public.orders")):
            message = refused(
                lambda where=where, table=table: merge_into_postgres(
                    other, None, where, table, None, source="mongo:shop/customers"
                )
            ).message
            assert "is filled from provider main/orders" in message
            assert PostgresTarget(where, table).found().mark.source == SOURCE
        assert query(dsn, "SELECT new_item_state->>'n' FROM orders") == [("1",)]

    def test_tombstones_of_a_snapshot_in_a_table_with_columns_that_cannot_be_null(self, dsn):
        with psycopg.connect(dsn) as connection:
            connection.execute(
                TABLE[:-1] + ", code int NOT NULL DEFAULT 7, serial_number bigserial UNIQUE, note text, "
                "n int GENERATED ALWAYS AS ((new_item_state->>'n')::int) STORED)"
            )
        merged(dsn, ("a", 1, {"n": 1}))
        with psycopg.connect(dsn) as connection:
            connection.execute("UPDATE orders SET note = 'x'")
        plan = "provider:resource:snapshot:s"
        snapshot = page([], SnapshotStarted("000010~", plan), BackfillDone(plan, "000010~"))
        merge_into_postgres(snapshot, None, dsn, "orders", None)
        found = query(dsn, "SELECT code, serial_number, note, n, _deleted_at IS NULL FROM orders")
        # The sink has written none of these columns, so they stay as they are.
        assert found == [(7, 1, "x", None, False)]

    @pytest.mark.parametrize("app_id", ["app", None])
    def test_table_that_was_made_again_is_not_filled_with_the_rest(self, dsn, app_id):
        """The marks are of the table's object id."""
        pages = [page(events((name, 1, {}))) for name in "ab"]
        pages[1] = attrs.evolve(pages[1], resumed_from="token")

        def merge(number, **options):
            given = None if app_id is None else number
            return merge_into_postgres(pages[number], given, dsn, "orders", app_id, **options)

        merge(0)
        with psycopg.connect(dsn) as connection:
            connection.execute("ALTER TABLE orders RENAME TO old")
            connection.execute("CREATE TABLE orders (LIKE old INCLUDING ALL)")
        assert "made again" in refused(lambda: merge(1)).message
        with psycopg.connect(dsn) as connection:
            connection.execute("DROP TABLE orders")
        refused(lambda: merge(1), ErrorCategory.NOT_FOUND)
        assert merge(0)
        assert merge(1)
        assert len(keys(dsn)) == 2
        with psycopg.connect(dsn) as connection:
            connection.execute("DROP TABLE orders")
        assert merge(1, create="always")
        assert len(keys(dsn)) == 1


def test_read_of_a_real_feed_and_its_end(dsn, tmp_path):
    with EmbeddedStore(tmp_path / "s.db", durable=False) as store:
        address = store.create_collection("orders")
        store.put("orders", "a", {"n": 1})
        with connect(f"embedded://{store.path}") as client:
            found = client.read_changes(ChangeFeedRequest(address, Beginning()))
        assert merge_into_postgres(found, None, dsn, "orders", None)
    assert keys(dsn) == {'{"id":"a"}'}


FACTORIES = {
    "dict_row": {"row_factory": dict_row},
    "namedtuple_row": {"row_factory": namedtuple_row},
    "scalar_row": {"row_factory": scalar_row},
    "RawCursor": {"cursor_factory": psycopg.RawCursor},
    "ClientCursor": {"cursor_factory": psycopg.ClientCursor},
}


@pytest.mark.parametrize("settings", FACTORIES.values(), ids=FACTORIES)
def test_a_connection_of_the_user_may_return_other_rows_and_read_other_placeholders(dsn, settings):
    with psycopg.connect(dsn, autocommit=True, **settings) as connection:
        before = connection.row_factory, connection.cursor_factory, connection.server_cursor_factory
        for order in (1, 2):
            with connection.transaction():
                assert merge_into_postgres(rows(("a", order, {"n": order})), None, connection, "orders", None)
        with pytest.raises(MulticloudDbError), connection.transaction():
            merge_into_postgres(
                rows(("a", 3, {"n": "\0"})), None, connection, "orders", None, documents="jsonb"
            )
        assert before == (
            connection.row_factory, connection.cursor_factory, connection.server_cursor_factory
        )  # fmt: skip
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT new_item_state FROM orders").fetchall() == [({"n": 2},)]


def test_a_role_whose_setting_quotes_the_names_of_types(dsn):
    batch = rows(("a", 1, {"n": 1}))
    for name, value in (("n", 1), ("day", date(2026, 1, 1)), ("note", "x"), ("is_new", True)):
        batch = batch.append_column(name, pa.array([value]))
    quoting = f"{dsn} options='-c quote_all_identifiers=on'"
    for where in (quoting, dsn, quoting):
        assert merge_into_postgres(batch, None, where, "orders", None, new_columns="add")
    kinds = [dict(PostgresTarget(each, "orders").columns()) for each in (dsn, quoting)]
    assert kinds[0] == kinds[1]
    assert {"n", "day", "note", "is_new"} <= kinds[0].keys()
    with psycopg.connect(dsn) as connection:
        connection.execute('ALTER TABLE orders ADD COLUMN letter "char"')
    for where in (quoting, dsn):
        with pytest.raises(MulticloudDbError, match='column letter: is text in the batch and "char" in'):
            merge_into_postgres(batch.append_column("letter", pa.array(["y"])), None, where, "orders", None)


@pytest.mark.parametrize(("deferrable", "is_merged"), [("", False), (" DEFERRABLE INITIALLY DEFERRED", True)])
def test_a_value_of_a_unique_column_that_moves_to_another_row(dsn, deferrable, is_merged):
    def batch(order, first, second):
        changes = rows(("a", order, {}), ("b", order, {}))
        return changes.append_column("mail", pa.array([first, second]))

    assert merge_into_postgres(batch(1, "x", "y"), None, dsn, "orders", None)
    with psycopg.connect(dsn) as connection:
        connection.execute(f"ALTER TABLE orders ADD CONSTRAINT one UNIQUE (mail){deferrable}")
    if is_merged:
        assert merge_into_postgres(batch(2, "y", "x"), None, dsn, "orders", None)
    else:
        with pytest.raises(MulticloudDbError, match="DEFERRABLE INITIALLY DEFERRED") as caught:
            merge_into_postgres(batch(2, "y", "x"), None, dsn, "orders", None)
        assert caught.value.category == ErrorCategory.INVALID_REQUEST
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT mail FROM orders ORDER BY key").fetchall()
    assert found == ([("y",), ("x",)] if is_merged else [("x",), ("y",)])


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW totals AS SELECT total FROM orders",
        "ALTER TABLE orders ADD COLUMN more bigint GENERATED ALWAYS AS (total + 1) STORED",
        "ALTER TABLE orders ADD CHECK (total > 0)",
    ],
)
def test_a_declared_column_that_something_uses_keeps_its_type_and_its_declaration(dsn, statement):
    before = Columns({"total": "int64"})

    def merge(batch, **options):
        return merge_into_postgres(batch, None, dsn, "orders", None, **options)

    merge(page(events(("a", 1, {"total": 1}))), columns=before)
    with psycopg.connect(dsn) as connection:
        connection.execute(statement)
    begin = page([], SnapshotStarted("000100", PLAN))
    message = refused(partial(merge, begin, columns=Columns({"total": "string"}), refill=True)).message
    assert "drop what uses the column" in message
    merge(page(events(("a", 2, {"total": 2}))), columns=before)
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT total FROM orders").fetchall() == [(2,)]
