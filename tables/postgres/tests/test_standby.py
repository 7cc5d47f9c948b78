"""Tests that `verify` may read from a standby, and what it says if the standby ends the read."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import psycopg
import pytest

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.sink_harness import rows
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_postgres import PostgresTarget, merge_into_postgres
from multiclouddb_postgres.server import transaction

SECONDS = 60


def run(dsn, *statements):
    with psycopg.connect(dsn, autocommit=True) as connection:
        for each in statements:
            cursor = connection.execute(each)
        return cursor.fetchall() if cursor.description else None


@pytest.fixture
def standby(server, dsn):
    """Provide the connection string of a standby of the server."""
    data, port = server.folder / "standby", "5499"
    place = ["-h", str(server.folder), "-U", "postgres"]
    server.run("pg_basebackup", *place, "-D", str(data), "-R", "--no-sync", "-c", "fast")
    settings = (
        f"unix_socket_directories={server.folder}", "listen_addresses=", f"port={port}", "max_connections=60",
        "max_standby_streaming_delay=0",
    )  # fmt: skip
    options = [part for each in settings for part in ("-c", each)]
    there = f"{dsn} port={port}"

    def answers():
        try:
            return run(there, "SELECT pg_is_in_recovery()") == [(True,)]
        except psycopg.OperationalError:
            return False

    with (server.folder / "standby.log").open("ab") as log:
        process = subprocess.Popen(
            [str(server._bin / "postgres"), "-D", str(data), *options], cwd="/", stdout=log, stderr=log,
            **server._user,
        )  # fmt: skip
    try:
        wait_until(answers, seconds=SECONDS)
        yield there
    finally:
        process.terminate()
        process.wait(SECONDS)


def test_a_standby_is_read_and_says_why_it_ends_a_read(server, dsn, request):
    """The code is that of a serialization failure, and nobody else writes there."""
    merge_into_postgres(rows(*((f"k{n}", 1, {"n": n}) for n in range(100))), None, dsn, "orders", None)
    standby = request.getfixturevalue("standby")
    assert sum(batch.num_rows for batch in PostgresTarget(standby, "orders").rows()) == 100
    is_over = Event()

    def change():
        while not is_over.is_set():
            run(dsn, "UPDATE orders SET timestamp = timestamp", "VACUUM orders")

    def read():
        with transaction(standby, "the table", reads=True) as connection:
            connection.execute(f"SELECT pg_sleep({SECONDS}), key FROM orders")

    with ThreadPoolExecutor() as pool:
        changing = pool.submit(change)
        try:
            error = refusal(ErrorCategory.TRANSIENT_FAILURE, read, "hot_standby_feedback")
        finally:
            is_over.set()
        changing.result()
    assert (error.detail.native_code, error.detail.retryable, error.detail.reason) == ("40001", True, None)
