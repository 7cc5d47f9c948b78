"""Tests that what a database remembers of a dropped table is not taken for that of a new one."""

import psycopg

from multiclouddb_conformance.sink_harness import rows
from multiclouddb_postgres import PostgresTarget, merge_into_postgres
from multiclouddb_tables import Columns

MARKS = "SELECT DISTINCT target::regclass::text FROM multiclouddb_marks ORDER BY 1"


def run(dsn, *statements):
    with psycopg.connect(dsn, autocommit=True) as connection:
        for each in statements:
            cursor = connection.execute(each)
        return cursor.fetchall() if cursor.description else None


def merge(dsn, table, *changes, **more):
    return merge_into_postgres(rows(*changes), None, dsn, table, None, **more)


def dumped(server, dsn, other):
    """Restore a dump of a database in another one."""
    run(server.dsn, f"CREATE DATABASE {other}")
    there = dsn.replace("dbname=tests", f"dbname={other}")
    server.run("psql", "-v", "ON_ERROR_STOP=1", there, text=server.run("pg_dump", dsn))
    return there


def test_a_new_table_with_the_number_of_a_dropped_one_has_no_mark(server, dsn):
    """pg_dump writes the number of a table that is gone, and another server may give it to a new one."""
    merge(dsn, "gone", ("a", 1, {"n": 1}), columns=Columns({"n": "int64"}))
    run(dsn, "DROP TABLE gone")
    there = dumped(server, dsn, "restored")
    try:
        [(stale,)] = run(there, MARKS)
        # The next table gets the next number, as that of the dump would be in a new server.
        [(last,)] = run(there, "CREATE TABLE before (key text PRIMARY KEY)", "SELECT 'before'::regclass::oid")
        run(there, "DROP TABLE before")
        assert stale.isdigit()
        run(
            there,
            "INSERT INTO multiclouddb_marks (target, name, value, note, at) SELECT n, name, value, note, at "
            f"FROM multiclouddb_marks, generate_series({last} + 1, {last} + 30) AS n",
        )
        merge(there, "orders", ("b", 1, {"n": 2}))
        assert (stale,) not in run(there, MARKS)
        assert PostgresTarget(there, "orders").found().mark.declared is None
    finally:
        run(server.dsn, "DROP DATABASE restored WITH (FORCE)")


def test_a_restored_table_goes_on_with_its_mark(server, dsn):
    merge(dsn, "orders", ("a", 1, {"n": 1}))
    merge(dsn, "other", ("a", 1, {"n": 1}))
    there = dumped(server, dsn, "restored")
    try:
        assert merge(there, "orders", ("a", 2, {"n": 2}))
        assert run(there, "SELECT new_item_state::text FROM orders") == [('{"n":2}',)]
        merge(there, "third", ("a", 1, {}))
        assert run(there, MARKS) == [("orders",), ("other",), ("third",)]
    finally:
        run(server.dsn, "DROP DATABASE restored WITH (FORCE)")


def test_a_user_without_the_right_to_delete_marks_makes_a_table(dsn):
    run(dsn, "DROP ROLE IF EXISTS app", "CREATE ROLE app LOGIN", "GRANT ALL ON SCHEMA public TO app")
    try:
        run(dsn, "GRANT TEMPORARY ON DATABASE tests TO app")
        merge(dsn, "gone", ("a", 1, {}))
        run(dsn, "DROP TABLE gone", "GRANT SELECT, INSERT, UPDATE ON multiclouddb_marks TO app")
        assert merge(dsn.replace("user=postgres", "user=app"), "orders", ("a", 1, {}))
    finally:
        run(dsn, "DROP OWNED BY app", "DROP ROLE app")
