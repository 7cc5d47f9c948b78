"""Runs the contract of sinks on tables of PostgreSQL, with keys as they are and with their hashes."""

import psycopg
import pytest

from multiclouddb_api import decode_json
from multiclouddb_conformance.sink_harness import key_of, rows
from multiclouddb_conformance.targets import *  # noqa: F403
from multiclouddb_conformance.targets.declared import *  # noqa: F403
from multiclouddb_postgres import PostgresTarget, merge_into_postgres


class PostgresSink:
    def __init__(self, dsn, deaths, long_keys):
        self.dsn, self.dies, self.target = dsn, deaths, PostgresTarget(dsn, "orders")
        self.long_keys = long_keys

    def merge(self, batch, batch_id=None, app_id=None, **options):
        return merge_into_postgres(
            batch, batch_id, self.dsn, "orders", app_id, long_keys=self.long_keys, **options
        )

    def drop(self):
        with psycopg.connect(self.dsn) as connection:
            connection.execute("DROP TABLE orders")


@pytest.fixture(params=["refuse", pytest.param("hash", marks=pytest.mark.soak)])
def sink(dsn, deaths, monkeypatch, request):
    if request.param == "hash":
        monkeypatch.setattr("multiclouddb_postgres.long_keys.MOST_KEY_BYTES", 0)
    return PostgresSink(dsn, deaths, request.param)


@pytest.mark.parametrize("sink", ["hash"], indirect=True)
def test_a_key_whose_hash_is_kept_is_read_as_a_column_too(sink):
    """`verify` asks for it while no declared column is filled, and compares it with the source's."""
    sink.merge(rows(("a", 1, {"n": 3})))
    [row] = [row for each in sink.target.rows(own=("key",)) for row in each.to_pylist()]
    assert row["key"] == key_of("a")
    assert decode_json(row["state"]) == {"key": key_of("a")}
