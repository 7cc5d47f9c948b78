import psycopg
import pytest

from multiclouddb_conformance.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def server():
    with PostgresServer() as made:
        yield made


@pytest.fixture
def dsn(server, request):
    """Provide a database of its own."""
    name = f"test_{abs(hash(request.node.nodeid))}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
    yield server.dsn.replace("dbname=postgres", f"dbname={name}")
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
