import psycopg
import pytest
from psycopg import sql

from multiclouddb_conformance.sink_harness import Death
from testing.postgres_server import PostgresServer

OTHERS = """
    SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
SCHEMAS = (
    r"SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%' AND nspname <> 'information_schema'"
)


@pytest.fixture(scope="session")
def server():
    with PostgresServer() as made:
        yield made


@pytest.fixture(scope="session")
def database(server):
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE tests")
    return server.dsn.replace("dbname=postgres", "dbname=tests")


@pytest.fixture
def dsn(database):
    """Provide a database that has no tables and no other clients; what is outside of schemas stays."""
    yield database
    with psycopg.connect(database, autocommit=True, options="-c lock_timeout=30s") as connection:
        connection.execute(OTHERS)
        for (schema,) in connection.execute(SCHEMAS).fetchall():
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
        connection.execute("CREATE SCHEMA public AUTHORIZATION pg_database_owner")
        connection.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")
        connection.execute("SELECT pg_stat_reset()")


@pytest.fixture
def deaths(monkeypatch):
    """Return a function that makes the process die once: around a statement, a COPY, or a commit."""
    left = {"dice": None, "chance": 0.0}

    def patched(owner, name):
        original = getattr(owner, name)

        def call(*args, **kwargs):
            dice = left["dice"]
            if dice is None or dice.random() >= left["chance"]:
                return original(*args, **kwargs)
            left["dice"] = None
            if dice.random() < 0.5:
                original(*args, **kwargs)
            elif name == "__exit__":
                original(args[0], Death, Death(), None)
            raise Death

        monkeypatch.setattr(owner, name, call)

    patched(psycopg.Connection, "execute")
    patched(psycopg.Cursor, "copy")
    patched(psycopg.Transaction, "__exit__")

    def dies(dice, chance=0.0):
        left.update(dice=dice, chance=chance)

    return dies
