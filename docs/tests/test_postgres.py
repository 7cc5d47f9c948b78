"""Checks the page about PostgreSQL on a real server."""

import psycopg
import pytest

from testing import command_line
from testing.postgres_server import PostgresServer

from .page import Page

PAGE = Page("reference/postgres.md")


@pytest.fixture
def server():
    with PostgresServer() as made:
        yield made


def test_the_programs_run_as_they_stand_and_print_what_is_below_them(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", server.dsn)
    PAGE.run("worker.py")
    [check] = PAGE.commands("multiclouddb token check")
    assert "//user@host/shop/orders-worker?sslmode=verify-full" in check[4]
    where = f"postgresql://postgres@/postgres/orders-worker?host={server.folder}&sslmode=prefer"
    command_line.said("token", "check", f"embedded://{tmp_path}/orders.db", where, *check[5:])
    with psycopg.connect(server.dsn) as connection:
        live = "SELECT count(*) FROM orders WHERE _deleted_at IS NULL"
        assert connection.execute(live).fetchone() == (9,)
    assert PAGE.run("counter.py") == PAGE.said_behind("counter.py")
    assert PAGE.programs.keys() == PAGE.programs_run_in(__file__)
    with psycopg.connect(server.dsn) as connection:
        [statement] = [line for line in PAGE.text.splitlines() if line.startswith("    DELETE FROM")]
        connection.execute(statement)
        assert connection.execute(live).fetchone() == (9,)
