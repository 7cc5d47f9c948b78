"""Tests the locks of the tables that one process writes."""

from contextlib import closing

import psycopg
import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_postgres.lock import TableLocks
from testing.postgres_server import PostgresServer

CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> %s"
END = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture(scope="module")
def server():
    """Provide a server with fewer connections than the tests have tables."""
    with PostgresServer("max_connections=20") as made:
        yield made


@pytest.fixture
def other(server):
    with closing(psycopg.connect(server.dsn, autocommit=True)) as connection:
        yield connection


def refused(locks, dsn, table):
    with pytest.raises(MulticloudDbError, match="another mirror") as caught:
        locks.take(dsn, table)
    assert caught.value.category is ErrorCategory.CONFLICT
    return str(caught.value)


def await_connections(other, count):
    """Wait for the number of connections: the server ends one some time after it was closed."""
    wait_until(
        lambda: other.execute(CONNECTIONS, (other.info.backend_pid,)).fetchall() == [(count,)], seconds=30
    )


def test_the_tables_of_a_server_share_one_connection(server, other):
    locks = TableLocks()
    names = [locks.take(server.dsn, f"t{number}") for number in range(100)]
    await_connections(other, 1)
    second = TableLocks()
    assert "process" in refused(second, server.dsn, "public.t42")
    for name in names:
        locks.release(server.dsn, name)
    second.release(server.dsn, second.take(server.dsn, "t42"))
    await_connections(other, 0)


def test_a_lock_that_is_given_back_is_free_and_the_others_stay(server):
    locks, second = TableLocks(), TableLocks()
    names = [locks.take(server.dsn, name) for name in ("a", "b", "c")]
    locks.release(server.dsn, names[1])
    got = second.take(server.dsn, "b")
    for name in ("a", "c"):
        refused(second, server.dsn, name)
    second.release(server.dsn, got)
    for name in ("public.a", "public.c"):
        locks.release(server.dsn, name)


def test_a_table_under_two_names_is_refused_in_one_process_too(server):
    locks = TableLocks()
    name = locks.take(server.dsn, "orders")
    assert "of this process" in refused(locks, server.dsn, "public.orders")
    refused(TableLocks(), server.dsn, "orders")
    locks.release(server.dsn, name)


def test_after_a_lost_connection_the_locks_are_taken_again(server, other):
    locks = TableLocks()
    names = [locks.take(server.dsn, name) for name in ("a", "b")]
    other.execute(END)
    names.append(locks.take(server.dsn, "c"))
    second = TableLocks()
    for name in ("a", "b", "c"):
        refused(second, server.dsn, name)
    for name in names:
        locks.release(server.dsn, name)
    other.execute(END)
    locks.release(server.dsn, "public.a")  # which has no lock any more


def test_a_refusal_leaves_no_connection(server, other):
    first, second = TableLocks(), TableLocks()
    name = first.take(server.dsn, "a")
    refused(second, server.dsn, "a")
    await_connections(other, 1)
    first.release(server.dsn, name)


def test_a_lock_that_is_held_holds_nothing_else(server, other):
    """Such as a snapshot, which lets CREATE INDEX CONCURRENTLY wait, and tables keep what was deleted."""
    locks, second = TableLocks(), TableLocks()
    names = [locks.take(server.dsn, name) for name in ("a", "b")]
    refused(second, server.dsn, "a")
    locks.release(server.dsn, names[0])
    third = second.take(server.dsn, "c")
    refused(second, server.dsn, "b")
    found = other.execute(
        "SELECT backend_xmin, backend_xid, "
        "array(SELECT relation::regclass::text FROM pg_locks l WHERE l.pid = a.pid AND relation IS NOT NULL) "
        "FROM pg_stat_activity a WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    ).fetchall()
    assert found == [(None, None, []), (None, None, [])]
    other.execute("CREATE TABLE orders (key text)")
    other.execute("SET lock_timeout = '20s'")
    other.execute("CREATE INDEX CONCURRENTLY ON orders (key)")
    other.execute("REINDEX TABLE pg_class")
    other.execute("DROP TABLE orders")
    locks.release(server.dsn, names[1])
    second.release(server.dsn, third)
